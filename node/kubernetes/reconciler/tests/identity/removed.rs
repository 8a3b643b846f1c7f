//! A node that an administrator removed.

use std::sync::Arc;

use envtest::{Cluster, Failure, PATIENCE, Seen, eventually, remove};
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Error};
use reconciler::{REMOVED_NODES, REMOVED_NODES_NAMESPACE};
use serde_json::json;

use crate::certificate::{self, Approver, GOOD, decision};
use crate::{Nodes, denied, joining, storage};

const REFUSAL: &str = "this node was removed from the cluster";

pub(crate) async fn a_removed_node_stays_removed(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let nodes = Nodes::of(&cluster).await?;
    let kubelet = async |name| Ok::<_, Failure>(Api::<Node>::all(certificate::kubelet(&cluster, name).await?));
    let (one, two) = (kubelet("one").await?, kubelet("two").await?);
    let node = |name: &str| serde_json::from_value::<Node>(json!({"metadata": {"name": name}}));
    let (post, dry) = (PostParams::default(), PostParams { dry_run: true, ..PostParams::default() });
    let admin = Api::<Node>::all(nodes.admin.clone());
    one.create(&post, &node("one")?).await?;
    // The request was created before the removal, and is not decided.
    let of_its_storage = GOOD.by(certificate::kubelet(&cluster, "one").await?).await?;

    let removed: ConfigMap = serde_json::from_value(json!({"metadata": {"name": REMOVED_NODES}, "data": {"one": ""}}))?;
    let maps = Api::namespaced(nodes.admin.clone(), REMOVED_NODES_NAMESPACE);
    maps.create(&post, &removed).await?;
    admin.delete("one", &DeleteParams::default()).await?;
    let again = node("one")?;
    // Retry, because the API server's watch of the ConfigMap may be behind.
    eventually(PATIENCE, "the denial of the node", async || {
        Ok::<_, Error>(match one.create(&dry, &again).await {
            Err(Error::Api(status)) if status.message.contains(REFUSAL) => Seen::Done(()),
            other => Seen::NotYet(format!("{other:?}")),
        })
    })
    .await?;
    denied(one.create(&post, &again).await, REFUSAL);
    let events = Api::default_namespaced(nodes.own.clone());
    denied(events.create(&dry, &storage::event("local.granary.dev", "one")).await, REFUSAL);
    // The configuration of the removed node may contain a valid token.
    let approver = Approver::start(&cluster).await?;
    let token = joining::token(&cluster, "one", joining::in_an_hour()).await?;
    let of_its_kubelet = joining::ask_eventually(&cluster, &token, "one").await?;
    for asked in [of_its_storage, of_its_kubelet] {
        let why = decision(&cluster, &asked).await?;
        assert!(why.starts_with("Denied NodeRemoved: the node one was removed from the cluster"), "{why}");
    }
    approver.stop().await?;
    two.create(&post, &node("two")?).await?;
    Api::default_namespaced(nodes.other.clone()).create(&dry, &storage::event("local.granary.dev", "two")).await?;

    maps.delete(REMOVED_NODES, &DeleteParams::default()).await?;
    eventually(PATIENCE, "the node to be admitted again", async || {
        Ok::<_, Error>(match one.create(&dry, &again).await {
            Ok(_) => Seen::Done(()),
            Err(Error::Api(status)) if status.message.contains(REFUSAL) => Seen::NotYet(status.message),
            Err(error) => return Err(error),
        })
    })
    .await?;
    remove(&admin, "two").await
}
