//! How far the expansion of a claim is, which the node writes into its status.

use std::sync::Arc;

use cluster::STORAGE_GROUP;
use envtest::{Cluster, Failure, PATIENCE, Suite};
use eventually::{Seen, eventually};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, Error};
use serde_json::{Value, json};

use crate::storage::{SELECTED_NODE, on, volume};
use crate::{Nodes, denied};

const FOREIGN: &str = "tells the size of volumes that are on it";
const NO_NODE: &str = "are named granary:node:NAME";

pub(crate) fn cases(suite: Suite) -> Suite {
    suite
        .case("a_node_tells_the_size_of_its_own_claims_alone", a_node_tells_the_size_of_its_own_claims_alone)
        .case("a_node_changes_nothing_else_in_a_status", a_node_changes_nothing_else_in_a_status)
        .case("a_claim_without_a_volume_has_no_size_to_tell", a_claim_without_a_volume_has_no_size_to_tell)
        .case("an_identity_that_names_no_node_writes_nothing", an_identity_that_names_no_node_writes_nothing)
}

fn claim(name: &str, volume: Value) -> Result<PersistentVolumeClaim, serde_json::Error> {
    serde_json::from_value(json!({
        "metadata": {"name": name, "annotations": {SELECTED_NODE: "one"}},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}},
            "storageClassName": "none", "volumeName": volume,
        },
    }))
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

/// A claim that the controllers have bound, so that its status is theirs no more.
async fn bound(admin: &Client, name: &str) -> Result<(), Failure> {
    Api::all(admin.clone()).create(&PostParams::default(), &volume(name, &on("one"))).await?;
    let claims = Api::default_namespaced(admin.clone());
    claims.create(&PostParams::default(), &claim(name, name.into())?).await?;
    eventually(PATIENCE, "the claim's phase Bound", async || {
        let phase = claims.get(name).await?.status.and_then(|status| status.phase).unwrap_or_default();
        Ok::<_, Error>(if phase == "Bound" { Seen::Done(()) } else { Seen::NotYet(phase) })
    })
    .await?;
    Ok(())
}

async fn a_node_tells_the_size_of_its_own_claims_alone(cluster: Arc<Cluster>) -> Result<(), Failure> {
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
    Api::<PersistentVolumeClaim>::default_namespaced(nodes.admin.clone())
        .delete("grows", &DeleteParams::default())
        .await?;
    Api::<PersistentVolume>::all(nodes.admin).delete("grows", &DeleteParams::default()).await?;
    Ok(())
}

async fn a_node_changes_nothing_else_in_a_status(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let nodes = Nodes::of(&cluster).await?;
    let admin = Api::<PersistentVolumeClaim>::default_namespaced(nodes.admin);
    admin.create(&PostParams::default(), &claim("status", "some-volume".into())?).await?;
    let modifying = json!({"type": "ModifyVolumeError", "status": "True"});
    let others = json!({"status": {"conditions": [modifying]}});
    admin.patch_status("status", &PatchParams::default(), &Patch::Merge(others)).await?;
    let own = Api::<PersistentVolumeClaim>::default_namespaced(nodes.own);
    for change in [
        json!({"status": {"phase": "Lost"}}),
        json!({"status": {"accessModes": ["ReadWriteMany"]}}),
        json!({"status": {"conditions": []}}),
        json!({"status": {"conditions": [modifying, {"type": "ModifyingVolume", "status": "True"}]}}),
        json!({"metadata": {"annotations": {SELECTED_NODE: "two"}}, "status": {"capacity": {"storage": "1Gi"}}}),
        json!({"metadata": {"finalizers": ["example.invalid/held"]}}),
        json!({"metadata": {"labels": {"mine": "yes"}}}),
    ] {
        denied(own.patch_status("status", &PatchParams::default(), &Patch::Merge(&change)).await, FOREIGN);
    }
    let with_others = json!({"status": {"conditions": [modifying, {"type": "Resizing", "status": "True"}]}});
    own.patch_status("status", &PatchParams::default(), &Patch::Merge(with_others)).await?;
    admin.delete("status", &DeleteParams::default()).await?;
    Ok(())
}

async fn a_claim_without_a_volume_has_no_size_to_tell(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let nodes = Nodes::of(&cluster).await?;
    let admin = Api::default_namespaced(nodes.admin);
    admin.create(&PostParams::default(), &claim("unbound", Value::Null)?).await?;
    let own = Api::<PersistentVolumeClaim>::default_namespaced(nodes.own);
    denied(own.patch_status("unbound", &PatchParams::default(), &resized()).await, FOREIGN);
    admin.delete("unbound", &DeleteParams::default()).await?;
    Ok(())
}

/// "No node" was taken for the node of a claim that somebody bound by hand, and of a PV that is nowhere.
async fn an_identity_that_names_no_node_writes_nothing(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let nodes = Nodes::of(&cluster).await?;
    let admin = Api::default_namespaced(nodes.admin);
    let mut by_hand = claim("by-hand", "some-volume".into())?;
    by_hand.metadata.annotations = None;
    admin.create(&PostParams::default(), &by_hand).await?;
    let nameless = [cluster.storage_of("").await?, cluster.impersonate("somebody", &[STORAGE_GROUP]).await?];
    for nobody in nameless {
        let claims = Api::<PersistentVolumeClaim>::default_namespaced(nobody.clone());
        denied(claims.patch_status("by-hand", &PatchParams::default(), &resized()).await, NO_NODE);
        let volumes = Api::<PersistentVolume>::all(nobody);
        denied(volumes.create(&PostParams::default(), &volume("nowhere", &on(""))).await, NO_NODE);
    }
    let own = Api::<PersistentVolumeClaim>::default_namespaced(nodes.own);
    denied(own.patch_status("by-hand", &PatchParams::default(), &resized()).await, FOREIGN);
    admin.delete("by-hand", &DeleteParams::default()).await?;
    Ok(())
}
