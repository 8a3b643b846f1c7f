//! The real scheduler, which reads the node's capacity. The tests act as the kubelet.

use std::sync::Arc;

use cluster::TOPOLOGY_KEY;
use envtest::{Cluster, Failure, PATIENCE, Seen, create, eventually, merge, merge_status, remove, start};
use k8s_openapi::api::core::v1::Pod;
use kube::api::DeleteParams;
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};

use crate::capacity::{DISK, copy, objects, publishes, register};
use crate::clones::clone_of;
use crate::id_of;
use crate::node::{Node, SELECTED_NODE, STOP, until};

/// The scheduler's message about a node whose capacity is too small.
const NO_SPACE: &str = "did not have enough free storage";

/// The scheduler's message about a node that the pod does not select.
const NOT_SELECTED: &str = "didn't match Pod's node affinity/selector";

/// The scheduler's message about a node other than the selected one of a claim without a PV.
const NO_VOLUME: &str = "didn't find available persistent volumes to bind";

fn nodes(node: &Node) -> Api<k8s_openapi::api::core::v1::Node> {
    Api::all(node.admin.clone())
}

/// Status of a node that can run pods.
fn allocatable() -> Value {
    json!({"allocatable": {"pods": "10", "cpu": "1", "memory": "1Gi"}})
}

/// A node that can run pods, without a running provisioner.
async fn schedulable(cluster: &Cluster, namespace: &str) -> Result<Node, Failure> {
    let node = Node::stopped(cluster, namespace, DISK).await?;
    register(&node).await?;
    merge_status(&nodes(&node), &node.name, json!({"status": allocatable()})).await?;
    Ok(node)
}

async fn make_pod(node: &Node, claim: &str) -> Result<Api<Pod>, Failure> {
    node.pod(claim, &of_claim(claim)).await
}

fn of_claim(claim: &str) -> Value {
    json!({"persistentVolumeClaim": {"claimName": claim}})
}

async fn unschedulable(pods: &Api<Pod>, name: &str, reason: &str) -> Result<(), Failure> {
    until(&format!("{reason:?} about pod {name}"), async || {
        let pod = pods.get(name).await?;
        let conditions = pod.status.and_then(|status| status.conditions).unwrap_or_default();
        let scheduled = conditions.into_iter().find(|condition| condition.type_ == "PodScheduled");
        let message = scheduled.and_then(|condition| condition.message).unwrap_or_default();
        let chosen = pod.spec.and_then(|spec| spec.node_name);
        let done = chosen.is_none() && message.contains(reason);
        Ok((!done).then(|| format!("{message:?} on {chosen:?}")))
    })
    .await
}

async fn scheduled(pods: &Api<Pod>, name: &str) -> Result<(), Failure> {
    until(&format!("a node for pod {name}"), async || {
        let chosen = pods.get(name).await?.spec.and_then(|spec| spec.node_name);
        Ok(chosen.is_none().then(|| "none".to_owned()))
    })
    .await
}

async fn end_pod(pods: &Api<Pod>, name: &str) -> Result<(), Failure> {
    pods.delete(name, &DeleteParams::default().grace_period(0)).await?;
    Ok(())
}

pub(crate) async fn a_pod_waits_for_its_nodes_capacity(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let mut node = schedulable(&cluster, "scheduled").await?;
    let scheduler = cluster.start_scheduler().await?;
    let large = json!({"resources": {"requests": {"storage": "101Gi"}}});
    // A filesystem of this size does not fit in the 90 GiB that the first claim leaves: a fifth is for its inodes.
    let disk = json!({"volumeMode": "Block", "resources": {"requests": {"storage": "85Gi"}}});
    node.claim("fits", json!({"resources": {"requests": {"storage": "8Gi"}}})).await?;
    node.claim("large", large).await?;
    node.claim("disk", disk).await?;
    let pods = make_pod(&node, "fits").await?;
    // Without a capacity object, the scheduler treats the node as full.
    unschedulable(&pods, "fits", NO_SPACE).await?;
    node.run().await?;
    let pv = node.bound("fits").await?;
    scheduled(&pods, "fits").await?;
    // The scheduler does not select the node for a claim that does not fit.
    make_pod(&node, "large").await?;
    unschedulable(&pods, "large", NO_SPACE).await?;
    assert_eq!(node.volumes.live(), [pv.name_any().parse()?]);
    make_pod(&node, "disk").await?;
    node.bound("disk").await?;
    scheduled(&pods, "disk").await?;
    scheduler.stop(STOP).await?;
    for name in ["fits", "large", "disk"] {
        end_pod(&pods, name).await?;
    }
    node.end().await
}

/// The scheduler chooses the node for both claims by the same published capacity.
pub(crate) async fn one_of_two_claims_that_do_not_fit_together_is_served(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let mut node = schedulable(&cluster, "race").await?;
    node.run().await?;
    publishes(&node, &node.class, "100Gi").await?;
    node.halt().await?;
    let scheduler = cluster.start_scheduler().await?;
    let names = ["one", "two"];
    for name in names {
        node.claim(name, json!({"resources": {"requests": {"storage": "48Gi"}}})).await?;
    }
    let claims = node.claims();
    let chosen = async |name: &str| {
        let annotations = claims.get(name).await?.metadata.annotations.unwrap_or_default();
        Ok::<_, kube::Error>(annotations.get(SELECTED_NODE).cloned())
    };
    let pods = make_pod(&node, "one").await?;
    make_pod(&node, "two").await?;
    for name in names {
        until(&format!("the node of claim {name}"), async || {
            Ok(chosen(name).await?.is_none().then(|| "none".to_owned()))
        })
        .await?;
    }
    node.run().await?;
    let (first, second) = eventually(PATIENCE, "one of the claims to be bound", async || {
        for (name, other) in [("one", "two"), ("two", "one")] {
            let phase = claims.get(name).await?.status.and_then(|status| status.phase);
            if phase.as_deref() == Some("Bound") {
                return Ok::<_, kube::Error>(Seen::Done((name, other)));
            }
        }
        Ok(Seen::NotYet("neither is".to_owned()))
    })
    .await?;
    node.event_with(second, "ProvisioningFailed", &["60 GiB", "40 GiB free"]).await?;
    unschedulable(&pods, second, NO_SPACE).await?;
    assert_eq!(chosen(second).await?, None, "the claim was returned to the scheduler");
    let pv = node.bound(first).await?;
    scheduled(&pods, first).await?;
    assert_eq!(node.volumes.live(), [pv.name_any().parse()?]);

    // The second claim waits only for free space.
    end_pod(&pods, first).await?;
    claims.delete(first, &DeleteParams::default()).await?;
    node.gone(&pv).await?;
    node.bound(second).await?;
    scheduled(&pods, second).await?;
    scheduler.stop(STOP).await?;
    end_pod(&pods, second).await?;
    node.end().await
}

pub(crate) async fn a_claim_for_one_pod_makes_a_second_pod_wait(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let mut node = schedulable(&cluster, "one-pod").await?;
    let scheduler = cluster.start_scheduler().await?;
    node.run().await?;
    let claim = node.claim("data", json!({"accessModes": ["ReadWriteOncePod"]})).await?;
    let pods = node.pod("one", &of_claim("data")).await?;
    let pv = node.bound("data").await?;
    assert_eq!(pv.spec.and_then(|spec| spec.access_modes).unwrap_or_default(), ["ReadWriteOncePod"]);
    scheduled(&pods, "one").await?;
    node.pod("two", &of_claim("data")).await?;
    unschedulable(&pods, "two", "ReadWriteOncePod").await?;
    end_pod(&pods, "one").await?;
    scheduled(&pods, "two").await?;
    assert_eq!(node.claims().get("data").await?.uid(), claim.uid());
    scheduler.stop(STOP).await?;
    end_pod(&pods, "two").await?;
    node.end().await
}

/// The scheduler selects another node first: one pod prefers that node, and the other pod selects it.
pub(crate) async fn pods_with_a_clone_run_on_the_node_of_its_source_only(cluster: Arc<Cluster>) -> Result<(), Failure> {
    const OTHER: &str = "without-source";
    let mut node = schedulable(&cluster, "cloned").await?;
    node.run().await?;
    let capacity = publishes(&node, &node.class, "100Gi").await?;
    node.volume("data", json!({"volumeMode": "Block"})).await?;
    // Without a provisioner, the clones have no PVs, and only the annotation names the node.
    node.halt().await?;
    let other = json!({"metadata": {"name": OTHER, "labels": {TOPOLOGY_KEY: OTHER}}, "status": allocatable()});
    create(&nodes(&node), other).await?;
    copy(&node, &capacity, OTHER, OTHER).await?;
    let scheduler = cluster.start_scheduler().await?;
    let reclaimer = start("reclaimer", node.admin.clone(), reconciler::reclaim).await?;

    let term = json!({"matchExpressions": [{"key": TOPOLOGY_KEY, "operator": "In", "values": [OTHER]}]});
    let preferred = json!({"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "preference": term}]});
    node.claim("movable", clone_of("data")).await?;
    let pods = node.pod_with("movable", &of_claim("movable"), json!({"affinity": {"nodeAffinity": preferred}})).await?;
    node.claim("fixed", clone_of("data")).await?;
    node.pod_with("fixed", &of_claim("fixed"), json!({"nodeSelector": {TOPOLOGY_KEY: OTHER}})).await?;
    let source = format!("the data of claim data is on node {},", node.name);
    let former = format!("instead of node {OTHER}:");
    for name in ["movable", "fixed"] {
        node.event_with(name, "SourceNodeSelected", &[&source, &former]).await?;
    }
    node.event_with("fixed", "FailedScheduling", &[NOT_SELECTED, NO_VOLUME]).await?;

    node.run().await?;
    for name in ["movable", "fixed"] {
        node.bound(name).await?;
    }
    scheduled(&pods, "movable").await?;
    let chosen = pods.get("movable").await?.spec.and_then(|spec| spec.node_name);
    assert_eq!(chosen.as_ref(), Some(&node.name));
    unschedulable(&pods, "fixed", NOT_SELECTED).await?;
    let place = format!("pod fixed cannot run on node {}, which has the data of claim data:", node.name);
    node.event_with("fixed", "SourceNodeUnsuitable", &[&place, NOT_SELECTED]).await?;
    for name in ["movable", "fixed"] {
        end_pod(&pods, name).await?;
    }
    scheduler.stop(STOP).await?;
    reclaimer.stop(STOP).await?;
    remove(&objects(&node), OTHER).await?;
    remove(&nodes(&node), OTHER).await?;
    node.end().await
}

/// The user writes the annotation of the scheduler, which would select by the topology.
pub(crate) async fn topology_is_checked_when_a_user_selects_the_node(cluster: Arc<Cluster>) -> Result<(), Failure> {
    const ZONE: &str = "topology.kubernetes.io/zone";
    let node = Node::start(&cluster, "topology").await?;
    register(&node).await?;
    let nodes = nodes(&node);
    let zone = |zone: Value| json!({"metadata": {"labels": {ZONE: zone}}});
    merge(&nodes, &node.name, zone("a".into())).await?;
    let allow =
        |zones: [&str; 2]| json!({"allowedTopologies": [{"matchLabelExpressions": [{"key": ZONE, "values": zones}]}]});
    node.make_class(allow(["b", "c"])).await?;
    let claim = node.claim_here("elsewhere", json!({})).await?;
    let note = node.event("elsewhere", "ProvisioningFailed").await?;
    for part in [&node.class, &format!("{ZONE} in (b, c)"), &format!("the node {} has {ZONE}=a", node.name)] {
        assert!(note.contains(part), "{part}: {note}");
    }
    let id = id_of(&claim.uid().unwrap_or_default())?;
    assert_eq!(node.volumes.record(&id), None);
    assert_eq!(node.pvs().get_opt(id.as_str()).await?, None);

    // With immediate binding, the control plane selects again.
    let mut immediate = allow(["b", "c"]);
    immediate["volumeBindingMode"] = "Immediate".into();
    node.make_class(immediate).await?;
    node.claim_here("returned", json!({})).await?;
    let claims = node.claims();
    until("the claim without its node", async || {
        let found = claims.get("returned").await?;
        Ok(found.annotations().contains_key(SELECTED_NODE).then(|| format!("{:?}", found.annotations())))
    })
    .await?;

    node.make_class(allow(["a", "b"])).await?;
    node.provisioned("here", json!({})).await?;
    merge(&nodes, &node.name, zone(Value::Null)).await?;
    node.end().await
}
