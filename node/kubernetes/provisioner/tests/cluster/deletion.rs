//! Volumes are deleted, or kept.

use std::path::Path;
use std::sync::Arc;

use envtest::{Cluster, Failure, merge};
use kube::ResourceExt as _;
use kube::api::DeleteParams;
use serde_json::json;
use volume::VolumeId;

use crate::node::{Node, until};

pub async fn a_pv_deleted_before_its_claim_leaks_no_data(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let node = Node::start_apart(&cluster, "delete-pv").await?;
    let pv = node.provisioned("data", json!({})).await?;
    node.pvs().delete(&pv.name_any(), &DeleteParams::default()).await?;
    assert!(node.pvs().get(&pv.name_any()).await?.metadata.deletion_timestamp.is_some());
    assert_eq!(node.volumes.live(), [pv.name_any().parse()?]);
    node.delete("data", &pv).await?;
    node.end().await
}

pub async fn retain_keeps_pv_and_data(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let node = Node::start(&cluster, "retain").await?;
    let pv = node.provisioned("data", json!({})).await?;
    node.set_policy(&pv.name_any(), "Retain").await?;
    until("the PV without the driver's finalizer", async || {
        let finalizers = node.pvs().get(&pv.name_any()).await?.finalizers().to_owned();
        Ok(finalizers.iter().any(|name| name == provisioner::FINALIZER).then(|| finalizers.join(" ")))
    })
    .await?;
    node.claims().delete("data", &DeleteParams::default()).await?;
    node.phase(&pv.name_any(), "Released").await?;
    // When another claim was created and deleted, the provisioner has processed the first PV.
    let other = node.provisioned("other", json!({})).await?;
    node.delete("other", &other).await?;
    let id: VolumeId = pv.name_any().parse()?;
    assert_eq!(node.volumes.live(), std::slice::from_ref(&id));
    node.set_policy(&pv.name_any(), "Delete").await?;
    node.gone(&pv).await?;
    node.end().await
}

/// The volume is in the trash as if a deletion had ended between the trash and the PV, and could not read the PV again.
/// The running provisioner compares disk and cluster only minutes later. A volume that was restored can be deleted.
pub async fn retain_restores_the_data_without_a_sweep(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let node = Node::start(&cluster, "retain-trash").await?;
    let id = node.volume("data", json!({})).await?;
    node.volumes.retire(&id);
    assert_eq!(node.volumes.live(), []);
    for policy in ["Retain", "Delete"] {
        node.set_policy(id.as_str(), policy).await?;
        node.live(&id).await?;
    }
    node.delete("data", &node.pvs().get(id.as_str()).await?).await?;
    node.end().await
}

pub async fn a_second_pv_of_the_same_volume_keeps_its_data(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let node = Node::start_apart(&cluster, "second").await?;
    let pv = node.provisioned("data", json!({})).await?;
    node.second_pv(&pv, json!({"name": "by-hand", "annotations": pv.annotations()})).await?;
    node.claims().delete("data", &DeleteParams::default()).await?;
    node.event_with(&pv.name_any(), "VolumeFailedDelete", &["by-hand"]).await?;
    assert_eq!(node.volumes.live(), [pv.name_any().parse()?]);
    node.pvs().delete("by-hand", &DeleteParams::default()).await?;
    node.gone(&pv).await?;
    node.end().await
}

pub async fn a_pv_created_during_the_deletion_restores_the_data(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let mut node = Node::start_apart(&cluster, "restored").await?;
    let id = node.volume("data", json!({})).await?;
    node.halt().await?;
    node.claims().delete("data", &DeleteParams::default()).await?;
    node.phase(id.as_str(), "Released").await?;
    node.volumes.retire(&id);
    assert_eq!(node.volumes.live(), []);
    let pv = node.pvs().get(id.as_str()).await?;
    merge(&node.pvs(), id.as_str(), json!({"metadata": {"finalizers": null}})).await?;
    node.pvs().delete(id.as_str(), &DeleteParams::default()).await?;
    node.second_pv(&pv, json!({"name": "again-by-hand"})).await?;
    node.run().await?;
    node.live(&id).await?;
    node.pvs().delete("again-by-hand", &DeleteParams::default()).await?;
    node.end().await
}

pub async fn a_volume_that_cannot_be_removed_delays_no_other(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let node = Node::start_apart(&cluster, "stuck").await?;
    let mut ids = Vec::new();
    for name in ["stuck", "other"] {
        node.claim_here(name, json!({})).await?;
        ids.push(node.bound(name).await?.name_any().parse::<VolumeId>()?);
    }
    node.volumes.set_stuck(&ids[0], true);
    let stuck = node.pvs().get(ids[0].as_str()).await?;
    let other = node.pvs().get(ids[1].as_str()).await?;
    node.claims().delete("stuck", &DeleteParams::default()).await?;
    until("the stuck volume in the trash", async || {
        let retired = node.volumes.retired();
        Ok((retired != ids[..1]).then(|| format!("{retired:?}")))
    })
    .await?;
    node.delete("other", &other).await?;
    assert_eq!(node.volumes.retired(), ids[..1]);
    node.volumes.set_stuck(&ids[0], false);
    node.gone(&stuck).await?;
    node.end().await
}

/// The claim ends while its volume is published, as if its finalizer was removed, or its pod force-deleted.
pub async fn a_published_volume_is_kept_until_it_is_unpublished(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let node = Node::start_apart(&cluster, "published").await?;
    let pv = node.provisioned("data", json!({})).await?;
    let id: VolumeId = pv.name_any().parse()?;
    node.volumes.set_published(&id, Some(Path::new("/data/kubelet/pods/0b5e/volumes/mount")));
    node.claims().delete("data", &DeleteParams::default()).await?;
    node.event_with(&pv.name_any(), "VolumeFailedDelete", &["/data/kubelet/pods/0b5e/volumes/mount"]).await?;
    assert_eq!(node.volumes.live(), std::slice::from_ref(&id));
    assert!(node.pvs().get(id.as_str()).await?.metadata.deletion_timestamp.is_none());
    node.volumes.set_published(&id, None);
    node.gone(&pv).await?;
    node.end().await
}
