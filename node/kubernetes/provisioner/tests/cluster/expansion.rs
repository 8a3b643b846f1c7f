//! Volumes are expanded.

use std::sync::Arc;

use envtest::{Cluster, Failure, merge, merge_status, reached};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt as _;
use serde_json::{Value, json};
use units::Bytes;
use volume::VolumeId;

use crate::node::Node;

const GIB2: Bytes = Bytes::new(2 << 30);

async fn with_claim(cluster: &Cluster, namespace: &str, mode: &str) -> Result<(Node, VolumeId), Failure> {
    let node = Node::start(cluster, namespace).await?;
    node.make_class(json!({"allowVolumeExpansion": true})).await?;
    let id = node.volume("data", json!({"volumeMode": mode})).await?;
    Ok((node, id))
}

async fn kubelet(node: &Node, status: Value) -> Result<(), Failure> {
    merge_status(&node.claims(), "data", json!({ "status": status })).await?;
    Ok(())
}

async fn progress(node: &Node, wanted: &str) -> Result<PersistentVolumeClaim, Failure> {
    let what = format!("the expansion's state {wanted:?}");
    reached(&what, async || node.claims().get("data").await, |claim| state(claim) == wanted).await
}

fn state(claim: &PersistentVolumeClaim) -> String {
    let states = claim.status.as_ref().and_then(|status| status.allocated_resource_statuses.as_ref());
    states.and_then(|states| states.get("storage")).cloned().unwrap_or_default()
}

fn conditions(claim: &PersistentVolumeClaim) -> Vec<String> {
    let conditions = claim.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.map(|condition| condition.type_.clone()).filter(|type_| type_.contains("Resiz")).collect()
}

fn capacity(claim: &PersistentVolumeClaim) -> Option<String> {
    Some(claim.status.as_ref()?.capacity.as_ref()?.get("storage")?.0.clone())
}

async fn has(node: &Node, id: &VolumeId, text: &str, size: Bytes) -> Result<(), Failure> {
    let (what, read) = (format!("the capacity {text}"), async || node.claims().get("data").await);
    let claim = reached(&what, read, |claim| capacity(claim).as_deref() == Some(text)).await?;
    assert_eq!((state(&claim), conditions(&claim)), (String::new(), vec![]));
    let pv = node.pvs().get(id.as_str()).await?;
    assert_eq!(pv.spec.unwrap_or_default().capacity.unwrap_or_default()["storage"].0, text);
    assert_eq!(node.volumes.record(id).map(|record| record.size), Some(size));
    Ok(())
}

pub async fn a_filesystem_grows_without_the_kubelet(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let (node, id) = with_claim(&cluster, "grow", "Filesystem").await?;
    // The request is rounded up to whole blocks.
    node.enlarge("data", "2147483647").await?;
    has(&node, &id, "2Gi", GIB2).await?;
    assert!(node.event("data", "Resizing").await?.contains("from 1 GiB to 2 GiB"));
    assert!(node.event("data", "VolumeResizeSuccessful").await?.contains("2 GiB"));
    node.end().await
}

pub async fn an_attached_disk_waits_for_the_kubelet(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let (node, id) = with_claim(&cluster, "grow-online", "Block").await?;
    node.volumes.set_attached(&id, true);
    node.enlarge("data", "2Gi").await?;
    let claim = progress(&node, "NodeResizePending").await?;
    assert_eq!(capacity(&claim).as_deref(), Some("1Gi"), "the device of the pod is not expanded");
    assert_eq!(conditions(&claim), ["FileSystemResizePending"]);
    let allocated = claim.status.and_then(|status| status.allocated_resources).unwrap_or_default();
    assert_eq!(allocated["storage"].0, "2Gi", "the size of the kubelet's request");
    assert_eq!(node.volumes.record(&id).map(|record| record.size), Some(GIB2));
    kubelet(&node, json!({"allocatedResourceStatuses": {"storage": "NodeResizeInProgress"}})).await?;
    // A further request waits for the kubelet.
    node.enlarge("data", "3Gi").await?;
    let grown = |size: &str| {
        let none = json!({"storage": null});
        json!({"allocatedResourceStatuses": none, "capacity": {"storage": size}, "conditions": []})
    };
    kubelet(&node, grown("2Gi")).await?;
    let claim = progress(&node, "NodeResizePending").await?;
    assert_eq!(capacity(&claim).as_deref(), Some("2Gi"));
    kubelet(&node, grown("3Gi")).await?;
    has(&node, &id, "3Gi", Bytes::new(3 << 30)).await?;
    node.end().await
}

pub async fn a_disk_whose_pod_ends_is_finished_without_the_kubelet(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let (mut node, id) = with_claim(&cluster, "grow-left", "Block").await?;
    node.volumes.set_attached(&id, true);
    node.enlarge("data", "2Gi").await?;
    progress(&node, "NodeResizePending").await?;
    node.volumes.set_attached(&id, false);
    // At start, the provisioner checks at once.
    node.halt().await?;
    node.run().await?;
    has(&node, &id, "2Gi", GIB2).await?;
    node.end().await
}

pub async fn a_request_that_is_too_large_can_be_lowered(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let (node, id) = with_claim(&cluster, "too-large", "Filesystem").await?;
    node.enlarge("data", "200Gi").await?;
    let claim = progress(&node, "ControllerResizeInfeasible").await?;
    assert_eq!(capacity(&claim).as_deref(), Some("1Gi"));
    assert_eq!(conditions(&claim), ["Resizing", "ControllerResizeError"]);
    node.event_with("data", "VolumeResizeFailed", &["keeps 1 GiB", "free"]).await?;
    assert_eq!(node.volumes.record(&id).map(|record| record.size), Some(Bytes::GIB), "nothing changed");
    // A smaller request does not wait for the back-off of the first one.
    node.enlarge("data", "2Gi").await?;
    has(&node, &id, "2Gi", GIB2).await?;
    node.enlarge("data", "9223372036854775807").await?;
    progress(&node, "ControllerResizeInfeasible").await?;
    node.enlarge("data", "3Gi").await?;
    has(&node, &id, "3Gi", Bytes::new(3 << 30)).await?;
    node.end().await
}

pub async fn an_expansion_continues_beside_other_changes_of_its_claim(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let (node, id) = with_claim(&cluster, "beside", "Filesystem").await?;
    let other = json!({"type": "Painted", "status": "True", "message": "blue"});
    kubelet(&node, json!({"conditions": [other]})).await?;
    let claims = node.claims();
    let disturb = async {
        for number in 0..40 {
            merge(&claims, "data", json!({"metadata": {"labels": {"count": number.to_string()}}})).await?;
        }
        Ok::<_, Failure>(())
    };
    let (asked, disturbed) = futures::join!(node.enlarge("data", "2Gi"), disturb);
    asked?;
    disturbed?;
    has(&node, &id, "2Gi", GIB2).await?;
    let claim = node.claims().get("data").await?;
    assert_eq!(claim.labels().get("count").map(String::as_str), Some("39"));
    let kept = claim.status.and_then(|status| status.conditions).unwrap_or_default();
    assert!(kept.iter().any(|condition| condition.type_ == "Painted"), "{kept:?}");
    node.end().await
}

pub async fn an_interrupted_expansion_is_finished(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let (mut node, id) = with_claim(&cluster, "cut-short", "Filesystem").await?;
    node.halt().await?;
    node.enlarge("data", "2Gi").await?;
    let begun = json!({"storage": "ControllerResizeInProgress"});
    kubelet(&node, json!({"allocatedResourceStatuses": begun, "allocatedResources": {"storage": "2Gi"}})).await?;
    // The volume is expanded on the disk only.
    volume::Volumes::expand(&*node.volumes, &id, GIB2)?;
    node.run().await?;
    has(&node, &id, "2Gi", GIB2).await?;
    node.end().await
}
