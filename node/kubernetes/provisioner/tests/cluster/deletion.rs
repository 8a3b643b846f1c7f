//! Volumes go, and stay.

use std::path::Path;
use std::sync::Arc;

use envtest::{Cluster, Failure, PATIENCE, Seen, eventually};
use kube::ResourceExt as _;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use units::Bytes;
use volume::VolumeId;

use crate::node::Node;

pub async fn a_deleted_claim_takes_its_volume_along(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let node = Node::start(&cluster, "delete").await?;
    node.claim_here("data", json!({})).await?;
    let pv = node.bound("data").await?;
    node.claims().delete("data", &DeleteParams::default()).await?;
    node.gone(&pv).await?;
    node.end().await
}

pub async fn a_pv_that_is_deleted_before_its_claim_leaks_no_data(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let node = Node::start(&cluster, "delete-pv").await?;
    node.claim_here("data", json!({})).await?;
    let pv = node.bound("data").await?;
    node.pvs().delete(&pv.name_any(), &DeleteParams::default()).await?;
    // The claim still has it.
    assert!(node.pvs().get(&pv.name_any()).await?.metadata.deletion_timestamp.is_some());
    assert_eq!(node.volumes.live(), [pv.name_any().parse()?]);
    node.claims().delete("data", &DeleteParams::default()).await?;
    node.gone(&pv).await?;
    node.end().await
}

pub async fn retain_keeps_pv_and_data(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let node = Node::start(&cluster, "retain").await?;
    node.claim_here("data", json!({})).await?;
    let pv = node.bound("data").await?;
    let retain = Patch::Merge(json!({"spec": {"persistentVolumeReclaimPolicy": "Retain"}}));
    node.pvs().patch(&pv.name_any(), &PatchParams::default(), &retain).await?;
    eventually(PATIENCE, "the PV without our finalizer", async || {
        let finalizers = node.pvs().get(&pv.name_any()).await?.finalizers().to_owned();
        let ours = finalizers.iter().any(|name| name == provisioner::FINALIZER);
        Ok::<_, kube::Error>(if ours { Seen::NotYet(finalizers.join(" ")) } else { Seen::Done(()) })
    })
    .await?;
    node.claims().delete("data", &DeleteParams::default()).await?;
    eventually(PATIENCE, "the PV's phase Released", async || {
        let phase = node.pvs().get(&pv.name_any()).await?.status.and_then(|status| status.phase);
        Ok::<_, kube::Error>(match phase.as_deref() {
            Some("Released") => Seen::Done(()),
            other => Seen::NotYet(format!("{other:?}")),
        })
    })
    .await?;
    // Another claim goes through its whole life meanwhile: whatever was to be done was done.
    node.claim_here("other", json!({})).await?;
    let other = node.bound("other").await?;
    node.claims().delete("other", &DeleteParams::default()).await?;
    node.gone(&other).await?;
    let id: VolumeId = pv.name_any().parse()?;
    assert_eq!(node.volumes.live(), std::slice::from_ref(&id));
    // With policy Delete again, it goes.
    let delete = Patch::Merge(json!({"spec": {"persistentVolumeReclaimPolicy": "Delete"}}));
    node.pvs().patch(&pv.name_any(), &PatchParams::default(), &delete).await?;
    node.gone(&pv).await?;
    node.end().await
}

pub async fn a_second_pv_of_the_same_volume_keeps_its_data(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let node = Node::start(&cluster, "second").await?;
    node.claim_here("data", json!({})).await?;
    let pv = node.bound("data").await?;
    let mut second = serde_json::to_value(&pv)?;
    second["metadata"] = json!({"name": "by-hand", "annotations": pv.annotations()});
    second["spec"]["claimRef"] = Value::Null;
    second["spec"]["persistentVolumeReclaimPolicy"] = "Retain".into();
    node.pvs().create(&PostParams::default(), &serde_json::from_value(second)?).await?;
    node.claims().delete("data", &DeleteParams::default()).await?;
    let note = node.event(&pv.name_any(), "VolumeFailedDelete").await?;
    assert!(note.contains("by-hand"), "{note}");
    assert_eq!(node.volumes.live(), [pv.name_any().parse()?]);
    node.pvs().delete("by-hand", &DeleteParams::default()).await?;
    node.gone(&pv).await?;
    node.end().await
}

/// A volume whose deletion began and was cut short before its PV went.
async fn half_deleted(cluster: &Cluster, namespace: &str) -> Result<(Node, VolumeId), Failure> {
    let mut node = Node::start(cluster, namespace).await?;
    node.claim_here("data", json!({})).await?;
    let pv = node.bound("data").await?;
    let id: VolumeId = pv.name_any().parse()?;
    node.settled(&id).await?;
    node.halt().await?;
    node.claims().delete("data", &DeleteParams::default()).await?;
    node.phase(&pv.name_any(), "Released").await?;
    node.volumes.retire(&id);
    assert_eq!(node.volumes.live(), []);
    Ok((node, id))
}

pub async fn a_deletion_that_became_retain_is_taken_back(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let (mut node, id) = half_deleted(&cluster, "thought-better").await?;
    let retain = Patch::Merge(json!({"spec": {"persistentVolumeReclaimPolicy": "Retain"}}));
    node.pvs().patch(id.as_str(), &PatchParams::default(), &retain).await?;
    node.run().await?;
    node.live(&id).await?;
    assert!(node.pvs().get(id.as_str()).await?.metadata.deletion_timestamp.is_none());
    let delete = Patch::Merge(json!({"spec": {"persistentVolumeReclaimPolicy": "Delete"}}));
    let pv = node.pvs().patch(id.as_str(), &PatchParams::default(), &delete).await?;
    node.gone(&pv).await?;
    node.end().await
}

pub async fn a_pv_made_after_the_deletion_began_brings_the_data_back(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let (mut node, id) = half_deleted(&cluster, "brought-back").await?;
    let pv = node.pvs().get(id.as_str()).await?;
    let bare = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    node.pvs().patch(id.as_str(), &PatchParams::default(), &bare).await?;
    node.pvs().delete(id.as_str(), &DeleteParams::default()).await?;
    let mut second = serde_json::to_value(&pv)?;
    second["metadata"] = json!({"name": "again-by-hand"});
    second["spec"]["claimRef"] = Value::Null;
    second["spec"]["persistentVolumeReclaimPolicy"] = "Retain".into();
    node.pvs().create(&PostParams::default(), &serde_json::from_value(second)?).await?;
    node.run().await?;
    node.live(&id).await?;
    node.pvs().delete("again-by-hand", &DeleteParams::default()).await?;
    node.end().await
}

pub async fn a_volume_that_cannot_be_removed_holds_up_no_other(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let node = Node::with_disk(&cluster, "stuck", Bytes::new(100 << 30)).await?;
    let mut ids = Vec::new();
    for name in ["stuck", "other"] {
        node.claim_here(name, json!({})).await?;
        ids.push(node.bound(name).await?.name_any().parse::<VolumeId>()?);
    }
    node.volumes.set_stuck(&ids[0], true);
    let stuck = node.pvs().get(ids[0].as_str()).await?;
    let other = node.pvs().get(ids[1].as_str()).await?;
    node.claims().delete("stuck", &DeleteParams::default()).await?;
    eventually(PATIENCE, "the stuck volume in the trash", async || {
        let retired = node.volumes.retired();
        Ok::<_, kube::Error>(if retired == ids[..1] { Seen::Done(()) } else { Seen::NotYet(format!("{retired:?}")) })
    })
    .await?;
    node.claims().delete("other", &DeleteParams::default()).await?;
    node.gone(&other).await?;
    assert_eq!(node.volumes.retired(), ids[..1]);
    node.volumes.set_stuck(&ids[0], false);
    node.gone(&stuck).await?;
    node.end().await
}

/// The claim's finalizer was removed by hand, or its pod was force-deleted.
pub async fn a_published_volume_is_kept_until_it_is_unpublished(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let node = Node::start(&cluster, "published").await?;
    node.claim_here("data", json!({})).await?;
    let pv = node.bound("data").await?;
    let id: VolumeId = pv.name_any().parse()?;
    node.volumes.set_published(&id, Some(Path::new("/data/kubelet/pods/0b5e/volumes/mount")));
    node.claims().delete("data", &DeleteParams::default()).await?;
    let note = node.event(&pv.name_any(), "VolumeFailedDelete").await?;
    assert!(note.contains("/data/kubelet/pods/0b5e/volumes/mount"), "{note}");
    assert_eq!(node.volumes.live(), std::slice::from_ref(&id));
    assert!(node.pvs().get(id.as_str()).await?.metadata.deletion_timestamp.is_none());
    node.volumes.set_published(&id, None);
    node.gone(&pv).await?;
    node.end().await
}
