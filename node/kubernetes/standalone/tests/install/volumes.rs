//! From a claim to a volume, with a pod's token. The disk is a fake; the test plays the scheduler.

use std::collections::BTreeMap;
use std::sync::Arc;

use envtest::{Cluster, Failure, FakeVolumes, PATIENCE, Seen, eventually};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::CSIStorageCapacity;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use prometheus::Registry;
use serde_json::json;
use standalone::provisioning::{self, Settings};
use supervisor::Supervisor;
use tokio::sync::watch;
use units::Bytes;

use crate::accounts::{Pods, SELECTED_NODE};

pub async fn a_claim_becomes_a_volume(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let pods = Pods::start(&cluster).await?;
    pods.node("worker.example", "worker.example").await?;
    let disk = Arc::new(FakeVolumes::with_size(Bytes::new(100 << 30)));
    let settings = Settings {
        client: pods.client("granary-storage", Some("worker.example")).await?,
        node: "worker.example".parse()?,
        volumes: disk.clone(),
        metrics: provisioner::Metrics::register(&Registry::new(), disk.clone())?,
        register_again: Arc::new(|| {}),
        revoked: watch::channel(BTreeMap::new()).1,
        notices: provisioner::notices().1,
    };
    let tree = Supervisor::start("cluster", supervisor::Settings::default(), move |cx| {
        provisioning::run(cx, settings.clone())
    });
    tree.handle().healthy().await?;

    let capacities = Api::<CSIStorageCapacity>::namespaced(pods.admin.clone(), "kube-system");
    eventually(PATIENCE, "the capacity of the node", async || {
        let found = capacities.list(&ListParams::default()).await?.items;
        let is_published = found.iter().any(|object| object.name_any().ends_with(".worker.example.local.granary.dev"));
        Ok::<_, kube::Error>(if is_published { Seen::Done(()) } else { Seen::NotYet(format!("{found:?}")) })
    })
    .await?;

    let claims = Api::<PersistentVolumeClaim>::default_namespaced(pods.admin.clone());
    let claim = json!({
        "metadata": {"name": "data"},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": "local",
        },
    });
    claims.create(&PostParams::default(), &serde_json::from_value(claim)?).await?;
    let scheduled = json!({"metadata": {"annotations": {
        SELECTED_NODE: "worker.example", "volume.kubernetes.io/storage-provisioner": "local.granary.dev",
    }}});
    claims.patch("data", &PatchParams::default(), &Patch::Merge(scheduled)).await?;
    let volume = eventually(PATIENCE, "the volume of the claim", async || {
        let found = claims.get("data").await?;
        let phase = found.status.and_then(|status| status.phase).unwrap_or_default();
        Ok::<_, kube::Error>(match found.spec.and_then(|spec| spec.volume_name) {
            Some(volume) if phase == "Bound" => Seen::Done(volume),
            other => Seen::NotYet(format!("{phase} {other:?}")),
        })
    })
    .await?;
    assert_eq!(disk.live(), [volume.parse()?]);

    claims.delete("data", &DeleteParams::default()).await?;
    let volumes = Api::<PersistentVolume>::all(pods.admin.clone());
    eventually(PATIENCE, "the end of the volume", async || {
        let (found, left) = (volumes.get_opt(&volume).await?, disk.live().len() + disk.retired().len());
        Ok::<_, kube::Error>(match found {
            None if left == 0 => Seen::Done(()),
            found => Seen::NotYet(format!("PV: {}, records: {left}", found.is_some())),
        })
    })
    .await?;
    Ok(tree.stop(PATIENCE).await?)
}
