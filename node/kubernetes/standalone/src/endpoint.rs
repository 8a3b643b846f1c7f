//! Health checks and metrics over HTTP.

use std::sync::Arc;

use podguard::{Enforcement, Restrictions};
use prometheus::Registry;
use provisioner::SnapshotSupport;
use status::{Audience, Page, Service, Source};
use supervisor::{BoxError, Context};
use tokio::net::TcpListener;

/// Status of a node in addition to the status of its services.
#[derive(Clone, Debug)]
pub(crate) struct NodeStatus {
    pub(crate) restrictions: Arc<Restrictions>,
    pub(crate) snapshots: SnapshotSupport,
}

/// Serves all clients until cancelled. Healthy at once.
pub(crate) async fn run(
    cx: Context,
    listener: Arc<TcpListener>,
    registry: Registry,
    node: Option<NodeStatus>,
) -> Result<(), BoxError> {
    cx.healthy();
    let endpoint = Arc::new(Endpoint { tree: cx.clone(), registry, node });
    tokio::select! {
        () = cx.cancelled() => {}
        () = status::serve(&listener, Audience::All, endpoint) => {}
    }
    Ok(())
}

struct Endpoint {
    tree: Context,
    registry: Registry,
    node: Option<NodeStatus>,
}

impl Source for Endpoint {
    fn services(&self) -> Vec<Service> {
        status::services(&self.tree.tree())
    }

    fn remarks(&self) -> Vec<String> {
        let Some(NodeStatus { restrictions, snapshots }) = &self.node else { return Vec::new() };
        let enforcement = restrictions.enforcement();
        let limits = match &*enforcement.borrow() {
            Enforcement::Failed(reason) => Some(format!("limits are advisory: {reason}")),
            Enforcement::Unknown | Enforcement::Enforced => None,
        };
        let missing = snapshots.missing().into_iter().map(|requirement| requirement.to_string());
        limits.into_iter().chain(missing).collect()
    }

    /// Returns no page, because it would show the volumes of all tenants to every pod.
    fn page(&self) -> Option<Page> {
        None
    }

    fn metrics(&self) -> Result<String, BoxError> {
        Ok(status::metrics(&self.registry, &self.services(), [])?)
    }
}
