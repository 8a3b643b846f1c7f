//! Health and metrics over HTTP.

use std::sync::Arc;

use prometheus::{Registry, TextEncoder};
use status::{Audience, Page, Service, Source};
use supervisor::{BoxError, Context};
use tokio::net::TcpListener;

/// Tells them to whoever reaches the port, until it is cancelled. Healthy at once.
pub(crate) async fn run(cx: Context, listener: Arc<TcpListener>, registry: Registry) -> Result<(), BoxError> {
    cx.healthy();
    let numbers = Arc::new(Numbers { tree: cx.clone(), registry });
    tokio::select! {
        () = cx.cancelled() => {}
        () = status::serve(&listener, Audience::Everybody, numbers) => {}
    }
    Ok(())
}

struct Numbers {
    tree: Context,
    registry: Registry,
}

impl Source for Numbers {
    fn services(&self) -> Vec<Service> {
        status::services(&self.tree.tree())
    }

    /// A page tells of all tenants, and the network of pods is everybody's.
    fn page(&self) -> Option<Page> {
        None
    }

    fn metrics(&self) -> Result<String, BoxError> {
        Ok(TextEncoder::new().encode_to_string(&self.registry.gather())?)
    }
}
