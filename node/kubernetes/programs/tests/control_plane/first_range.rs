//! The first part of the pod network belongs to the control plane, independent of the start of kube-controller-manager.

use std::sync::Arc;

use envtest::{Cluster, Failure, PATIENCE, Seen, Suite, eventually};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use programs::first_range;
use serde_json::json;

pub fn cases(suite: Suite) -> Suite {
    suite
        .case("no_other_node_gets_the_control_planes_pod_range", no_other_node_gets_the_control_planes_pod_range)
        .case("a_first_pod_range_in_use_is_left_alone", a_first_pod_range_in_use_is_left_alone)
}

const FIRST: &str = "10.244.0.0/24";

fn node(name: &str, range: Option<&str>) -> Result<Node, serde_json::Error> {
    serde_json::from_value(json!({"metadata": {"name": name}, "spec": {"podCIDR": range}}))
}

async fn range(nodes: &Api<Node>, name: &str) -> Result<String, Failure> {
    let range = eventually(PATIENCE, "the range of a Node", async || {
        let spec = nodes.get(name).await?.spec.unwrap_or_default();
        Ok::<_, kube::Error>(match (spec.pod_cidr, spec.pod_cidrs) {
            (Some(range), Some(ranges)) => {
                assert_eq!(ranges, [range.as_str()], "{name}");
                Seen::Done(range)
            }
            other => Seen::NotYet(format!("{other:?}")),
        })
    });
    Ok(range.await?)
}

async fn delete(nodes: &Api<Node>, names: &[&str]) -> Result<(), Failure> {
    for name in names {
        nodes.delete(name, &DeleteParams::default()).await?;
    }
    Ok(())
}

/// kube-controller-manager starts with the Node, with other Nodes, and again.
async fn no_other_node_gets_the_control_planes_pod_range(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let nodes = Api::<Node>::all(cluster.admin());
    cluster.stop_controllers().await?;
    // This Node precedes the control plane's Node in the alphabet and in its creation time.
    nodes.create(&PostParams::default(), &node("before", None)?).await?;
    let assigned = first_range::assign(&cluster.admin(), cluster.config()).await?;
    assert_eq!(assigned.map(|range| range.to_string()).as_deref(), Some(FIRST));
    assert_eq!(first_range::assign(&cluster.admin(), cluster.config()).await?, None, "it has one");
    let mut ranges = vec![FIRST.to_owned()];
    for name in ["before", "after"] {
        cluster.start_controllers().await?;
        if name == "after" {
            nodes.create(&PostParams::default(), &node(name, None)?).await?;
        }
        let range = range(&nodes, name).await?;
        assert!(!ranges.contains(&range), "{name} has {range}, as another of {ranges:?}");
        ranges.push(range);
        cluster.stop_controllers().await?;
    }
    assert_eq!(range(&nodes, cluster.node()).await?, FIRST);
    delete(&nodes, &[cluster.node(), "before", "after"]).await?;
    cluster.start_controllers().await?;
    Ok(())
}

/// The control plane's Node was deleted, and another Node has its range.
async fn a_first_pod_range_in_use_is_left_alone(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let nodes = Api::<Node>::all(cluster.admin());
    cluster.stop_controllers().await?;
    nodes.create(&PostParams::default(), &node("other", Some(FIRST))?).await?;
    assert_eq!(first_range::assign(&cluster.admin(), cluster.config()).await?, None);
    assert_eq!(nodes.get_opt(cluster.node()).await?, None);
    delete(&nodes, &["other"]).await?;
    // A Node of an earlier release, which kube-controller-manager has not processed yet.
    nodes.create(&PostParams::default(), &node(cluster.node(), None)?).await?;
    assert!(first_range::assign(&cluster.admin(), cluster.config()).await?.is_some());
    assert_eq!(range(&nodes, cluster.node()).await?, FIRST);
    delete(&nodes, &[cluster.node()]).await?;
    cluster.start_controllers().await?;
    Ok(())
}
