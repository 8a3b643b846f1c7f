//! Writes of a kubelet to its own Node.

use std::sync::Arc;

use envtest::{Cluster, Failure, create, merge, merge_status};
use k8s_openapi::api::core::v1::Node;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};

use crate::{Nodes, denied, forbidden};

const KEY: &str = "node.granary.dev/wg-pubkey";
const ADDRESSES: &str = "a kubelet does not choose the addresses of its pods";
const ANNOTATIONS: &str = "a kubelet does not write annotations node.granary.dev/*";

const NAME: &str = "a kubelet labels its Node as kubernetes.io/hostname with its own name";

async fn kubelet(cluster: &Cluster) -> Result<Api<Node>, Failure> {
    Ok(Api::all(cluster.impersonate("system:node:one", &["system:nodes", "system:authenticated"]).await?))
}

fn node(rest: Value) -> Result<Node, serde_json::Error> {
    let mut node = json!({"metadata": {"name": "one"}});
    node.as_object_mut().expect("an object").extend(rest.as_object().cloned().unwrap_or_default());
    serde_json::from_value(node)
}

pub(crate) async fn a_kubelet_does_not_choose_the_addresses_of_its_pods(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let admin = Api::<Node>::all(Nodes::of(&cluster).await?.admin);
    let own = kubelet(&cluster).await?;
    let post = PostParams::default();
    // Stop the controllers, which would assign a network at once.
    cluster.stop_controllers().await?;
    let ranges = json!({"spec": {"podCIDR": "10.244.7.0/24", "podCIDRs": ["10.244.7.0/24"]}});
    denied(own.create(&post, &node(ranges.clone())?).await, ADDRESSES);
    own.create(&post, &node(json!({}))?).await?;
    // NodeRestriction allows this change while the Node has no network.
    denied(merge(&own, "one", ranges.clone()).await, ADDRESSES);
    merge(&admin, "one", ranges).await?;
    // The policy allows usual writes.
    merge(&own, "one", json!({"metadata": {"labels": {"kubernetes.io/arch": "amd64"}}})).await?;
    let status = json!({"status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]}});
    merge_status(&own, "one", status).await?;
    admin.delete("one", &DeleteParams::default()).await?;
    cluster.start_controllers().await?;
    Ok(())
}

pub(crate) async fn a_kubelet_does_not_write_a_public_key(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let nodes = Nodes::of(&cluster).await?;
    let (admin, storage) = (Api::<Node>::all(nodes.admin), Api::<Node>::all(nodes.own));
    let own = kubelet(&cluster).await?;
    let post = PostParams::default();
    let key = |key: Value| json!({"metadata": {"annotations": {KEY: key}}});
    let with_key = node(json!({"metadata": {"name": "one", "annotations": {KEY: "a key"}}}))?;
    denied(own.create(&post, &with_key).await, ANNOTATIONS);
    own.create(&post, &node(json!({}))?).await?;
    // The mesh uses the storage identity, because a kubelet cannot list Nodes.
    forbidden(own.list(&ListParams::default()).await);
    denied(merge(&own, "one", key(json!("a key"))).await, ANNOTATIONS);
    denied(merge_status(&own, "one", key(json!("a key"))).await, ANNOTATIONS);
    merge(&storage, "one", key(json!("a key"))).await?;
    for change in [json!("another"), Value::Null] {
        denied(merge(&own, "one", key(change.clone())).await, ANNOTATIONS);
        denied(merge_status(&own, "one", key(change)).await, ANNOTATIONS);
    }
    // The kubelet writes its own annotations with the status.
    let volumes =
        json!({"metadata": {"annotations": {"volumes.kubernetes.io/controller-managed-attach-detach": "true"}}});
    merge_status(&own, "one", volumes).await?;
    assert_eq!(admin.get("one").await?.annotations()[KEY], "a key");
    create(&admin, json!({"metadata": {"name": "two"}})).await?;
    forbidden(merge(&own, "two", key(json!("a key"))).await);
    for name in ["one", "two"] {
        admin.delete(name, &DeleteParams::default()).await?;
    }
    Ok(())
}

/// With such a label, the scheduler would place pods with volumes of the other node on this node.
pub(crate) async fn a_kubelet_does_not_take_another_nodes_name(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let admin = Api::<Node>::all(Nodes::of(&cluster).await?.admin);
    let own = kubelet(&cluster).await?;
    let post = PostParams::default();
    let named = |name: &str| json!({"metadata": {"labels": {"kubernetes.io/hostname": name}}});
    let taken = node(json!({"metadata": {"name": "one", "labels": {"kubernetes.io/hostname": "two"}}}))?;
    denied(own.create(&post, &taken).await, NAME);
    own.create(&post, &node(json!({}))?).await?;
    denied(merge(&own, "one", named("two")).await, NAME);
    denied(merge_status(&own, "one", named("two")).await, NAME);
    merge(&own, "one", named("one")).await?;
    denied(merge(&own, "one", named("")).await, NAME);
    admin.delete("one", &DeleteParams::default()).await?;
    let unnamed = cluster.impersonate("unnamed", &["system:nodes", "system:masters", "system:authenticated"]).await?;
    let created = Api::all(unnamed).create(&post, &node(json!({}))?).await;
    denied(created, "users in system:nodes are named system:node:NAME");
    Ok(())
}
