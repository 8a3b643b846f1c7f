//! Writes of the storage identity: PVs, claims that are returned to the scheduler, events.

use std::sync::Arc;

use envtest::{Cluster, Failure, create, merge, remove};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::events::v1::Event;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use serde_json::{Value, json};

use crate::{Nodes, denied, forbidden};

pub(crate) const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
const FINALIZER: &str = "local.granary.dev/volume";
const PROTECTION: &str = "kubernetes.io/pv-protection";

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

/// A PV that the provisioner creates on the node, for a claim with this UID.
pub(crate) fn provisioned(uid: &str, node: &str) -> Value {
    json!({
        "metadata": {
            "name": format!("pvc-{uid}"), "annotations": {PROVISIONED_BY: "local.granary.dev"}, "finalizers": [FINALIZER],
        },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "storageClassName": "none",
            "claimRef": {
                "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "default", "name": "c", "uid": uid,
            },
            "csi": {"driver": "local.granary.dev", "volumeHandle": format!("pvc-{uid}")}, "nodeAffinity": on(node),
            "persistentVolumeReclaimPolicy": "Delete", "volumeMode": "Filesystem",
        },
    })
}

/// A PV with the policy `Retain`, and therefore without the driver's finalizer.
pub(crate) fn retained(uid: &str, node: &str) -> PersistentVolume {
    let mut volume = provisioned(uid, node);
    volume["metadata"]["finalizers"] = Value::Null;
    volume["spec"]["persistentVolumeReclaimPolicy"] = "Retain".into();
    serde_json::from_value(volume).expect("a PV")
}

fn claim(name: &str, node: &str) -> PersistentVolumeClaim {
    let metadata =
        json!({"name": name, "annotations": {SELECTED_NODE: node, "kept": "yes"}, "labels": {"kept": "yes"}});
    serde_json::from_value(envtest::claim(metadata, "none", json!({}))).expect("a claim")
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
const SHAPE: &str = "a node creates PVs as its provisioner does";
const UPDATE: &str = "a node enlarges spec.capacity of its PVs";
pub(crate) const FOREIGN_CLAIM: &str = "returns a claim to the scheduler";
const FOREIGN_EVENT: &str = "in its own name";

pub(crate) async fn a_node_creates_changes_and_deletes_its_own_pv(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let nodes = Nodes::of(&cluster).await?;
    let volumes = Api::<PersistentVolume>::all(nodes.own);
    create(&volumes, provisioned("own", "one")).await?;
    let found = merge(&volumes, "pvc-own", json!({"spec": {"capacity": {"storage": "2Gi"}}})).await?;
    assert_eq!(found.spec.and_then(|spec| spec.capacity).unwrap_or_default()["storage"].0, "2Gi");
    let found = merge(&volumes, "pvc-own", json!({"spec": {"volumeAttributesClassName": "gold"}})).await?;
    assert_eq!(found.spec.and_then(|spec| spec.volume_attributes_class_name).as_deref(), Some("gold"));
    // The provisioner writes this when the policy becomes `Retain`, and `Delete` again.
    let without = json!({"metadata": {"finalizers": [PROTECTION]}});
    merge(&volumes, "pvc-own", without.clone()).await?;
    let with = json!({"metadata": {"finalizers": [PROTECTION, FINALIZER], "annotations": {PROVISIONED_BY: "local.granary.dev"}}});
    merge(&volumes, "pvc-own", with).await?;
    merge(&volumes, "pvc-own", without).await?;
    volumes.delete("pvc-own", &DeleteParams::default()).await?;
    volumes.create(&PostParams::default(), &retained("kept", "one")).await?;
    remove(&volumes, "pvc-kept").await
}

/// With other fields, a node could get access to objects of other nodes and users.
pub(crate) async fn a_node_creates_only_pvs_with_the_listed_fields(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let nodes = Nodes::of(&cluster).await?;
    let volumes = Api::<PersistentVolume>::all(nodes.own);
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    let secret = json!({"namespace": "kube-system", "name": "treasure"});
    let owner = json!([{"apiVersion": "v1", "kind": "Node", "name": "one", "uid": "none"}]);
    let mut two = on("one");
    two["required"]["nodeSelectorTerms"][0]["matchExpressions"]
        .as_array_mut()
        .expect("expressions")
        .push(json!({"key": "zone", "operator": "Exists"}));
    let secrets = [
        "controllerPublishSecretRef",
        "nodeStageSecretRef",
        "nodePublishSecretRef",
        "controllerExpandSecretRef",
        "nodeExpandSecretRef",
    ];
    let secrets = secrets.map(|kind| (json!({"spec": {"csi": {kind: secret}}}), format!("without spec.csi.{kind}")));
    let others = [
        (json!({"spec": {"csi": {"volumeAttributes": {"a": "b"}}}}), "without spec.csi.volumeAttributes"),
        (json!({"spec": {"csi": {"fsType": "xfs"}}}), "without spec.csi.fsType"),
        (json!({"spec": {"csi": {"readOnly": true}}}), "without spec.csi.readOnly"),
        (json!({"spec": {"csi": {"volumeHandle": "pvc-other"}}}), "metadata.name and spec.csi.volumeHandle"),
        (json!({"spec": {"mountOptions": ["sync"]}}), "without spec.mountOptions"),
        (json!({"spec": {"claimRef": {"resourceVersion": "1"}}}), "without spec.claimRef.resourceVersion"),
        (json!({"spec": {"claimRef": {"uid": "other"}}}), "the UID of the claim in spec.claimRef"),
        (json!({"spec": {"claimRef": null}}), "spec has accessModes, capacity, claimRef, "),
        (json!({"spec": {"accessModes": ["ReadWriteMany"]}}), "spec.accessModes"),
        (json!({"spec": {"persistentVolumeReclaimPolicy": "Retain"}}), "spec.persistentVolumeReclaimPolicy"),
        (json!({"spec": {"nodeAffinity": two}}), "spec.nodeAffinity"),
        (json!({"metadata": {"labels": {"mine": "yes"}}}), "without metadata.labels"),
        (json!({"metadata": {"annotations": {"mine": "yes"}}}), "without metadata.annotations.mine"),
        (json!({"metadata": {"annotations": {PROVISIONED_BY: "example.invalid"}}}), "metadata.annotations name"),
        (json!({"metadata": {"ownerReferences": owner}}), "without metadata.ownerReferences"),
        (json!({"metadata": {"finalizers": [FINALIZER, "example.invalid/held"]}}), "metadata.finalizers"),
        (json!({"metadata": {"finalizers": null}}), "metadata.finalizers"),
    ];
    let others = others.map(|(change, message)| (change, message.to_owned()));
    for (change, message) in secrets.into_iter().chain(others) {
        let mut changed = provisioned("shape", "one");
        apply(&mut changed, &change);
        let changed: PersistentVolume = serde_json::from_value(changed)?;
        denied(volumes.create(&dry, &changed).await, SHAPE);
        denied(volumes.create(&dry, &changed).await, &message);
    }
    let mut shape = provisioned("shape", "one");
    volumes.create(&dry, &serde_json::from_value(shape.clone())?).await?;
    shape["spec"]["volumeAttributesClassName"] = "gold".into();
    volumes.create(&dry, &serde_json::from_value(shape)?).await?;
    Ok(())
}

/// Applies a change like a merge patch, but keeps `null`.
fn apply(into: &mut Value, change: &Value) {
    match change.as_object() {
        Some(fields) => fields.iter().for_each(|(field, change)| apply(&mut into[field], change)),
        None => *into = change.clone(),
    }
}

pub(crate) async fn a_node_changes_nothing_else_of_its_pv(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let nodes = Nodes::of(&cluster).await?;
    let volumes = Api::<PersistentVolume>::all(nodes.own);
    volumes.create(&PostParams::default(), &retained("changed", "one")).await?;
    let secret = json!({"namespace": "kube-system", "name": "treasure"});
    let owner = json!([{"apiVersion": "v1", "kind": "Node", "name": "one", "uid": "none"}]);
    for change in [
        // The API server allows adding this reference.
        json!({"spec": {"csi": {"controllerExpandSecretRef": secret}}}),
        json!({"spec": {"capacity": {"storage": "512Mi"}}}),
        json!({"spec": {"mountOptions": ["sync"]}}),
        json!({"spec": {"accessModes": ["ReadWriteMany"]}}),
        json!({"spec": {"persistentVolumeReclaimPolicy": "Delete"}}),
        json!({"spec": {"storageClassName": "another"}}),
        json!({"spec": {"claimRef": {"namespace": "kube-system", "uid": "another"}}}),
        json!({"spec": {"claimRef": null}}),
        json!({"metadata": {"labels": {"mine": "yes"}}}),
        json!({"metadata": {"ownerReferences": owner}}),
        json!({"metadata": {"annotations": {"mine": "yes"}}}),
        json!({"metadata": {"annotations": {PROVISIONED_BY: "example.invalid"}}}),
        json!({"metadata": {"annotations": {PROVISIONED_BY: null}}}),
        json!({"metadata": {"finalizers": [PROTECTION, "example.invalid/held"]}}),
        json!({"metadata": {"finalizers": null}}),
    ] {
        denied(merge(&volumes, "pvc-changed", change).await, UPDATE);
    }
    remove(&volumes, "pvc-changed").await
}

pub(crate) async fn a_manual_pv_gets_the_finalizer_of_its_node(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let nodes = Nodes::of(&cluster).await?;
    let (own, admin) = (Api::<PersistentVolume>::all(nodes.own), Api::<PersistentVolume>::all(nodes.admin));
    let mut by_hand = volume("by-hand", &on("one"));
    by_hand.metadata.labels = Some([("kept".to_owned(), "yes".to_owned())].into());
    admin.create(&PostParams::default(), &by_hand).await?;
    let marked = json!({"metadata": {"finalizers": [PROTECTION, FINALIZER], "annotations": {PROVISIONED_BY: "local.granary.dev"}}});
    merge(&own, "by-hand", marked).await?;
    merge(&own, "by-hand", json!({"spec": {"capacity": {"storage": "2Gi"}}})).await?;
    merge(&own, "by-hand", json!({"metadata": {"finalizers": [PROTECTION]}})).await?;
    remove(&own, "by-hand").await
}

pub(crate) async fn a_node_cannot_write_another_nodes_pv(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let nodes = Nodes::of(&cluster).await?;
    let (own, other) = (Api::all(nodes.own), Api::<PersistentVolume>::all(nodes.other));
    denied(own.create(&PostParams::default(), &retained("another", "two")).await, FOREIGN_VOLUME);
    other.create(&PostParams::default(), &retained("another", "two")).await?;
    denied(own.delete("pvc-another", &DeleteParams::default()).await, FOREIGN_VOLUME);
    denied(merge(&own, "pvc-another", json!({"spec": {"capacity": {"storage": "2Gi"}}})).await, FOREIGN_VOLUME);
    remove(&other, "pvc-another").await
}

pub(crate) async fn a_node_cannot_create_foreign_pvs(cluster: Arc<Cluster>) -> Result<(), Failure> {
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

pub(crate) async fn a_node_returns_only_its_own_claims(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let nodes = Nodes::of(&cluster).await?;
    let admin = Api::default_namespaced(nodes.admin);
    admin.create(&PostParams::default(), &claim("back", "one")).await?;
    let [own, other] = [nodes.own, nodes.other].map(Api::<PersistentVolumeClaim>::default_namespaced);
    let back = json!({"metadata": {"annotations": {SELECTED_NODE: null}}});
    denied(merge(&other, "back", back.clone()).await, FOREIGN_CLAIM);
    let returned = merge(&own, "back", back.clone()).await?;
    let annotations = returned.metadata.annotations.unwrap_or_default();
    assert_eq!(annotations.get("kept").map(String::as_str), Some("yes"));
    assert!(!annotations.contains_key(SELECTED_NODE));
    // The claim has no selected node now.
    denied(merge(&own, "back", back).await, FOREIGN_CLAIM);
    remove(&admin, "back").await
}

pub(crate) async fn a_node_changes_nothing_else_of_a_claim(cluster: Arc<Cluster>) -> Result<(), Failure> {
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
        denied(merge(&own, "kept", change).await, FOREIGN_CLAIM);
    }
    forbidden(own.delete("kept", &DeleteParams::default()).await);
    remove(&admin, "kept").await
}

pub(crate) async fn a_node_reports_in_its_own_name(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let nodes = Nodes::of(&cluster).await?;
    let events = Api::<Event>::default_namespaced(nodes.own);
    events.create(&PostParams::default(), &event("local.granary.dev", "one")).await?;
    denied(events.create(&PostParams::default(), &event("local.granary.dev", "two")).await, FOREIGN_EVENT);
    denied(events.create(&PostParams::default(), &event("example.invalid/kubelet", "one")).await, FOREIGN_EVENT);
    Ok(())
}

pub(crate) async fn other_users_are_not_restricted(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let nodes = Nodes::of(&cluster).await?;
    let volumes = Api::all(nodes.admin);
    let foreign = of_driver("foreign-driver", &Value::Null, "example.invalid");
    volumes.create(&PostParams::default(), &foreign).await?;
    remove(&volumes, "foreign-driver").await
}
