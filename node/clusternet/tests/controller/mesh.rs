//! A node's controller in a cluster without other nodes.

use std::sync::Arc;
use std::time::Duration;

use cluster::PUBLIC_KEY_ANNOTATION;
use clusternet::{LostSessions, Metrics, Peer, Peers, PodNetwork, PublicKey, Settings};
use envtest::{Cluster, Failure, PATIENCE, Seen, eventually};
use k8s_openapi::api::core::v1::Node;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use prometheus::{Registry, TextEncoder};
use serde_json::{Value, json};
use supervisor::Supervisor;
use tracing::instrument::WithSubscriber as _;

use crate::device::{FakeDevice, KernelState};
use crate::gate::Gate;
use crate::log::CapturedLog;

pub const OWN: &str = "one";

const STOP: Duration = Duration::from_secs(20);

pub struct Mesh {
    pub admin: Api<Node>,
    pub device: Arc<FakeDevice>,
    pub gate: Gate,
    pub metrics: Metrics,
    pub log: CapturedLog,
    registry: Registry,
    controller: Supervisor,
}

pub fn key(number: u8) -> PublicKey {
    PublicKey::new([number; 32]).unwrap()
}

/// A Node as the kubelet and the controller manager create it, with the key of `number`.
pub fn node(name: &str, number: u8) -> Value {
    json!({
        "metadata": {"name": name, "annotations": {PUBLIC_KEY_ANNOTATION: key(number).to_string()}},
        "spec": {"podCIDR": format!("10.244.{number}.0/24"), "podCIDRs": [format!("10.244.{number}.0/24")]},
        "status": {"addresses": [{"type": "InternalIP", "address": format!("192.0.2.{number}")}]},
    })
}

pub fn own() -> Value {
    let mut own = node(OWN, 1);
    own["metadata"]["annotations"] = json!({"kept": "yes"});
    own
}

pub async fn create(admin: &Api<Node>, node: Value) -> Result<(), Failure> {
    admin.create(&PostParams::default(), &serde_json::from_value(node)?).await?;
    Ok(())
}

/// Creates a cluster of these nodes. Waits until roles and policies are in force.
pub async fn cluster_of(cluster: &Cluster, nodes: Vec<Value>) -> Result<Api<Node>, Failure> {
    let admin = Api::<Node>::all(cluster.admin());
    admin.delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
    for node in nodes {
        create(&admin, node).await?;
    }
    let client = cluster.admin();
    let reconciler =
        Supervisor::start("reconciler", supervisor::Settings::default(), move |cx| reconciler::run(cx, client.clone()));
    reconciler.handle().healthy().await?;
    reconciler.stop(STOP).await?;
    let storage = Api::<Node>::all(cluster.storage_of(OWN).await?);
    eventually(PATIENCE, "the role", async || {
        storage.list(&ListParams::default().limit(1)).await.map(|_| Seen::Done(()))
    })
    .await?;
    Ok(admin)
}

impl Mesh {
    /// Starts the controller of [`OWN`] in the cluster, with peers of an earlier run and key number 1.
    pub async fn start(cluster: &Cluster, nodes: Vec<Value>, peers: Peers) -> Result<Self, Failure> {
        Self::with_interval(Settings::INTERVAL, cluster, nodes, peers).await
    }

    pub async fn with_interval(
        interval: Duration,
        cluster: &Cluster,
        nodes: Vec<Value>,
        peers: Peers,
    ) -> Result<Self, Failure> {
        Self::with_device(interval, cluster, nodes, FakeDevice::with(key(1), peers)).await
    }

    pub async fn with_device(
        interval: Duration,
        cluster: &Cluster,
        nodes: Vec<Value>,
        device: FakeDevice,
    ) -> Result<Self, Failure> {
        let admin = cluster_of(cluster, nodes).await?;
        let (device, gate) = (Arc::new(device), Gate::default());
        let registry = Registry::new();
        let metrics = Metrics::register(&registry, Arc::<FakeDevice>::clone(&device))?;
        let settings = Settings {
            client: gate.client(cluster.storage_of(OWN).await?),
            node: OWN.to_owned(),
            networks: vec![PodNetwork { network: "10.244.0.0/16".parse()?, node_prefix: 24 }],
            device: Arc::<FakeDevice>::clone(&device),
            lost_sessions: LostSessions::default(),
            metrics: metrics.clone(),
            interval,
        };
        let log = CapturedLog::default();
        let subscriber = log.subscriber();
        let controller = Supervisor::start("mesh", supervisor::Settings::default(), move |cx| {
            clusternet::run(cx, settings.clone()).with_subscriber(subscriber.clone())
        });
        Ok(Self { admin, device, gate, metrics, log, registry, controller })
    }

    pub async fn healthy(&self) -> Result<(), Failure> {
        Ok(tokio::time::timeout(PATIENCE, self.controller.handle().healthy()).await??)
    }

    pub fn is_healthy(&self) -> bool {
        self.controller.status().state == supervisor::State::Healthy
    }

    pub async fn peers(&self, wanted: impl IntoIterator<Item = (PublicKey, Peer)>) -> Result<KernelState, Failure> {
        let wanted: Peers = wanted.into_iter().collect();
        let state = eventually(PATIENCE, "the peers", async || {
            let state = self.device.state();
            let seen =
                if state.peers == wanted { Seen::Done(state) } else { Seen::NotYet(format!("{:?}", state.peers)) };
            Ok::<_, kube::Error>(seen)
        });
        Ok(state.await?)
    }

    pub async fn counts<const N: usize>(&self, wanted: [&str; N]) -> Result<(), Failure> {
        eventually(PATIENCE, "the metrics", async || {
            let text = TextEncoder::new().encode_to_string(&self.registry.gather())?;
            let missing = wanted.iter().find(|wanted| !text.lines().any(|line| line == **wanted));
            Ok::<_, prometheus::Error>(match missing {
                Some(missing) => Seen::NotYet(format!("no {missing:?} in {text}")),
                None => Seen::Done(()),
            })
        })
        .await?;
        Ok(())
    }

    pub async fn published(&self) -> Result<Node, Failure> {
        let published = eventually(PATIENCE, "the public key in the own Node", async || {
            let node = self.admin.get(OWN).await?;
            let found = node.annotations().get(PUBLIC_KEY_ANNOTATION).cloned();
            Ok::<_, kube::Error>(if found == Some(key(1).to_string()) {
                Seen::Done(node)
            } else {
                Seen::NotYet(format!("{found:?}"))
            })
        });
        Ok(published.await?)
    }

    pub async fn patch(&self, name: &str, patch: Value) -> Result<Node, Failure> {
        Ok(self.admin.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?)
    }

    pub async fn delete(&self, name: &str) -> Result<(), Failure> {
        self.admin.delete(name, &DeleteParams::default()).await?;
        Ok(())
    }

    pub async fn stop(self) -> Result<(), Failure> {
        Ok(self.controller.stop(STOP).await?)
    }
}
