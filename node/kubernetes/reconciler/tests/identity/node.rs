//! Writes of the storage identity to the Node object.

use std::sync::Arc;

use envtest::{Cluster, Failure, merge, merge_status};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::CSINode;
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams};
use serde_json::json;

use crate::{Nodes, denied, forbidden};

const FOREIGN: &str = "changes the annotations node.granary.dev/* of its own Node";
const KEY: &str = "node.granary.dev/wg-pubkey";

fn node(name: &str) -> Result<Node, serde_json::Error> {
    serde_json::from_value(json!({
        "metadata": {"name": name, "annotations": {"kept": "yes"}, "labels": {"kept": "yes"}},
    }))
}

pub(crate) async fn a_node_writes_only_its_own_annotations(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let nodes = Nodes::of(&cluster).await?;
    // Stop the controllers, which would assign a pod network, an immutable field.
    cluster.stop_controllers().await?;
    let admin = Api::<Node>::all(nodes.admin);
    for name in ["one", "two"] {
        admin.create(&PostParams::default(), &node(name)?).await?;
    }
    let own = Api::<Node>::all(nodes.own);
    let annotate = |value: &str| json!({"metadata": {"annotations": {KEY: value}}});
    merge(&own, "one", annotate("a key")).await?;
    merge(&own, "one", annotate("another")).await?;
    denied(merge(&own, "two", annotate("a key")).await, FOREIGN);
    for change in [
        json!({"metadata": {"annotations": {"kept": "no"}}}),
        json!({"metadata": {"annotations": {"kept": null}}}),
        json!({"metadata": {"annotations": {"more": "yes"}}}),
        json!({"metadata": {"labels": {"kept": null}}}),
        json!({"metadata": {"finalizers": ["example.invalid/held"]}}),
        json!({"metadata": {"annotations": {KEY: "a key"}}, "spec": {"podCIDR": "10.0.0.0/24", "podCIDRs": ["10.0.0.0/24"]}}),
        json!({"spec": {"unschedulable": true}}),
    ] {
        denied(merge(&own, "one", change).await, FOREIGN);
    }
    forbidden(merge_status(&own, "one", json!({"status": {"phase": "Running"}})).await);
    forbidden(own.create(&PostParams::default(), &node("three")?).await);
    forbidden(own.delete("one", &DeleteParams::default()).await);
    for name in ["one", "two"] {
        admin.delete(name, &DeleteParams::default()).await?;
    }
    cluster.start_controllers().await?;
    Ok(())
}

pub(crate) async fn a_node_reads_its_csinode_object(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let nodes = Nodes::of(&cluster).await?;
    let own = Api::<CSINode>::all(nodes.own);
    assert_eq!(own.get_opt("one").await?.map(|found| found.spec.drivers.len()), None);
    let only = ListParams::default().fields("metadata.name=one");
    assert_eq!(own.list(&only).await?.items.len(), 0);
    forbidden(own.delete("one", &DeleteParams::default()).await);
    Ok(())
}
