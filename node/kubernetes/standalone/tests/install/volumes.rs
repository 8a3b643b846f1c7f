//! Provisioning of a claim with a pod's token. The disk is a fake, and the test acts as the scheduler.

use std::collections::BTreeMap;
use std::sync::Arc;

use cluster::DRIVER_NAME;
use envtest::{
    Cluster, Failure, FakeVolumes, PATIENCE, Seen, create, eventually, merge, merge_status, reached, start, until,
};
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::api::storage::v1::{CSIStorageCapacity, StorageClass};
use kube::api::{DeleteParams, ListParams};
use kube::{Api, ResourceExt as _};
use prometheus::Registry;
use serde_json::json;
use standalone::arguments::Provisioner;
use standalone::provisioning::{self, Settings};
use supervisor::Supervisor;
use tokio::sync::watch;
use units::Bytes;

use crate::accounts::{Pods, RECLAIMER, SELECTED_NODE};

/// Settings of a DaemonSet pod on this node.
async fn settings(
    pods: &Pods,
    node: &str,
    provisioner: Provisioner,
    disk: &Arc<FakeVolumes>,
) -> Result<Settings, Failure> {
    Ok(Settings {
        client: pods.client("granary-storage", Some(node)).await?,
        node: node.parse()?,
        provisioner,
        volumes: disk.clone(),
        metrics: provisioner::Metrics::register(&Registry::new(), disk.clone())?,
        register_again: Arc::new(|| {}),
        revoked: watch::channel(BTreeMap::new()).1,
        notices: provisioner::notices().1,
    })
}

/// A node with a running provisioner, with the rights of the chart's pods.
struct Worker {
    pods: Pods,
    disk: Arc<FakeVolumes>,
    tree: Supervisor,
    claims: Api<PersistentVolumeClaim>,
}

impl Worker {
    /// Starts the provisioner, and waits until the node has published its capacity for the class.
    async fn start(cluster: &Arc<Cluster>, name: &str, class: &str) -> Result<Self, Failure> {
        let pods = Pods::start(cluster).await?;
        pods.node(name, name).await?;
        let disk = Arc::new(FakeVolumes::with_size(Bytes::new(100 << 30)));
        let settings = settings(&pods, name, Provisioner::Own, &disk).await?;
        let tree = start("cluster", settings, provisioning::run).await?;
        let capacities = Api::<CSIStorageCapacity>::namespaced(pods.admin.clone(), "kube-system");
        let end = format!(".{name}.local.granary.dev");
        let is_own =
            |object: &CSIStorageCapacity| object.name_any().ends_with(&end) && object.storage_class_name == class;
        let published = async || capacities.list(&ListParams::default()).await.map(|found| found.items);
        reached("the capacity of the node", published, |found| found.iter().any(is_own)).await?;
        let claims = Api::default_namespaced(pods.admin.clone());
        Ok(Self { pods, disk, tree, claims })
    }

    async fn claim(&self, name: &str, class: &str, size: &str) -> Result<(), Failure> {
        let claim = envtest::claim(json!({"name": name}), class, json!({"resources": {"requests": {"storage": size}}}));
        create(&self.claims, claim).await?;
        Ok(())
    }

    /// Selects a node for the claim, as the scheduler does.
    async fn schedule(&self, claim: &str, node: &str) -> Result<(), Failure> {
        let annotations = json!({SELECTED_NODE: node, "volume.kubernetes.io/storage-provisioner": DRIVER_NAME});
        merge(&self.claims, claim, json!({"metadata": {"annotations": annotations}})).await?;
        Ok(())
    }

    async fn events(&self, claim: &str) -> Result<Vec<Event>, kube::Error> {
        let events = Api::<Event>::default_namespaced(self.pods.admin.clone());
        let mut found = events.list(&ListParams::default()).await?.items;
        found.retain(|event| event.regarding.as_ref().is_some_and(|object| object.name.as_deref() == Some(claim)));
        Ok(found)
    }

    /// Waits until the claim is bound, and returns the name of its PV.
    async fn bound(&self, claim: &str) -> Result<String, Failure> {
        let volume = envtest::bound(&self.claims, claim).await?;
        assert_eq!(self.disk.live(), [volume.parse()?]);
        Ok(volume)
    }

    async fn delete(&self, claim: &str, volume: &str) -> Result<(), Failure> {
        self.claims.delete(claim, &DeleteParams::default()).await?;
        let volumes = Api::<PersistentVolume>::all(self.pods.admin.clone());
        eventually(PATIENCE, "the end of the volume", async || {
            let (found, left) = (volumes.get_opt(volume).await?, self.disk.live().len() + self.disk.retired().len());
            Ok::<_, kube::Error>(match found {
                None if left == 0 => Seen::Done(()),
                found => Seen::NotYet(format!("PV: {}, records: {left}", found.is_some())),
            })
        })
        .await?;
        Ok(())
    }
}

/// With a stale capacity of the former pod, the scheduler would select the node for space that may be used. Claims of
/// the node are those of external-provisioner, which does not run here.
pub async fn the_own_provisioner_ends_with_its_capacity(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let worker = Worker::start(&cluster, "switched.example", "local").await?;
    let other = Worker::start(&cluster, "unswitched.example", "local").await?;
    worker.tree.stop(PATIENCE).await?;
    let settings = settings(&worker.pods, "switched.example", Provisioner::External, &worker.disk).await?;
    let tree = start("cluster", settings, provisioning::run).await?;
    let capacities = Api::<CSIStorageCapacity>::namespaced(worker.pods.admin.clone(), "kube-system");
    let found = capacities.list(&ListParams::default()).await?.items;
    let is_of =
        |node: &str| found.iter().any(|object| object.name_any().ends_with(&format!(".{node}.local.granary.dev")));
    assert!(!is_of("switched.example") && is_of("unswitched.example"), "{found:?}");

    other.claim("unserved", "local", "1Gi").await?;
    other.schedule("unserved", "switched.example").await?;
    let is_waiting = |event: &Event| event.reason.as_deref() == Some("ExternalProvisioning");
    let events = async || other.events("unserved").await;
    reached("the wait for external-provisioner", events, |found| found.iter().any(is_waiting)).await?;
    // The own provisioner of the other node serves a later claim, from its creation to its deletion.
    other.claim("served", "local", "1Gi").await?;
    other.schedule("served", "unswitched.example").await?;
    let volume = other.bound("served").await?;
    other.delete("served", &volume).await?;
    let claim = other.claims.get("unserved").await?;
    assert!(claim.annotations().keys().all(|key| !key.contains("granary.dev")), "{:?}", claim.annotations());
    assert_eq!(claim.status.and_then(|status| status.phase).as_deref(), Some("Pending"));
    let mut own = other.events("unserved").await?;
    own.retain(|event| event.reporting_controller.as_deref() == Some(DRIVER_NAME));
    assert_eq!((own, worker.disk.live()), (vec![], vec![]));
    other.claims.delete("unserved", &DeleteParams::default()).await?;
    other.tree.stop(PATIENCE).await?;
    Ok(tree.stop(PATIENCE).await?)
}

pub async fn a_claim_becomes_a_volume(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let worker = Worker::start(&cluster, "worker.example", "local").await?;
    worker.claim("data", "local", "1Gi").await?;
    worker.schedule("data", "worker.example").await?;
    let volume = worker.bound("data").await?;
    worker.delete("data", &volume).await?;
    Ok(worker.tree.stop(PATIENCE).await?)
}

/// The reclaimer selects the node, with the rights of its account.
pub async fn a_claim_with_immediate_binding_becomes_a_volume(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let class = json!({"metadata": {"name": "at-once"}, "provisioner": "local.granary.dev"});
    let classes = Api::<StorageClass>::all(cluster.admin());
    create(&classes, class).await?;
    let worker = Worker::start(&cluster, "immediate.example", "at-once").await?;
    let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "True", "reason": "Test"}]}});
    let nodes = Api::<Node>::all(worker.pods.admin.clone());
    merge_status(&nodes, "immediate.example", ready).await?;
    let client = worker.pods.client(RECLAIMER, Some("immediate.example")).await?;
    let reclaimer = start("reclaimer", client, reconciler::reclaim).await?;
    worker.claim("data", "at-once", "1Gi").await?;
    let volume = worker.bound("data").await?;
    worker.claim("large", "at-once", "200Gi").await?;
    let events = Api::<Event>::default_namespaced(worker.pods.admin.clone());
    until("the event about the claim without a node", async || {
        let found = events.list(&ListParams::default()).await?.items;
        let notes: Vec<_> = found.into_iter().filter_map(|event| event.note).collect();
        Ok((!notes.iter().any(|note| note.contains("1 with too little free space"))).then(|| notes.join("; ")))
    })
    .await?;
    worker.claims.delete("large", &DeleteParams::default()).await?;
    worker.delete("data", &volume).await?;
    reclaimer.stop(PATIENCE).await?;
    classes.delete("at-once", &DeleteParams::default()).await?;
    Ok(worker.tree.stop(PATIENCE).await?)
}
