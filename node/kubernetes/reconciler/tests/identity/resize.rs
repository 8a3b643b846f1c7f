//! Writes of a node to the status of claims, for expansions and changes of the class.

use std::sync::Arc;
use std::time::Duration;

use cluster::STORAGE_GROUP;
use envtest::{Cluster, Failure, merge, merge_status, remove, start};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client, ResourceExt as _};
use reconciler::CLASS;
use serde_json::{Value, json};

use crate::storage::{FOREIGN_CLAIM, SELECTED_NODE, on, retained, volume};
use crate::{Nodes, denied, until};

const VOLUME_NODE: &str = "local.granary.dev/node";
const FOREIGN: &str = "writes the size of volumes that are on it";
const NO_NODE: &str = "are named granary:node:NAME";

fn claim(name: &str, volume: Value) -> Result<PersistentVolumeClaim, serde_json::Error> {
    let metadata = json!({"name": name, "annotations": {VOLUME_NODE: "one"}});
    serde_json::from_value(envtest::claim(metadata, "none", json!({"volumeName": volume})))
}

async fn resize(claims: &Api<PersistentVolumeClaim>, name: &str) -> Result<PersistentVolumeClaim, kube::Error> {
    let condition = |kind: &str| json!({"type": kind, "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    let status = json!({
        "capacity": {"storage": "1Gi"},
        "allocatedResources": {"storage": "2Gi"},
        "allocatedResourceStatuses": {"storage": "ControllerResizeInProgress"},
        "conditions": [condition("Resizing"), condition("ControllerResizeError")],
    });
    merge_status(claims, name, json!({ "status": status })).await
}

fn modified(class: &str) -> Value {
    json!({"status": "InProgress", "targetVolumeAttributesClassName": class})
}

pub(crate) async fn bound(admin: &Client, name: &str) -> Result<(), Failure> {
    Api::all(admin.clone()).create(&PostParams::default(), &volume(name, &on("one"))).await?;
    let claims = Api::default_namespaced(admin.clone());
    claims.create(&PostParams::default(), &claim(name, name.into())?).await?;
    is_bound(admin, name).await
}

async fn is_bound(admin: &Client, name: &str) -> Result<(), Failure> {
    let claims = Api::<PersistentVolumeClaim>::default_namespaced(admin.clone());
    envtest::bound(&claims, name).await.map(drop)
}

pub(crate) async fn a_node_writes_the_size_of_its_own_claims_only(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let nodes = Nodes::of(&cluster).await?;
    bound(&nodes.admin, "grows").await?;
    let [own, other] = [nodes.own, nodes.other].map(Api::<PersistentVolumeClaim>::default_namespaced);
    denied(resize(&other, "grows").await, FOREIGN);
    let status = resize(&own, "grows").await?.status.unwrap_or_default();
    assert_eq!(status.allocated_resources.unwrap_or_default()["storage"].0, "2Gi");
    let done = json!({"status": {
        "capacity": {"storage": "2Gi"}, "allocatedResources": null, "allocatedResourceStatuses": null,
        "conditions": [],
    }});
    merge_status(&own, "grows", done).await?;
    denied(merge_status(&own, "grows", json!({"status": {"capacity": {"storage": "2047Mi"}}})).await, FOREIGN);

    // The requested class becomes the target, and the target the class of the volume.
    let admin = Api::<PersistentVolumeClaim>::default_namespaced(nodes.admin.clone());
    merge(&admin, "grows", json!({"spec": {"volumeAttributesClassName": "gold"}})).await?;
    let write = async |api: &Api<PersistentVolumeClaim>, status: Value| {
        merge_status(api, "grows", json!({ "status": status })).await
    };
    let condition = |kind: &str| json!({"type": kind, "status": "True"});
    let begun = json!({
        "modifyVolumeStatus": modified("gold"),
        "conditions": [condition("ModifyingVolume"), condition("ModifyVolumeError")],
    });
    denied(write(&other, begun.clone()).await, FOREIGN);
    denied(write(&own, json!({"modifyVolumeStatus": modified("iron")})).await, FOREIGN);
    denied(write(&own, json!({"currentVolumeAttributesClassName": "gold"})).await, FOREIGN);
    write(&own, begun).await?;
    let done = json!({"modifyVolumeStatus": null, "currentVolumeAttributesClassName": "gold", "conditions": []});
    let status = write(&own, done).await?.status.unwrap_or_default();
    assert_eq!(status.current_volume_attributes_class_name.as_deref(), Some("gold"));
    denied(write(&own, json!({"currentVolumeAttributesClassName": null})).await, FOREIGN);
    admin.delete("grows", &DeleteParams::default()).await?;
    remove(&Api::<PersistentVolume>::all(nodes.admin), "grows").await
}

/// Regression test: the policy required the scheduler's annotation, which a manually bound claim does not have.
pub(crate) async fn a_claim_bound_by_hand_is_of_the_node_of_its_pv(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let nodes = Nodes::of(&cluster).await?;
    let (volumes, claims) = (Api::all(nodes.admin.clone()), Api::default_namespaced(nodes.admin.clone()));
    let mut pv = volume("rebound", &on("one"));
    pv.spec.as_mut().expect("a spec").storage_class_name = Some(CLASS.to_owned());
    volumes.create(&PostParams::default(), &pv).await?;
    let mut rebound = claim("rebound", "rebound".into())?;
    // The user selects a node other than that of the PV.
    rebound.metadata.annotations = Some([(SELECTED_NODE.to_owned(), "two".to_owned())].into());
    rebound.spec.as_mut().expect("a spec").storage_class_name = Some(CLASS.to_owned());
    claims.create(&PostParams::default(), &rebound).await?;
    is_bound(&nodes.admin, "rebound").await?;
    let [own, other] = [nodes.own, nodes.other].map(Api::<PersistentVolumeClaim>::default_namespaced);
    for node in [&own, &other] {
        denied(resize(node, "rebound").await, FOREIGN);
        for annotation in [VOLUME_NODE, SELECTED_NODE] {
            denied(
                merge(node, "rebound", json!({"metadata": {"annotations": {annotation: "one"}}})).await,
                FOREIGN_CLAIM,
            );
        }
    }
    let reclaimer = start("reclaimer", nodes.admin.clone(), reconciler::reclaim).await?;
    merge(&claims, "rebound", json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}})).await?;
    until("the annotation with the node", async || {
        let found = claims.get("rebound").await?.annotations().get(VOLUME_NODE).cloned();
        Ok((found.as_deref() != Some("one")).then(|| format!("{found:?}")))
    })
    .await?;
    reclaimer.stop(Duration::from_secs(10)).await?;
    denied(resize(&other, "rebound").await, FOREIGN);
    resize(&own, "rebound").await?;
    claims.delete("rebound", &DeleteParams::default()).await?;
    remove(&volumes, "rebound").await
}

pub(crate) async fn the_selected_node_writes_the_size_of_the_volume_that_it_created(
    cluster: Arc<Cluster>,
) -> Result<(), Failure> {
    let nodes = Nodes::of(&cluster).await?;
    let claims = Api::<PersistentVolumeClaim>::default_namespaced(nodes.admin.clone());
    let mut waiting = claim("created", Value::Null)?;
    waiting.metadata.annotations = Some([(SELECTED_NODE.to_owned(), "one".to_owned())].into());
    let uid = claims.create(&PostParams::default(), &waiting).await?.uid().unwrap_or_default();
    let mut pv = retained(&uid, "one");
    let claim_ref = pv.spec.as_mut().and_then(|spec| spec.claim_ref.as_mut());
    claim_ref.expect("a claim").name = Some("created".to_owned());
    Api::<PersistentVolume>::all(nodes.own.clone()).create(&PostParams::default(), &pv).await?;
    is_bound(&nodes.admin, "created").await?;
    let [own, other] = [nodes.own.clone(), nodes.other].map(Api::<PersistentVolumeClaim>::default_namespaced);
    denied(resize(&other, "created").await, FOREIGN);
    resize(&own, "created").await?;
    claims.delete("created", &DeleteParams::default()).await?;
    remove(&Api::<PersistentVolume>::all(nodes.admin), &pv.name_any()).await
}

pub(crate) async fn a_node_changes_nothing_else_in_a_status(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let nodes = Nodes::of(&cluster).await?;
    let admin = Api::<PersistentVolumeClaim>::default_namespaced(nodes.admin);
    admin.create(&PostParams::default(), &claim("status", "some-volume".into())?).await?;
    let painted = json!({"type": "Painted", "status": "True"});
    merge_status(&admin, "status", json!({"status": {"conditions": [painted]}})).await?;
    let own = Api::<PersistentVolumeClaim>::default_namespaced(nodes.own);
    for change in [
        json!({"status": {"phase": "Lost"}}),
        json!({"status": {"accessModes": ["ReadWriteMany"]}}),
        json!({"status": {"conditions": []}}),
        json!({"status": {"conditions": [painted, {"type": "Unused", "status": "True"}]}}),
        // These writes are denied, because the claim requests no class.
        json!({"status": {"modifyVolumeStatus": modified("gold")}}),
        json!({"status": {"currentVolumeAttributesClassName": "gold"}}),
        json!({"status": {"currentVolumeAttributesClassName": "gold", "modifyVolumeStatus": modified("gold")}}),
        json!({"metadata": {"annotations": {VOLUME_NODE: "two"}}, "status": {"capacity": {"storage": "1Gi"}}}),
        json!({"metadata": {"annotations": {SELECTED_NODE: "two"}}, "status": {"capacity": {"storage": "1Gi"}}}),
        json!({"metadata": {"finalizers": ["example.invalid/held"]}}),
        json!({"metadata": {"labels": {"mine": "yes"}}}),
    ] {
        denied(merge_status(&own, "status", change).await, FOREIGN);
    }
    let with_others = json!({"status": {"conditions": [painted, {"type": "Resizing", "status": "True"}]}});
    merge_status(&own, "status", with_others).await?;
    remove(&admin, "status").await
}

pub(crate) async fn a_claim_without_a_volume_gets_no_size(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let nodes = Nodes::of(&cluster).await?;
    let admin = Api::default_namespaced(nodes.admin);
    admin.create(&PostParams::default(), &claim("unbound", Value::Null)?).await?;
    let own = Api::<PersistentVolumeClaim>::default_namespaced(nodes.own);
    denied(resize(&own, "unbound").await, FOREIGN);
    remove(&admin, "unbound").await
}

/// The empty node name must not match the missing node of a manually bound claim or PV.
pub(crate) async fn an_identity_without_a_node_writes_nothing(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let nodes = Nodes::of(&cluster).await?;
    let admin = Api::default_namespaced(nodes.admin);
    let mut by_hand = claim("by-hand", "some-volume".into())?;
    by_hand.metadata.annotations = None;
    admin.create(&PostParams::default(), &by_hand).await?;
    let nameless = [cluster.storage_of("").await?, cluster.impersonate("unnamed", &[STORAGE_GROUP]).await?];
    for identity in nameless {
        let claims = Api::<PersistentVolumeClaim>::default_namespaced(identity.clone());
        denied(resize(&claims, "by-hand").await, NO_NODE);
        let volumes = Api::<PersistentVolume>::all(identity);
        denied(volumes.create(&PostParams::default(), &volume("nowhere", &on(""))).await, NO_NODE);
    }
    let own = Api::<PersistentVolumeClaim>::default_namespaced(nodes.own);
    denied(resize(&own, "by-hand").await, FOREIGN);
    remove(&admin, "by-hand").await
}
