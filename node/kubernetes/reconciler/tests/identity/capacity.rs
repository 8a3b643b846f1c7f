//! CSIStorageCapacity objects.

use std::sync::Arc;

use envtest::{Cluster, Failure, merge, remove};
use k8s_openapi::api::storage::v1::CSIStorageCapacity;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::{Nodes, denied};

const FOREIGN: &str = "publishes only its own capacity";
const SYSTEM: &str = "kube-system";

fn name(node: &str) -> String {
    format!("0123456789abcdef.{node}.local.granary.dev")
}

fn capacity(node: &str) -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "CSIStorageCapacity",
        "metadata": {
            "name": name(node),
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": node, "uid": "none"}],
        },
        "storageClassName": "local",
        "nodeTopology": {"matchLabels": {"kubernetes.io/hostname": node}},
        "capacity": "1Gi",
    })
}

/// A capacity object without an owner, because the garbage collector deletes objects whose owner does not exist.
fn without_owner(node: &str) -> Value {
    let mut capacity = capacity(node);
    capacity["metadata"]["ownerReferences"] = Value::Null;
    capacity
}

pub(crate) async fn a_node_publishes_its_own_capacity(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let nodes = Nodes::of(&cluster).await?;
    let own = Api::<CSIStorageCapacity>::namespaced(nodes.own, SYSTEM);
    let params = PatchParams::apply("granary-capacity").force();
    let mut wanted = without_owner("one");
    own.patch(&name("one"), &params, &Patch::Apply(&wanted)).await?;
    wanted["capacity"] = "2Gi".into();
    let found = own.patch(&name("one"), &params, &Patch::Apply(&wanted)).await?;
    assert_eq!(found.capacity.map(|capacity| capacity.0).as_deref(), Some("2Gi"));
    own.delete(&name("one"), &DeleteParams::default()).await?;
    let dry = PatchParams { dry_run: true, ..params };
    own.patch(&name("one"), &dry, &Patch::Apply(&capacity("one"))).await?;
    Ok(())
}

pub(crate) async fn a_node_cannot_write_another_nodes_capacity(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let nodes = Nodes::of(&cluster).await?;
    let own = Api::<CSIStorageCapacity>::namespaced(nodes.own, SYSTEM);
    let other = Api::<CSIStorageCapacity>::namespaced(nodes.other, SYSTEM);
    let params = PatchParams::apply("granary-capacity").force();
    denied(own.patch(&name("two"), &params, &Patch::Apply(without_owner("two"))).await, FOREIGN);
    other.patch(&name("two"), &params, &Patch::Apply(without_owner("two"))).await?;
    denied(merge(&own, &name("two"), json!({"capacity": "9Ti"})).await, FOREIGN);
    denied(own.delete(&name("two"), &DeleteParams::default()).await, FOREIGN);
    remove(&other, &name("two")).await
}

pub(crate) async fn a_capacity_with_other_fields_is_denied(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let nodes = Nodes::of(&cluster).await?;
    let own = Api::<CSIStorageCapacity>::namespaced(nodes.own.clone(), SYSTEM);
    let changed = |pointer: &str, value: Value| {
        let mut capacity = capacity("one");
        *capacity.pointer_mut(pointer).expect("it is there") = value;
        serde_json::from_value::<CSIStorageCapacity>(capacity).expect("a capacity")
    };
    let either = json!([{"key": "kubernetes.io/hostname", "operator": "Exists"}]);
    for wrong in [
        changed("/nodeTopology", Value::Null),
        changed("/nodeTopology", json!({"matchExpressions": either})),
        changed("/nodeTopology/matchLabels", json!({"kubernetes.io/hostname": "two"})),
        changed("/nodeTopology/matchLabels", json!({"kubernetes.io/hostname": "one", "zone": "z"})),
        changed("/metadata/name", name("two").into()),
        changed("/metadata/name", "0123456789abcdef.two.one.local.granary.dev".into()),
        changed("/metadata/ownerReferences/0/name", "two".into()),
        changed("/metadata/ownerReferences/0/kind", "Namespace".into()),
    ] {
        denied(own.create(&PostParams::default(), &wrong).await, FOREIGN);
    }
    let elsewhere = Api::<CSIStorageCapacity>::namespaced(nodes.own, "default");
    let good = serde_json::from_value(capacity("one"))?;
    denied(elsewhere.create(&PostParams::default(), &good).await, FOREIGN);
    Ok(())
}
