//! Selects the node of a claim whose class binds immediately. Pure.
//!
//! No scheduler selects a node for such a claim. Like the scheduler, this module selects a node that
//! `allowedTopologies` allow and whose published `maximumVolumeSize` is large enough. Of several nodes, it selects the
//! one with the most free space.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;

use cluster::quantity;
use cluster::{DRIVER_NAME, TOPOLOGY_KEY};
use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::{CSIStorageCapacity, StorageClass};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::ResourceExt as _;
use units::Bytes;

pub(crate) const OLD_CLASS: &str = "volume.beta.kubernetes.io/storage-class";

/// Objects of the cluster that a selection reads.
#[derive(Clone, Debug, Default)]
pub(crate) struct Published {
    pub(crate) classes: Vec<StorageClass>,
    pub(crate) nodes: Vec<Node>,
    pub(crate) capacities: Vec<CSIStorageCapacity>,
}

/// Results of earlier selections.
#[derive(Clone, Debug, Default)]
pub(crate) struct SelectionHistory {
    pub(crate) rejected: BTreeSet<String>,
    /// Bytes of claims that were assigned to the nodes so recently that the published capacity may not include them.
    pub(crate) assigned: BTreeMap<String, Bytes>,
}

/// Reason why a node cannot get the claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Obstacle {
    NotReady,
    Topology,
    Small,
    Rejected,
    /// The node is large enough, unless the published capacity lacks recent assignments.
    Assigned,
}

/// No node can get the claim now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NoNode {
    class: String,
    size: Bytes,
    nodes: BTreeMap<Obstacle, usize>,
    /// Size of the largest volume on the nodes that are too small.
    largest: Bytes,
}

pub(crate) fn class_of(claim: &PersistentVolumeClaim) -> Option<&str> {
    let old = claim.annotations().get(OLD_CLASS).map(String::as_str);
    let class = claim.spec.as_ref().and_then(|spec| spec.storage_class_name.as_deref());
    class.or(old).filter(|class| !class.is_empty())
}

pub(crate) fn find<'a>(class: &str, published: &'a Published) -> Option<&'a StorageClass> {
    published.classes.iter().find(|found| found.name_any() == class)
}

/// Whether the class is of Granary's driver and binds immediately, so that no scheduler selects the node.
pub(crate) fn binds_immediately(class: &StorageClass) -> bool {
    let mode = class.volume_binding_mode.as_deref().unwrap_or("Immediate");
    class.provisioner == DRIVER_NAME && mode == "Immediate"
}

pub(crate) fn select(
    size: Bytes,
    class: &StorageClass,
    published: &Published,
    history: &SelectionHistory,
) -> Result<String, NoNode> {
    let mut none = NoNode { class: class.name_any(), size, nodes: BTreeMap::new(), largest: Bytes::ZERO };
    let mut best = None;
    let mut hosts = HashMap::<&str, Vec<&Node>>::new();
    for node in &published.nodes {
        if let Some(host) = node.labels().get(TOPOLOGY_KEY) {
            hosts.entry(host).or_default().push(node);
        }
    }
    for capacity in published.capacities.iter().filter(|capacity| capacity.storage_class_name == none.class) {
        let nodes = host(capacity).and_then(|host| hosts.get(host)).into_iter().flatten();
        for node in nodes.filter(|node| is_of(capacity, node)) {
            let name = node.name_any();
            let free = bytes(capacity.capacity.as_ref());
            let largest = capacity.maximum_volume_size.as_ref().map_or(free, |size| bytes(Some(size)));
            let assigned = history.assigned.get(&name).copied().unwrap_or_default();
            let obstacle = if !is_ready(node) {
                Obstacle::NotReady
            } else if !allows(class, node) {
                Obstacle::Topology
            } else if history.rejected.contains(&name) {
                Obstacle::Rejected
            } else if largest < size {
                none.largest = none.largest.max(largest);
                Obstacle::Small
            } else if largest.saturating_sub(assigned) < size {
                Obstacle::Assigned
            } else {
                best = best.max(Some((Reverse(repels_pods(node)), free.saturating_sub(assigned), Reverse(name))));
                continue;
            };
            *none.nodes.entry(obstacle).or_default() += 1;
        }
    }
    best.map(|(_, _, Reverse(name))| name).ok_or(none)
}

impl NoNode {
    /// Whether a node may have enough space once its capacity includes recent assignments.
    pub(crate) fn is_temporary(&self) -> bool {
        self.nodes.contains_key(&Obstacle::Assigned)
    }
}

impl fmt::Display for NoNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { class, size, nodes, largest } = self;
        if nodes.is_empty() {
            return write!(f, "no node publishes free space for the class {class}; the selection is tried again");
        }
        let all: usize = nodes.values().sum();
        write!(f, "0 of {all} nodes with the class {class} can hold a volume of {size}: ")?;
        for (number, (obstacle, count)) in nodes.iter().enumerate() {
            let comma = if number > 0 { ", " } else { "" };
            write!(f, "{comma}{count} ")?;
            match obstacle {
                Obstacle::NotReady => write!(f, "not ready or unschedulable")?,
                Obstacle::Topology => write!(f, "excluded by allowedTopologies")?,
                Obstacle::Small => write!(f, "with too little free space (at most {largest})")?,
                Obstacle::Rejected => write!(f, "that just rejected the claim")?,
                Obstacle::Assigned => write!(f, "with too little free space after recent assignments")?,
            }
        }
        write!(f, "; delete volumes, request less, or add a node; the selection is tried again")
    }
}

/// Host of a capacity object. Nodes publish capacities only with labels, so an object without this label belongs to no
/// node.
fn host(capacity: &CSIStorageCapacity) -> Option<&str> {
    let labels = capacity.node_topology.as_ref()?.match_labels.as_ref()?;
    labels.get(TOPOLOGY_KEY).map(String::as_str)
}

fn is_of(capacity: &CSIStorageCapacity, node: &Node) -> bool {
    let labels = capacity.node_topology.as_ref().and_then(|topology| topology.match_labels.as_ref());
    labels.is_some_and(|labels| labels.iter().all(|(key, value)| node.labels().get(key) == Some(value)))
}

fn is_ready(node: &Node) -> bool {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let is_cordoned = node.spec.as_ref().and_then(|spec| spec.unschedulable).unwrap_or_default();
    let mut ready = conditions.filter(|condition| condition.type_ == "Ready");
    !is_cordoned && node.metadata.deletion_timestamp.is_none() && ready.any(|condition| condition.status == "True")
}

/// Whether pods without tolerations cannot run on the node.
fn repels_pods(node: &Node) -> bool {
    let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    taints.into_iter().any(|taint| matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute"))
}

/// Matches like the scheduler (`MatchTopologySelectorTerms`): a term without expressions matches no node.
fn allows(class: &StorageClass, node: &Node) -> bool {
    let terms = class.allowed_topologies.as_deref().unwrap_or_default();
    let mut expressions = terms.iter().map(|term| term.match_label_expressions.as_deref().unwrap_or_default());
    terms.is_empty()
        || expressions.any(|term| {
            !term.is_empty()
                && term.iter().all(|only| node.labels().get(&only.key).is_some_and(|value| only.values.contains(value)))
        })
}

/// Bytes of a quantity. An invalid quantity counts as no space.
fn bytes(size: Option<&Quantity>) -> Bytes {
    size.and_then(|size| quantity::bytes(&size.0).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const ZONE: &str = "topology.kubernetes.io/zone";

    fn class(more: Value) -> StorageClass {
        let mut class =
            json!({"metadata": {"name": "now"}, "provisioner": DRIVER_NAME, "volumeBindingMode": "Immediate"});
        class.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap());
        serde_json::from_value(class).unwrap()
    }

    fn node(name: &str, zone: &str) -> Node {
        let node = json!({
            "metadata": {"name": name, "labels": {TOPOLOGY_KEY: name, ZONE: zone}},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        });
        serde_json::from_value(node).unwrap()
    }

    fn capacity(node: &str, class: &str, free: &str, largest: &str) -> CSIStorageCapacity {
        let capacity = json!({
            "metadata": {"name": format!("{class}.{node}")}, "storageClassName": class, "capacity": free,
            "maximumVolumeSize": largest, "nodeTopology": {"matchLabels": {TOPOLOGY_KEY: node}},
        });
        serde_json::from_value(capacity).unwrap()
    }

    /// `large` has more free space than `small`, and both have enough.
    fn two() -> Published {
        Published {
            classes: Vec::new(),
            nodes: vec![node("large", "a"), node("small", "b")],
            capacities: vec![
                capacity("small", "now", "10Gi", "8Gi"),
                capacity("large", "now", "20Gi", "16Gi"),
                capacity("small", "other", "90Gi", "90Gi"),
            ],
        }
    }

    fn selected(
        gib: u64,
        class: &StorageClass,
        published: &Published,
        history: &SelectionHistory,
    ) -> Result<String, String> {
        select(Bytes::new(gib << 30), class, published, history).map_err(|none| none.to_string())
    }

    fn rejected(nodes: &[&str]) -> SelectionHistory {
        SelectionHistory {
            rejected: nodes.iter().map(|node| (*node).to_owned()).collect(),
            ..SelectionHistory::default()
        }
    }

    fn name(node: &str) -> Result<String, String> {
        Ok(node.to_owned())
    }

    #[test]
    fn only_immediate_classes_of_the_driver_need_a_node() {
        assert!(binds_immediately(&class(json!({}))));
        assert!(binds_immediately(&class(json!({"volumeBindingMode": null}))));
        assert!(!binds_immediately(&class(json!({"volumeBindingMode": "WaitForFirstConsumer"}))));
        assert!(!binds_immediately(&class(json!({"provisioner": "example.invalid"}))));
    }

    #[test]
    fn the_node_with_the_most_free_space_is_selected() {
        assert_eq!(selected(8, &class(json!({})), &two(), &SelectionHistory::default()), name("large"));
    }

    #[test]
    fn a_node_that_rejected_the_claim_is_not_selected() {
        let class = class(json!({}));
        assert_eq!(selected(8, &class, &two(), &rejected(&["large"])), name("small"));
        assert_eq!(
            selected(8, &class, &two(), &rejected(&["large", "small"])).unwrap_err(),
            "0 of 2 nodes with the class now can hold a volume of 8 GiB: 2 that just rejected the claim; delete \
             volumes, request less, or add a node; the selection is tried again"
        );
    }

    #[test]
    fn the_largest_volume_must_fit() {
        let class = class(json!({}));
        assert_eq!(selected(16, &class, &two(), &SelectionHistory::default()), name("large"));
        let error = selected(17, &class, &two(), &rejected(&["small"])).unwrap_err();
        assert!(error.contains("1 with too little free space (at most 16 GiB), 1 that just rejected"), "{error}");
        let mut without = two();
        without.capacities[1].maximum_volume_size = None;
        assert_eq!(selected(20, &class, &without, &SelectionHistory::default()), name("large"));
    }

    #[test]
    fn allowed_topologies_are_respected() {
        let of = |zones: &[&str]| {
            let expression = json!({"key": ZONE, "values": zones});
            class(json!({"allowedTopologies": [{"matchLabelExpressions": [expression]}]}))
        };
        assert_eq!(selected(8, &of(&["b", "c"]), &two(), &SelectionHistory::default()), name("small"));
        let error = selected(8, &of(&["c"]), &two(), &SelectionHistory::default()).unwrap_err();
        assert!(error.contains("2 excluded by allowedTopologies"), "{error}");
        assert!(selected(8, &class(json!({"allowedTopologies": [{}]})), &two(), &SelectionHistory::default()).is_err());
    }

    #[test]
    fn nodes_that_are_not_ready_or_cordoned_are_not_selected() {
        let class = class(json!({}));
        for change in [
            json!({"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}),
            json!({"status": {}}),
            json!({"spec": {"unschedulable": true}}),
        ] {
            let mut large = serde_json::to_value(node("large", "a")).unwrap();
            large.as_object_mut().unwrap().extend(change.as_object().cloned().unwrap());
            let mut published = two();
            published.nodes[0] = serde_json::from_value(large).unwrap();
            assert_eq!(selected(8, &class, &published, &SelectionHistory::default()), name("small"), "{change}");
        }
    }

    #[test]
    fn a_node_without_pods_is_the_last_choice() {
        let mut published = two();
        let taint = json!({"taints": [{"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}]});
        published.nodes[0].spec = Some(serde_json::from_value(taint).unwrap());
        let class = class(json!({}));
        assert_eq!(selected(8, &class, &published, &SelectionHistory::default()), name("small"));
        assert_eq!(selected(9, &class, &published, &SelectionHistory::default()), name("large"));
    }

    #[test]
    fn recent_assignments_count_as_used() {
        let class = class(json!({}));
        let assigned = |large: u64, small: u64| SelectionHistory {
            assigned: [("large", large), ("small", small)]
                .map(|(node, gib)| (node.to_owned(), Bytes::new(gib << 30)))
                .into(),
            ..SelectionHistory::default()
        };
        assert_eq!(selected(4, &class, &two(), &assigned(11, 0)), name("small"));
        assert_eq!(selected(8, &class, &two(), &assigned(8, 1)), name("large"));
        let none = select(Bytes::new(8 << 30), &class, &two(), &assigned(9, 1)).unwrap_err();
        assert!(none.is_temporary(), "{none}");
        let none = select(Bytes::new(99 << 30), &class, &two(), &assigned(9, 1)).unwrap_err();
        assert!(!none.is_temporary(), "{none}");
    }

    #[test]
    fn a_capacity_is_that_of_the_nodes_with_all_of_its_labels() {
        let class = class(json!({}));
        for (labels, expected) in [
            (json!({TOPOLOGY_KEY: "large", ZONE: "a"}), "large"),
            (json!({TOPOLOGY_KEY: "large", ZONE: "b"}), "small"),
            (json!({ZONE: "a"}), "small"),
            (json!({}), "small"),
        ] {
            let mut published = two();
            published.capacities[1].node_topology = serde_json::from_value(json!({"matchLabels": labels})).unwrap();
            assert_eq!(selected(8, &class, &published, &SelectionHistory::default()), name(expected), "{labels}");
        }
    }

    #[test]
    fn without_capacities_the_message_says_so() {
        let published = Published { capacities: Vec::new(), ..two() };
        assert_eq!(
            selected(1, &class(json!({})), &published, &SelectionHistory::default()).unwrap_err(),
            "no node publishes free space for the class now; the selection is tried again"
        );
    }

    #[test]
    fn the_class_is_that_of_the_spec_or_the_old_annotation() {
        let claim = |class: Value| -> PersistentVolumeClaim {
            let claim = json!({"metadata": {"annotations": {OLD_CLASS: "old"}}, "spec": {"storageClassName": class}});
            serde_json::from_value(claim).unwrap()
        };
        assert_eq!(class_of(&claim("now".into())), Some("now"));
        assert_eq!(class_of(&claim(Value::Null)), Some("old"));
        assert_eq!(class_of(&claim("".into())), None);
    }
}
