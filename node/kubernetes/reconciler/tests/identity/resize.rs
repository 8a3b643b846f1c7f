//! Writes of a node to the status of claims, for expansions and changes of the class.

use std::sync::Arc;
use std::time::Duration;

use cluster::STORAGE_GROUP;
use envtest::{Cluster, Failure};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt as _};
use reconciler::CLASS;
use serde_json::{Value, json};
use supervisor::{Settings, Supervisor};

use crate::storage::{FOREIGN_CLAIM, SELECTED_NODE, on, retained, volume};
use crate::{Nodes, denied, until};

const VOLUME_NODE: &str = "local.granary.dev/node";
const FOREIGN: &str = "writes the size of volumes that are on it";
const NO_NODE: &str = "are named granary:node:NAME";

fn claim(name: &str, volume: Value) -> Result<PersistentVolumeClaim, serde_json::Error> {
    let metadata = json!({"name": name, "annotations": {VOLUME_NODE: "one"}});
    serde_json::from_value(envtest::claim(metadata, "none", json!({"volumeName": volume})))
}

fn resized() -> Patch<Value> {
    let condition = |kind: &str| json!({"type": kind, "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    Patch::Merge(json!({"status": {
        "capacity": {"storage": "1Gi"},
        "allocatedResources": {"storage": "2Gi"},
        "allocatedResourceStatuses": {"storage": "ControllerResizeInProgress"},
        "conditions": [condition("Resizing"), condition("ControllerResizeError")],
    }}))
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
    until("the claim's phase Bound", async || {
        let phase = claims.get(name).await?.status.and_then(|status| status.phase).unwrap_or_default();
        Ok((phase != "Bound").then_some(phase))
    })
    .await
}

pub(crate) async fn a_node_writes_the_size_of_its_own_claims_only(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let nodes = Nodes::of(&cluster).await?;
    bound(&nodes.admin, "grows").await?;
    let (own, other) = (
        Api::<PersistentVolumeClaim>::default_namespaced(nodes.own),
        Api::<PersistentVolumeClaim>::default_namespaced(nodes.other),
    );
    denied(other.patch_status("grows", &PatchParams::default(), &resized()).await, FOREIGN);
    let status = own.patch_status("grows", &PatchParams::default(), &resized()).await?.status.unwrap_or_default();
    assert_eq!(status.allocated_resources.unwrap_or_default()["storage"].0, "2Gi");
    let done = json!({"status": {
        "capacity": {"storage": "2Gi"}, "allocatedResources": null, "allocatedResourceStatuses": null,
        "conditions": [],
    }});
    own.patch_status("grows", &PatchParams::default(), &Patch::Merge(done)).await?;
    let smaller = Patch::Merge(json!({"status": {"capacity": {"storage": "2047Mi"}}}));
    denied(own.patch_status("grows", &PatchParams::default(), &smaller).await, FOREIGN);

    // The requested class becomes the target, and the target the class of the volume.
    let params = PatchParams::default();
    let admin = Api::<PersistentVolumeClaim>::default_namespaced(nodes.admin.clone());
    let gold = Patch::Merge(json!({"spec": {"volumeAttributesClassName": "gold"}}));
    admin.patch("grows", &params, &gold).await?;
    let write = async |api: &Api<PersistentVolumeClaim>, status: Value| {
        api.patch_status("grows", &params, &Patch::Merge(json!({ "status": status }))).await
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
    Api::<PersistentVolumeClaim>::default_namespaced(nodes.admin.clone())
        .delete("grows", &DeleteParams::default())
        .await?;
    Api::<PersistentVolume>::all(nodes.admin).delete("grows", &DeleteParams::default()).await?;
    Ok(())
}

/// The policy required the annotation of the scheduler, which such a claim does not have.
pub(crate) async fn a_claim_bound_by_hand_is_of_the_node_of_its_pv(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let nodes = Nodes::of(&cluster).await?;
    let (volumes, claims) = (Api::all(nodes.admin.clone()), Api::default_namespaced(nodes.admin.clone()));
    let mut pv = volume("rebound", &on("one"));
    pv.spec.as_mut().expect("a spec").storage_class_name = Some(CLASS.to_owned());
    volumes.create(&PostParams::default(), &pv).await?;
    let mut rebound = claim("rebound", "rebound".into())?;
    // A user selects another node than that of the PV.
    rebound.metadata.annotations = Some([(SELECTED_NODE.to_owned(), "two".to_owned())].into());
    rebound.spec.as_mut().expect("a spec").storage_class_name = Some(CLASS.to_owned());
    claims.create(&PostParams::default(), &rebound).await?;
    is_bound(&nodes.admin, "rebound").await?;
    let [own, other] = [nodes.own, nodes.other].map(Api::<PersistentVolumeClaim>::default_namespaced);
    let params = PatchParams::default();
    for node in [&own, &other] {
        denied(node.patch_status("rebound", &params, &resized()).await, FOREIGN);
        for annotation in [VOLUME_NODE, SELECTED_NODE] {
            let annotated = Patch::Merge(json!({"metadata": {"annotations": {annotation: "one"}}}));
            denied(node.patch("rebound", &params, &annotated).await, FOREIGN_CLAIM);
        }
    }
    let client = nodes.admin.clone();
    let reclaimer =
        Supervisor::start("reclaimer", Settings::default(), move |cx| reconciler::reclaim(cx, client.clone()));
    let more = Patch::Merge(json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}}));
    claims.patch("rebound", &params, &more).await?;
    until("the annotation with the node", async || {
        let found = claims.get("rebound").await?.annotations().get(VOLUME_NODE).cloned();
        Ok((found.as_deref() != Some("one")).then(|| format!("{found:?}")))
    })
    .await?;
    reclaimer.stop(Duration::from_secs(10)).await?;
    denied(other.patch_status("rebound", &params, &resized()).await, FOREIGN);
    own.patch_status("rebound", &params, &resized()).await?;
    claims.delete("rebound", &DeleteParams::default()).await?;
    volumes.delete("rebound", &DeleteParams::default()).await?;
    Ok(())
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
    denied(other.patch_status("created", &PatchParams::default(), &resized()).await, FOREIGN);
    own.patch_status("created", &PatchParams::default(), &resized()).await?;
    claims.delete("created", &DeleteParams::default()).await?;
    Api::<PersistentVolume>::all(nodes.admin).delete(&pv.name_any(), &DeleteParams::default()).await?;
    Ok(())
}

pub(crate) async fn a_node_changes_nothing_else_in_a_status(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let nodes = Nodes::of(&cluster).await?;
    let admin = Api::<PersistentVolumeClaim>::default_namespaced(nodes.admin);
    admin.create(&PostParams::default(), &claim("status", "some-volume".into())?).await?;
    let painted = json!({"type": "Painted", "status": "True"});
    let others = json!({"status": {"conditions": [painted]}});
    admin.patch_status("status", &PatchParams::default(), &Patch::Merge(others)).await?;
    let own = Api::<PersistentVolumeClaim>::default_namespaced(nodes.own);
    for change in [
        json!({"status": {"phase": "Lost"}}),
        json!({"status": {"accessModes": ["ReadWriteMany"]}}),
        json!({"status": {"conditions": []}}),
        json!({"status": {"conditions": [painted, {"type": "Unused", "status": "True"}]}}),
        // The claim requests no class.
        json!({"status": {"modifyVolumeStatus": modified("gold")}}),
        json!({"status": {"currentVolumeAttributesClassName": "gold"}}),
        json!({"status": {"currentVolumeAttributesClassName": "gold", "modifyVolumeStatus": modified("gold")}}),
        json!({"metadata": {"annotations": {VOLUME_NODE: "two"}}, "status": {"capacity": {"storage": "1Gi"}}}),
        json!({"metadata": {"annotations": {SELECTED_NODE: "two"}}, "status": {"capacity": {"storage": "1Gi"}}}),
        json!({"metadata": {"finalizers": ["example.invalid/held"]}}),
        json!({"metadata": {"labels": {"mine": "yes"}}}),
    ] {
        denied(own.patch_status("status", &PatchParams::default(), &Patch::Merge(&change)).await, FOREIGN);
    }
    let with_others = json!({"status": {"conditions": [painted, {"type": "Resizing", "status": "True"}]}});
    own.patch_status("status", &PatchParams::default(), &Patch::Merge(with_others)).await?;
    admin.delete("status", &DeleteParams::default()).await?;
    Ok(())
}

pub(crate) async fn a_claim_without_a_volume_gets_no_size(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let nodes = Nodes::of(&cluster).await?;
    let admin = Api::default_namespaced(nodes.admin);
    admin.create(&PostParams::default(), &claim("unbound", Value::Null)?).await?;
    let own = Api::<PersistentVolumeClaim>::default_namespaced(nodes.own);
    denied(own.patch_status("unbound", &PatchParams::default(), &resized()).await, FOREIGN);
    admin.delete("unbound", &DeleteParams::default()).await?;
    Ok(())
}

/// The empty name must not be equal to the missing node of a manually bound claim or PV.
pub(crate) async fn an_identity_without_a_node_writes_nothing(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let nodes = Nodes::of(&cluster).await?;
    let admin = Api::default_namespaced(nodes.admin);
    let mut by_hand = claim("by-hand", "some-volume".into())?;
    by_hand.metadata.annotations = None;
    admin.create(&PostParams::default(), &by_hand).await?;
    let nameless = [cluster.storage_of("").await?, cluster.impersonate("unnamed", &[STORAGE_GROUP]).await?];
    for identity in nameless {
        let claims = Api::<PersistentVolumeClaim>::default_namespaced(identity.clone());
        denied(claims.patch_status("by-hand", &PatchParams::default(), &resized()).await, NO_NODE);
        let volumes = Api::<PersistentVolume>::all(identity);
        denied(volumes.create(&PostParams::default(), &volume("nowhere", &on(""))).await, NO_NODE);
    }
    let own = Api::<PersistentVolumeClaim>::default_namespaced(nodes.own);
    denied(own.patch_status("by-hand", &PatchParams::default(), &resized()).await, FOREIGN);
    admin.delete("by-hand", &DeleteParams::default()).await?;
    Ok(())
}
