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

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::time::Duration;

    use provisioner::Metrics;
    use supervisor::{Settings, Supervisor};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;

    use super::*;

    #[tokio::test]
    async fn readiness_ends_with_what_the_node_and_the_cluster_lack() {
        let listener = Arc::new(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap());
        let address = listener.local_addr().unwrap();
        let restrictions = Arc::new(Restrictions::new("/nonexistent", provisioner::notices().0));
        let status = NodeStatus { restrictions, snapshots: Metrics::default().snapshot_support().clone() };
        let shown = status.clone();
        let tree = Supervisor::start("status", Settings::default(), move |cx| {
            run(cx, Arc::clone(&listener), Registry::new(), Some(shown.clone()))
        });
        tree.handle().healthy().await.unwrap();
        let readyz = async || {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(b"GET /readyz HTTP/1.1\r\nHost: node\r\n\r\n").await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            answer.split_once("\r\n\r\n").unwrap().1.to_owned()
        };
        assert_eq!(readyz().await, "ok\n");
        status.snapshots.set_crds_missing(true);
        let crds = "snapshots are unavailable: the cluster does not have the CRDs of snapshot.storage.k8s.io/v1\n";
        assert_eq!(readyz().await, format!("ok\n{crds}"));
        status.restrictions.set(Enforcement::Failed("no BPF-LSM".into()));
        assert_eq!(readyz().await, format!("ok\nlimits are advisory: no BPF-LSM\n{crds}"));
        tree.stop(Duration::from_secs(10)).await.unwrap();
    }
}
