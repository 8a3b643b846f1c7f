//! What a kubelet may say of its own Node.

use std::sync::Arc;

use envtest::{Cluster, Failure, Suite};
use k8s_openapi::api::core::v1::Node;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};

use crate::{Nodes, denied, forbidden};

const KEY: &str = "node.granary.dev/wg-pubkey";
const ADDRESSES: &str = "a kubelet does not choose the addresses of its pods";
const ANNOTATIONS: &str = "a kubelet does not write annotations node.granary.dev/*";

const NAME: &str = "a kubelet labels its Node as kubernetes.io/hostname with its own name";

pub(crate) fn cases(suite: Suite) -> Suite {
    suite
        .case(
            "a_kubelet_does_not_choose_the_addresses_of_its_pods",
            a_kubelet_does_not_choose_the_addresses_of_its_pods,
        )
        .case("a_kubelet_does_not_write_a_public_key", a_kubelet_does_not_write_a_public_key)
        .case("a_kubelet_does_not_take_another_nodes_name", a_kubelet_does_not_take_another_nodes_name)
}

async fn kubelet(cluster: &Cluster) -> Result<Api<Node>, Failure> {
    Ok(Api::all(cluster.impersonate("system:node:one", &["system:nodes", "system:authenticated"]).await?))
}

fn node(rest: Value) -> Result<Node, serde_json::Error> {
    let mut node = json!({"metadata": {"name": "one"}});
    node.as_object_mut().expect("an object").extend(rest.as_object().cloned().unwrap_or_default());
    serde_json::from_value(node)
}

async fn a_kubelet_does_not_choose_the_addresses_of_its_pods(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let admin = Api::<Node>::all(Nodes::of(&cluster).await?.admin);
    let own = kubelet(&cluster).await?;
    let (post, params) = (PostParams::default(), PatchParams::default());
    // They would give it a range at once.
    cluster.stop_controllers().await?;
    let ranges = json!({"spec": {"podCIDR": "10.244.7.0/24", "podCIDRs": ["10.244.7.0/24"]}});
    denied(own.create(&post, &node(ranges.clone())?).await, ADDRESSES);
    own.create(&post, &node(json!({}))?).await?;
    // As long as it has none, the API itself would take any.
    denied(own.patch("one", &params, &Patch::Merge(&ranges)).await, ADDRESSES);
    admin.patch("one", &params, &Patch::Merge(&ranges)).await?;
    // The rest of its work goes on.
    own.patch("one", &params, &Patch::Merge(json!({"metadata": {"labels": {"kubernetes.io/arch": "amd64"}}}))).await?;
    let status = json!({"status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]}});
    own.patch_status("one", &params, &Patch::Merge(status)).await?;
    admin.delete("one", &DeleteParams::default()).await?;
    cluster.start_controllers().await?;
    Ok(())
}

async fn a_kubelet_does_not_write_a_public_key(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let nodes = Nodes::of(&cluster).await?;
    let (admin, storage) = (Api::<Node>::all(nodes.admin), Api::<Node>::all(nodes.own));
    let own = kubelet(&cluster).await?;
    let (post, params) = (PostParams::default(), PatchParams::default());
    let key = |key: Value| json!({"metadata": {"annotations": {KEY: key}}});
    let told = node(json!({"metadata": {"name": "one", "annotations": {KEY: "a key"}}}))?;
    denied(own.create(&post, &told).await, ANNOTATIONS);
    own.create(&post, &node(json!({}))?).await?;
    // Why the mesh has the storage's identity.
    forbidden(own.list(&ListParams::default()).await);
    denied(own.patch("one", &params, &Patch::Merge(key(json!("a key")))).await, ANNOTATIONS);
    denied(own.patch_status("one", &params, &Patch::Merge(key(json!("a key")))).await, ANNOTATIONS);
    storage.patch("one", &params, &Patch::Merge(key(json!("a key")))).await?;
    for change in [json!("another"), Value::Null] {
        denied(own.patch("one", &params, &Patch::Merge(key(change.clone()))).await, ANNOTATIONS);
        denied(own.patch_status("one", &params, &Patch::Merge(key(change))).await, ANNOTATIONS);
    }
    // kubelet's own annotations come with the status.
    let volumes =
        json!({"metadata": {"annotations": {"volumes.kubernetes.io/controller-managed-attach-detach": "true"}}});
    own.patch_status("one", &params, &Patch::Merge(volumes)).await?;
    assert_eq!(admin.get("one").await?.annotations()[KEY], "a key");
    admin.create(&post, &serde_json::from_value(json!({"metadata": {"name": "two"}}))?).await?;
    forbidden(own.patch("two", &params, &Patch::Merge(key(json!("a key")))).await);
    for name in ["one", "two"] {
        admin.delete(name, &DeleteParams::default()).await?;
    }
    Ok(())
}

/// The scheduler sent it the pods with the volumes of the node whose name it took.
async fn a_kubelet_does_not_take_another_nodes_name(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let admin = Api::<Node>::all(Nodes::of(&cluster).await?.admin);
    let own = kubelet(&cluster).await?;
    let (post, params) = (PostParams::default(), PatchParams::default());
    let named = |name: &str| json!({"metadata": {"labels": {"kubernetes.io/hostname": name}}});
    let taken = node(json!({"metadata": {"name": "one", "labels": {"kubernetes.io/hostname": "two"}}}))?;
    denied(own.create(&post, &taken).await, NAME);
    own.create(&post, &node(json!({}))?).await?;
    denied(own.patch("one", &params, &Patch::Merge(named("two"))).await, NAME);
    denied(own.patch_status("one", &params, &Patch::Merge(named("two"))).await, NAME);
    own.patch("one", &params, &Patch::Merge(named("one"))).await?;
    denied(own.patch("one", &params, &Patch::Merge(named(""))).await, NAME);
    admin.delete("one", &DeleteParams::default()).await?;
    let nobody = cluster.impersonate("nobody", &["system:nodes", "system:masters", "system:authenticated"]).await?;
    denied(Api::all(nobody).create(&post, &node(json!({}))?).await, "users in system:nodes are named system:node:NAME");
    Ok(())
}
