//! Health checks and metrics over HTTP.

use std::sync::Arc;

use podguard::{Enforcement, Restrictions};
use prometheus::Registry;
use status::{Audience, Page, Service, Source};
use supervisor::{BoxError, Context};
use tokio::net::TcpListener;

/// Answers all clients until it is cancelled. Healthy at once.
pub(crate) async fn run(
    cx: Context,
    listener: Arc<TcpListener>,
    registry: Registry,
    restrictions: Option<Arc<Restrictions>>,
) -> Result<(), BoxError> {
    cx.healthy();
    let endpoint = Arc::new(Endpoint { tree: cx.clone(), registry, restrictions });
    tokio::select! {
        () = cx.cancelled() => {}
        () = status::serve(&listener, Audience::All, endpoint) => {}
    }
    Ok(())
}

struct Endpoint {
    tree: Context,
    registry: Registry,
    restrictions: Option<Arc<Restrictions>>,
}

impl Source for Endpoint {
    fn services(&self) -> Vec<Service> {
        status::services(&self.tree.tree())
    }

    fn remark(&self) -> Option<String> {
        let enforcement = self.restrictions.as_ref()?.enforcement();
        match &*enforcement.borrow() {
            Enforcement::Failed(reason) => Some(format!("limits are advisory: {reason}")),
            Enforcement::Unknown | Enforcement::Enforced => None,
        }
    }

    /// A page would show the volumes of all tenants to every pod.
    fn page(&self) -> Option<Page> {
        None
    }

    fn metrics(&self) -> Result<String, BoxError> {
        Ok(status::metrics(&self.registry, &self.services(), [])?)
    }
}
