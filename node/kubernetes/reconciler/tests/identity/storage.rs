//! Volumes, claims that go back to the scheduler, events.

use std::sync::Arc;

use envtest::{Cluster, Failure, Suite};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::events::v1::Event;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::{Nodes, denied, forbidden};

pub(crate) const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";

pub(crate) fn cases(suite: Suite) -> Suite {
    suite
        .case("a_node_makes_changes_and_deletes_its_own_volume", a_node_makes_changes_and_deletes_its_own_volume)
        .case("a_node_cannot_touch_another_nodes_volume", a_node_cannot_touch_another_nodes_volume)
        .case("a_node_cannot_make_a_volume_for_another_driver_or_everywhere", a_node_cannot_make_a_foreign_volume)
        .case("a_node_gives_back_only_its_own_claims", a_node_gives_back_only_its_own_claims)
        .case("a_node_changes_nothing_else_of_a_claim", a_node_changes_nothing_else_of_a_claim)
        .case("a_node_reports_in_its_own_name", a_node_reports_in_its_own_name)
        .case("others_are_not_held_to_the_policies", others_are_not_held_to_the_policies)
}

pub(crate) fn on(node: &str) -> Value {
    json!({"required": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]},
    ]}})
}

pub(crate) fn volume(name: &str, affinity: &Value) -> PersistentVolume {
    of_driver(name, affinity, "local.granary.dev")
}

fn of_driver(name: &str, affinity: &Value, driver: &str) -> PersistentVolume {
    let volume = json!({
        "metadata": {"name": name},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "storageClassName": "none",
            "csi": {"driver": driver, "volumeHandle": name}, "nodeAffinity": affinity,
            "persistentVolumeReclaimPolicy": "Retain",
        },
    });
    serde_json::from_value(volume).expect("a PV")
}

fn claim(name: &str, node: &str) -> PersistentVolumeClaim {
    let claim = json!({
        "metadata": {"name": name, "annotations": {SELECTED_NODE: node, "kept": "yes"}, "labels": {"kept": "yes"}},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}},
            "storageClassName": "none",
        },
    });
    serde_json::from_value(claim).expect("a claim")
}

pub(crate) fn event(controller: &str, instance: &str) -> Event {
    let event = json!({
        "metadata": {"generateName": "report-"}, "eventTime": "2026-01-01T00:00:00.000000Z", "type": "Normal",
        "reason": "Provisioning", "action": "Provision", "note": "n",
        "reportingController": controller, "reportingInstance": instance,
        "regarding": {"kind": "PersistentVolumeClaim", "namespace": "default", "name": "c"},
    });
    serde_json::from_value(event).expect("an event")
}

pub(crate) const FOREIGN_VOLUME: &str = "PVs of local.granary.dev that are on it alone";
const FOREIGN_CLAIM: &str = "gives a claim back to the scheduler";
const FOREIGN_EVENT: &str = "in its own name";

async fn a_node_makes_changes_and_deletes_its_own_volume(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let nodes = Nodes::of(&cluster).await?;
    let volumes = Api::all(nodes.own);
    volumes.create(&PostParams::default(), &volume("own", &on("one"))).await?;
    let finalizer = json!({"metadata": {"finalizers": ["local.granary.dev/volume"]}});
    volumes.patch("own", &PatchParams::default(), &Patch::Merge(finalizer)).await?;
    let none = json!({"metadata": {"finalizers": null}});
    volumes.patch("own", &PatchParams::default(), &Patch::Merge(none)).await?;
    volumes.delete("own", &DeleteParams::default()).await?;
    Ok(())
}

async fn a_node_cannot_touch_another_nodes_volume(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let nodes = Nodes::of(&cluster).await?;
    let (own, other) = (Api::all(nodes.own), Api::<PersistentVolume>::all(nodes.other));
    denied(own.create(&PostParams::default(), &volume("another", &on("two"))).await, FOREIGN_VOLUME);
    other.create(&PostParams::default(), &volume("another", &on("two"))).await?;
    denied(own.delete("another", &DeleteParams::default()).await, FOREIGN_VOLUME);
    let mine = json!({"metadata": {"labels": {"mine": "yes"}}});
    denied(own.patch("another", &PatchParams::default(), &Patch::Merge(mine)).await, FOREIGN_VOLUME);
    other.delete("another", &DeleteParams::default()).await?;
    Ok(())
}

async fn a_node_cannot_make_a_foreign_volume(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let nodes = Nodes::of(&cluster).await?;
    let volumes = Api::all(nodes.own);
    let either = json!({"required": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["one", "two"]}]},
    ]}});
    let mut or = on("one");
    or["required"]["nodeSelectorTerms"]
        .as_array_mut()
        .expect("terms")
        .push(on("two")["required"]["nodeSelectorTerms"][0].clone());
    let except = json!({"required": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["one"]}]},
    ]}});
    for foreign in [
        of_driver("foreign", &on("one"), "example.invalid"),
        volume("foreign", &either),
        volume("foreign", &or),
        volume("foreign", &except),
        volume("foreign", &Value::Null),
    ] {
        denied(volumes.create(&PostParams::default(), &foreign).await, FOREIGN_VOLUME);
    }
    Ok(())
}

async fn a_node_gives_back_only_its_own_claims(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let nodes = Nodes::of(&cluster).await?;
    let back = Patch::Merge(json!({"metadata": {"annotations": {SELECTED_NODE: null}}}));
    let admin = Api::default_namespaced(nodes.admin);
    admin.create(&PostParams::default(), &claim("back", "one")).await?;
    let (own, other) = (
        Api::<PersistentVolumeClaim>::default_namespaced(nodes.own),
        Api::<PersistentVolumeClaim>::default_namespaced(nodes.other),
    );
    denied(other.patch("back", &PatchParams::default(), &back).await, FOREIGN_CLAIM);
    let given = own.patch("back", &PatchParams::default(), &back).await?;
    let annotations = given.metadata.annotations.unwrap_or_default();
    assert_eq!(annotations.get("kept").map(String::as_str), Some("yes"));
    assert!(!annotations.contains_key(SELECTED_NODE));
    // It is nobody's now.
    denied(own.patch("back", &PatchParams::default(), &back).await, FOREIGN_CLAIM);
    admin.delete("back", &DeleteParams::default()).await?;
    Ok(())
}

async fn a_node_changes_nothing_else_of_a_claim(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let nodes = Nodes::of(&cluster).await?;
    let admin = Api::default_namespaced(nodes.admin);
    admin.create(&PostParams::default(), &claim("kept", "one")).await?;
    let own = Api::<PersistentVolumeClaim>::default_namespaced(nodes.own);
    for change in [
        json!({"metadata": {"annotations": {SELECTED_NODE: "two"}}}),
        json!({"metadata": {"annotations": {SELECTED_NODE: null, "kept": null}}}),
        json!({"metadata": {"annotations": {SELECTED_NODE: null, "kept": "no"}}}),
        json!({"metadata": {"annotations": {SELECTED_NODE: null, "more": "yes"}}}),
        json!({"metadata": {"annotations": {SELECTED_NODE: null}, "labels": {"kept": null}}}),
        json!({"metadata": {"annotations": {SELECTED_NODE: null}, "finalizers": ["example.invalid/held"]}}),
        json!({"metadata": {"annotations": {SELECTED_NODE: null}}, "spec": {"volumeName": "stolen"}}),
    ] {
        denied(own.patch("kept", &PatchParams::default(), &Patch::Merge(change)).await, FOREIGN_CLAIM);
    }
    forbidden(own.delete("kept", &DeleteParams::default()).await);
    admin.delete("kept", &DeleteParams::default()).await?;
    Ok(())
}

async fn a_node_reports_in_its_own_name(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let nodes = Nodes::of(&cluster).await?;
    let events = Api::<Event>::default_namespaced(nodes.own);
    events.create(&PostParams::default(), &event("local.granary.dev", "one")).await?;
    denied(events.create(&PostParams::default(), &event("local.granary.dev", "two")).await, FOREIGN_EVENT);
    denied(events.create(&PostParams::default(), &event("example.invalid/kubelet", "one")).await, FOREIGN_EVENT);
    Ok(())
}

async fn others_are_not_held_to_the_policies(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let nodes = Nodes::of(&cluster).await?;
    let volumes = Api::all(nodes.admin);
    let foreign = of_driver("anybodys", &Value::Null, "example.invalid");
    volumes.create(&PostParams::default(), &foreign).await?;
    volumes.delete("anybodys", &DeleteParams::default()).await?;
    Ok(())
}
