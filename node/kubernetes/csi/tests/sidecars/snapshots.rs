//! Snapshots are taken by csi-snapshotter.

use std::sync::Arc;
use std::time::Duration;

use csi::Provisioner;
use envtest::{Cluster, Failure, create, gone, reached, remove};
use kube::ResourceExt as _;
use serde_json::{Value, json};
use volume::VolumeId;

use crate::claims::{block, sized};
use crate::node::{Node, PROVISIONER, SNAPSHOTTER, beside};

const STOP: Duration = Duration::from_secs(20);

pub async fn a_snapshot_is_taken_restored_and_deleted(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let controller = cluster.start_snapshots().await?;
    let programs = [PROVISIONER, SNAPSHOTTER];
    beside(&cluster, "snapshot", Provisioner::External, &programs, async |node: &Node| {
        let source = node.volume("data", block(json!({}))).await?;
        node.volumes.set_passes(3);
        let snapshots = &node.snapshots.snapshots;
        let snapshot = json!({
            "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot", "metadata": {"name": "before"},
            "spec": {"source": {"persistentVolumeClaimName": "data"}},
        });
        let uid = create(snapshots, snapshot).await?.uid().unwrap_or_default();
        let id: VolumeId = format!("snapshot-{uid}").parse()?;
        let read = async || Ok::<_, kube::Error>(snapshots.get("before").await?.data["status"].take());
        let status = reached("the snapshot", read, |status: &Value| status["readyToUse"] == true).await?;
        assert_eq!(status["restoreSize"], "1Gi");
        let content = status["boundVolumeSnapshotContentName"].as_str().unwrap_or_default();
        let found = node.snapshots.contents.get(content).await?;
        assert_eq!(found.data["status"]["snapshotHandle"], id.as_str());
        assert_eq!(node.volumes.source(&id), Some(source.clone()));
        let record = node.volumes.record(&id).expect("the snapshot has a record");
        assert!(record.mode.is_snapshot(), "{record:?}");
        // The record has the object because of `--extra-create-metadata`.
        assert_eq!((record.claim.namespace, record.claim.name), (node.name.clone(), "before".to_owned()));

        // The snapshot outlives its source.
        node.delete("data", &source).await?;
        let of_snapshot = json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "before"});
        let fields = block(json!({"dataSource": of_snapshot, "resources": sized("2Gi")}));
        let restored = node.volume("restored", fields).await?;
        let is_larger = |pv: &Value| pv["spec"]["capacity"]["storage"] == "2Gi";
        reached("the capacity of the PV", async || node.pv(&restored).await, is_larger).await?;
        assert_eq!(node.volumes.source(&restored), Some(id.clone()));

        remove(snapshots, "before").await?;
        gone(snapshots, "before").await?;
        gone(&node.snapshots.contents, content).await?;
        assert_eq!(node.volumes.record(&id), None, "the snapshot is removed before its content");
        node.delete("restored", &restored).await
    })
    .await?;
    controller.stop(STOP).await?;
    Ok(())
}
