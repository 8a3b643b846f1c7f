//! The node's part of the mesh, see crate `clusternet`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use cluster::{MESH_PORT, NODE_PREFIX};
use clusternet::{
    INTERFACE, Link, LostSessions, Metrics, Neighbour, OVERHEAD, PeerState, PodNetwork, PrivateKey, Settings, Wireguard,
};
use dir::Dir;
use ipnet::Ipv4Net;
use kube::Client;
use prometheus::Registry;
use supervisor::{BoxError, Context};
use tokio::sync::OnceCell;
use tokio::task::spawn_blocking;
use tracing::warn;
use units::Bytes;

use crate::error::StepError;

/// Configuration of the mesh on an uplink with the MTU `mtu`.
pub fn of_uplink(mtu: u32) -> programs::Mesh {
    programs::Mesh { interface: INTERFACE, port: MESH_PORT, mtu: mtu.saturating_sub(OVERHEAD) }
}

/// The parts of the mesh, created at its first run.
pub struct Mesh {
    node: String,
    pods: Ipv4Net,
    pki: PathBuf,
    link: Link,
    registry: Registry,
    lost_sessions: LostSessions,
    made: OnceCell<(Arc<Wireguard>, Metrics)>,
}

impl Mesh {
    pub fn new(services: &programs::Config, registry: &Registry) -> Self {
        Self {
            node: services.node.clone(),
            pods: services.cluster_pods,
            pki: services.paths.pki.clone(),
            link: Link { name: services.mesh.interface.to_owned(), mtu: services.mesh.mtu, ..Link::default() },
            registry: registry.clone(),
            lost_sessions: LostSessions::default(),
            made: OnceCell::new(),
        }
    }

    /// Runs the mesh until cancelled. Healthy when the node is part of it. The supervisor retries after an error; pods
    /// on this node reach each other meanwhile.
    pub async fn run(self: Arc<Self>, cx: Context, client: Client) -> Result<(), BoxError> {
        let (device, metrics) = self.made.get_or_try_init(|| self.make()).await?.clone();
        let networks = vec![PodNetwork { network: self.pods.into(), node_prefix: NODE_PREFIX }];
        let (node, lost_sessions, interval) = (self.node.clone(), self.lost_sessions.clone(), Settings::INTERVAL);
        let settings = Settings { client, node, networks, device, lost_sessions, metrics, interval };
        Ok(clusternet::run(cx, settings).await?)
    }

    pub fn status(&self) -> Option<status::Mesh> {
        let (device, metrics) = self.made.get()?.clone();
        Some(match metrics.neighbours(&*device) {
            Ok(neighbours) => status::Mesh::new(neighbours.into_iter().map(peer).collect()),
            Err(error) => {
                warn!(error = causes::of(&error), "cannot read the mesh, the status page omits it");
                status::Mesh::default()
            }
        })
    }

    async fn make(&self) -> Result<(Arc<Wireguard>, Metrics), BoxError> {
        let pki = self.pki.clone();
        let key = spawn_blocking(move || -> Result<_, BoxError> {
            let directory = Dir::open(&pki).map_err(StepError::of("cannot open the directory of the mesh's key"))?;
            Ok(PrivateKey::ensure(&directory)?)
        });
        let key = key.await.map_err(StepError::of("the task that reads the mesh's key panicked"))??;
        let device = Arc::new(Wireguard::new(key.into_inner(), self.link.clone()));
        let metrics = Metrics::register(&self.registry, device.clone());
        let metrics = metrics.map_err(StepError::of("cannot register the mesh's metrics"))?;
        Ok((device, metrics))
    }
}

fn peer(neighbour: Neighbour) -> status::Peer {
    let Neighbour { node, key, state: PeerState { peer, traffic } } = neighbour;
    let ago = |at| SystemTime::now().duration_since(at).unwrap_or_default();
    status::Peer {
        node,
        key: key.to_string(),
        endpoint: peer.endpoint.map(|endpoint| endpoint.to_string()),
        pods: peer.allowed.iter().map(ToString::to_string).collect(),
        handshake: traffic.handshake.map(ago),
        received: Bytes::new(traffic.received),
        sent: Bytes::new(traffic.sent),
    }
}
