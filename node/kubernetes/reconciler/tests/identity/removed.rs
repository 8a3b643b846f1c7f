//! A node that an administrator removed.

use std::collections::BTreeSet;
use std::sync::Arc;

use envtest::{Cluster, Failure, PATIENCE, Seen, eventually, remove, start};
use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicy;
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use k8s_openapi::api::rbac::v1::ClusterRole;
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client, Error};
use reconciler::{REMOVED_NODES, REMOVED_NODES_NAMESPACE};
use serde_json::json;

use crate::certificate::{self, Approver, GOOD, decision};
use crate::{Nodes, denied, joining, storage};

const REFUSAL: &str = "this node was removed from the cluster";

pub(crate) async fn a_removed_node_stays_removed(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let nodes = Nodes::of(&cluster).await?;
    covers_the_rights_of_kubelets(&nodes.admin).await?;
    let kubelet = async |name| Ok::<_, Failure>(Api::<Node>::all(certificate::kubelet(&cluster, name).await?));
    let (one, two) = (kubelet("one").await?, kubelet("two").await?);
    let node = |name: &str| serde_json::from_value::<Node>(json!({"metadata": {"name": name}}));
    let (post, dry) = (PostParams::default(), PostParams { dry_run: true, ..PostParams::default() });
    let admin = Api::<Node>::all(nodes.admin.clone());
    one.create(&post, &node("one")?).await?;
    // The request was created before the removal, and is not decided.
    let of_its_storage = GOOD.by(certificate::kubelet(&cluster, "one").await?).await?;

    let removed: ConfigMap = serde_json::from_value(json!({"metadata": {"name": REMOVED_NODES}, "data": {"one": ""}}))?;
    let reconciler = start("reconciler", nodes.admin.clone(), reconciler::run).await?;
    let maps = Api::namespaced(nodes.admin.clone(), REMOVED_NODES_NAMESPACE);
    maps.create(&post, &removed).await?;
    admin.delete("one", &DeleteParams::default()).await?;
    let again = node("one")?;
    // The reconciler writes the name into the policy.
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
    reconciler.stop(PATIENCE).await?;
    remove(&admin, "two").await
}

/// The policy names the groups in which kubelets may write: it must have all of this version of Kubernetes.
async fn covers_the_rights_of_kubelets(admin: &Client) -> Result<(), Failure> {
    let policy = Api::<ValidatingAdmissionPolicy>::all(admin.clone()).get("removed-nodes.local.granary.dev").await?;
    let rules = policy.spec.and_then(|spec| spec.match_constraints).map(|found| found.resource_rules);
    let denied: Vec<String> =
        rules.into_iter().flatten().flatten().flat_map(|rule| rule.api_groups).flatten().collect();
    assert!(!denied.contains(&"*".to_owned()), "aggregated API servers would deny writes: {denied:?}");
    let role = Api::<ClusterRole>::all(admin.clone()).get("system:node").await?;
    let reads = ["get", "list", "watch"];
    let writing =
        role.rules.into_iter().flatten().filter(|rule| !rule.verbs.iter().all(|verb| reads.contains(&&**verb)));
    let groups: BTreeSet<String> = writing.filter_map(|rule| rule.api_groups).flatten().collect();
    assert!(groups.len() > 3 && groups.iter().all(|group| denied.contains(group)), "{groups:?}, {denied:?}");
    Ok(())
}
