//! Plans the CSIStorageCapacity objects of this node, one per storage class. Pure.
//!
//! The scheduler selects a node for a claim only if an object of the claim's class and the node's topology has a
//! `maximumVolumeSize` of at least the request. `capacity` is for users, and for schedulers that score nodes by it.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::{CSIStorageCapacity, StorageClass};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta, OwnerReference};
use kube::{Resource as _, ResourceExt as _};
use sha2::{Digest as _, Sha256};
use units::Bytes;
use volume::{DRIVER_NAME, Space, TOPOLOGY_KEY, VolumeMode};

use crate::class;
use crate::quantity;

pub(crate) const NAMESPACE: &str = "kube-system";

const DRIVER_LABEL: &str = "csi.storage.k8s.io/drivername";
const NODE_LABEL: &str = "local.granary.dev/node";

/// Bytes of the digest of a class name in the object's name.
const DIGEST_LEN: usize = 8;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClassCapacity {
    pub(crate) class: String,
    pub(crate) free: Bytes,
    /// The largest claim that fits in one of the modes.
    pub(crate) largest: Bytes,
}

/// The Node object, which owns the capacity objects: its deletion deletes them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) uid: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Create {
        name: String,
        capacity: ClassCapacity,
    },
    Update {
        name: String,
        capacity: ClassCapacity,
    },
    /// The class was deleted, is of another provisioner, or does not match the object's name.
    Delete {
        name: String,
        uid: Option<String>,
    },
}

pub(crate) fn selector(node: &str) -> String {
    format!("{DRIVER_LABEL}={DRIVER_NAME},{NODE_LABEL}={node}")
}

/// The wanted capacities, by the names of their objects.
///
/// Includes classes that are rejected: otherwise no node would be selected for their claims, and no event would name
/// the reason.
pub(crate) fn wanted<'a>(
    classes: impl IntoIterator<Item = &'a StorageClass>,
    space: &Space,
    node: &str,
) -> BTreeMap<String, ClassCapacity> {
    let classes = classes.into_iter().filter(|class| class.provisioner == DRIVER_NAME);
    classes
        .map(|class| {
            let capacity =
                ClassCapacity { class: class.name_any(), free: space.free(), largest: largest(class, space) };
            (name(node, &capacity.class), capacity)
        })
        .collect()
}

/// Largest claim of the class that fits in one of the modes, because an object is for both modes. The provisioner
/// returns a claim that does not fit in its mode to the scheduler. If the object had the smaller size, a claim that
/// fits would wait forever.
fn largest(class: &StorageClass, space: &Space) -> Bytes {
    let filesystem = match class::parameters(class) {
        Ok(parameters) => space.largest(|size| parameters.mode(VolumeMode::Filesystem, size)),
        Err(_) => space.largest_filesystem(),
    };
    filesystem.max(space.largest_block())
}

/// The changes from `found` to `wanted`. Ignores objects of other nodes.
pub(crate) fn diff<'a>(
    wanted: &BTreeMap<String, ClassCapacity>,
    found: impl IntoIterator<Item = &'a CSIStorageCapacity>,
    node: &str,
) -> Vec<Step> {
    let mut missing = wanted.clone();
    let mut steps = Vec::new();
    for object in found.into_iter().filter(|object| is_of_node(object, node)) {
        let name = object.name_any();
        match missing.remove(&name) {
            Some(capacity) if matches(object, &capacity, node) => {}
            Some(capacity) if object.storage_class_name == capacity.class => {
                steps.push(Step::Update { name, capacity });
            }
            // The class of an object is immutable: the next pass creates the object again.
            Some(_) | None => steps.push(Step::Delete { name, uid: object.uid() }),
        }
    }
    steps.extend(missing.into_iter().map(|(name, capacity)| Step::Create { name, capacity }));
    steps
}

pub(crate) fn build(name: &str, capacity: &ClassCapacity, node: &str, owner: &Owner) -> CSIStorageCapacity {
    CSIStorageCapacity {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(NAMESPACE.to_owned()),
            labels: Some(labels(node)),
            owner_references: Some(vec![OwnerReference {
                api_version: Node::api_version(&()).into_owned(),
                kind: Node::kind(&()).into_owned(),
                name: node.to_owned(),
                uid: owner.uid.clone(),
                ..OwnerReference::default()
            }]),
            ..ObjectMeta::default()
        },
        node_topology: Some(topology(node)),
        storage_class_name: capacity.class.clone(),
        capacity: Some(Quantity(quantity::text(capacity.free))),
        maximum_volume_size: Some(Quantity(quantity::text(capacity.largest))),
    }
}

/// One name per node and class. The admission policy checks that it ends with the node's name.
fn name(node: &str, class: &str) -> String {
    let digest = Sha256::digest(class);
    let start: String = digest.iter().take(DIGEST_LEN).map(|byte| format!("{byte:02x}")).collect();
    format!("{start}.{node}.{DRIVER_NAME}")
}

fn labels(node: &str) -> BTreeMap<String, String> {
    [(DRIVER_LABEL, DRIVER_NAME), (NODE_LABEL, node)].map(|(key, value)| (key.to_owned(), value.to_owned())).into()
}

fn topology(node: &str) -> LabelSelector {
    LabelSelector { match_labels: Some([(TOPOLOGY_KEY.to_owned(), node.to_owned())].into()), match_expressions: None }
}

fn is_of_node(object: &CSIStorageCapacity, node: &str) -> bool {
    let named = object.metadata.name.as_deref().and_then(|name| name.strip_suffix(&format!(".{node}.{DRIVER_NAME}")));
    named.is_some_and(|digest| digest.len() == 2 * DIGEST_LEN && !digest.contains('.'))
        && object.node_topology.as_ref() == Some(&topology(node))
}

/// Whether the object has this content, and a Node of this name as its owner.
fn matches(object: &CSIStorageCapacity, capacity: &ClassCapacity, node: &str) -> bool {
    let is = |found: &Option<Quantity>, wanted: Bytes| {
        found.as_ref().is_some_and(|found| quantity::bytes(&found.0) == Ok(wanted))
    };
    object.storage_class_name == capacity.class
        && is(&object.capacity, capacity.free)
        && is(&object.maximum_volume_size, capacity.largest)
        && object.owner_references().iter().any(|owner| owner.kind == Node::kind(&()) && owner.name == node)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;
    use volume::Overcommit;

    use super::*;

    const NODE: &str = "granary";

    fn class(name: &str, provisioner: &str) -> StorageClass {
        serde_json::from_value(json!({"metadata": {"name": name}, "provisioner": provisioner})).expect("a class")
    }

    fn space(free: Bytes) -> Space {
        Space { size: free, reserved: Bytes::ZERO, reserve: Bytes::ZERO, overcommit: Overcommit::NONE }
    }

    fn owner() -> Owner {
        Owner { uid: "u".into() }
    }

    fn after(mut objects: BTreeMap<String, CSIStorageCapacity>, step: &Step) -> BTreeMap<String, CSIStorageCapacity> {
        match step {
            Step::Create { name, capacity } | Step::Update { name, capacity } => {
                objects.insert(name.clone(), build(name, capacity, NODE, &owner()));
            }
            Step::Delete { name, .. } => {
                objects.remove(name);
            }
        }
        objects
    }

    #[test]
    fn only_classes_of_the_driver_are_published() {
        let classes = [class("local", DRIVER_NAME), class("mine", DRIVER_NAME), class("other", "example.invalid")];
        let wanted = wanted(&classes, &space(Bytes::GIB), NODE);
        let published: Vec<_> = wanted.values().map(|one| (one.class.as_str(), one.free)).collect();
        assert_eq!(published.len(), 2);
        for name in ["local", "mine"] {
            assert!(published.contains(&(name, Bytes::GIB)), "{published:?}");
        }
    }

    #[test]
    fn a_rejected_class_is_published_too() {
        let mut odd = class("odd", DRIVER_NAME);
        odd.parameters = Some([("colour".to_owned(), "red".to_owned())].into());
        let wanted = wanted(&[odd], &space(Bytes::GIB), NODE);
        assert!(wanted.values().all(|one| one.largest > Bytes::ZERO));
        assert_eq!(wanted.len(), 1);
    }

    #[test]
    fn an_object_has_all_fields_for_the_scheduler() {
        let wanted = wanted(&[class("local", DRIVER_NAME)], &space(Bytes::GIB), NODE);
        let (name, capacity) = wanted.first_key_value().expect("one");
        let object = serde_json::to_value(build(name, capacity, NODE, &owner())).expect("JSON");
        assert_eq!(object["nodeTopology"], json!({"matchLabels": {"kubernetes.io/hostname": NODE}}));
        assert_eq!(object["storageClassName"], "local");
        assert_eq!(object["capacity"], "1Gi");
        assert_eq!(object["metadata"]["namespace"], "kube-system");
        let owner = json!([{"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": "u"}]);
        assert_eq!(object["metadata"]["ownerReferences"], owner);
        for label in selector(NODE).split(',') {
            let (key, value) = label.split_once('=').expect("a label");
            assert_eq!(object["metadata"]["labels"][key], value);
        }
    }

    #[test]
    fn a_name_is_a_dns_subdomain_that_ends_with_the_node() {
        let longest = "n".repeat(63);
        let name = name(&longest, &"c".repeat(253));
        assert!(name.len() <= 253, "{}", name.len());
        assert!(name.ends_with(&format!(".{longest}.{DRIVER_NAME}")));
        assert!(name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'.'), "{name}");
        // The admission policy compares the length of the name.
        assert_eq!(super::name(NODE, "local").len(), 35 + NODE.len());
    }

    #[test]
    fn objects_of_other_nodes_are_ignored() {
        let capacity = ClassCapacity { class: "gone".into(), free: Bytes::GIB, largest: Bytes::GIB };
        let of = |node: &str| build(&name(node, "gone"), &capacity, node, &owner());
        let mut hand_made = of(NODE);
        hand_made.metadata.name = Some("by-hand".into());
        let mut elsewhere = of(NODE);
        elsewhere.node_topology = Some(topology("other"));
        let mut everywhere = of(NODE);
        everywhere.node_topology = None;
        let dotted = of("a.granary");
        for foreign in [of("other"), hand_made, elsewhere, everywhere, dotted, CSIStorageCapacity::default()] {
            assert_eq!(diff(&BTreeMap::new(), [&foreign], NODE), [], "{foreign:?}");
        }
        let gone = diff(&BTreeMap::new(), [&of(NODE)], NODE);
        assert_eq!(gone, [Step::Delete { name: name(NODE, "gone"), uid: None }]);
    }

    #[test]
    fn an_object_without_its_node_as_owner_is_updated() {
        let wanted = wanted(&[class("local", DRIVER_NAME)], &space(Bytes::GIB), NODE);
        let (name, capacity) = wanted.first_key_value().expect("one");
        let mut object = build(name, capacity, NODE, &owner());
        // The garbage collector deletes objects with the UID of an earlier Node.
        object.metadata.owner_references = Some(vec![]);
        assert_eq!(diff(&wanted, [&object], NODE), [Step::Update { name: name.clone(), capacity: capacity.clone() }]);
    }

    #[test]
    fn quantities_are_compared_by_value() {
        let wanted = wanted(&[class("local", DRIVER_NAME)], &space(Bytes::GIB), NODE);
        let (name, capacity) = wanted.first_key_value().expect("one");
        let mut object = build(name, capacity, NODE, &owner());
        object.capacity = Some(Quantity("1048576Ki".into()));
        assert_eq!(diff(&wanted, [&object], NODE), []);
        object.capacity = Some(Quantity("much".into()));
        assert_eq!(diff(&wanted, [&object], NODE).len(), 1);
    }

    fn capacities() -> impl Strategy<Value = BTreeMap<String, ClassCapacity>> {
        prop::collection::btree_map("[ab]{1,2}", (0u64..4, 0u64..4), 0..5).prop_map(|capacities| {
            let capacity = |(class, (free, largest))| ClassCapacity {
                class,
                free: Bytes::new(free),
                largest: Bytes::new(largest),
            };
            capacities.into_iter().map(capacity).map(|one| (name(NODE, &one.class), one)).collect()
        })
    }

    fn objects(capacities: &BTreeMap<String, ClassCapacity>) -> BTreeMap<String, CSIStorageCapacity> {
        capacities.iter().map(|(name, capacity)| (name.clone(), build(name, capacity, NODE, &owner()))).collect()
    }

    #[test]
    fn the_largest_volume_is_a_device_unless_inodes_are_few() {
        let with = |ratio: &str| {
            let mut class = class("mine", DRIVER_NAME);
            class.parameters = Some([("bytesPerInode".to_owned(), ratio.to_owned())].into());
            largest(&class, &space(Bytes::GIB))
        };
        assert_eq!(with("2048"), largest(&class("local", DRIVER_NAME), &space(Bytes::GIB)));
        // A block volume needs space for the extent map of its image only.
        assert_eq!(with("2048"), space(Bytes::GIB).largest_block());
        assert!(space(Bytes::GIB).largest_block() < with("1048576") && with("1048576") < with("1073741824"));
    }

    proptest! {
        #[test]
        fn the_largest_claim_fits_in_one_of_the_modes(free in 0u64..1 << 50, ratio in 512u64..1 << 30) {
            let space = space(Bytes::new(free));
            let mut class = class("mine", DRIVER_NAME);
            class.parameters = Some([("bytesPerInode".to_owned(), ratio.to_string())].into());
            let found = class::parameters(&class).expect("it is a good class");
            let modes = |size| [VolumeMode::Filesystem, VolumeMode::Block].map(|mode| found.mode(mode, size));
            let largest = largest(&class, &space);
            prop_assert!(largest.get().is_multiple_of(4096));
            prop_assert!(largest == Bytes::ZERO || modes(largest).iter().any(|mode| mode.reserved(largest) <= space.free()));
            let more = largest.saturating_add(Bytes::new(4096));
            prop_assert!(modes(more).iter().all(|mode| mode.reserved(more) > space.free()));
        }

        #[test]
        fn steps_lead_to_the_wanted_objects(have in capacities(), want in capacities(), cut in 0usize..6) {
            let have = objects(&have);
            let steps = diff(&want, have.values(), NODE);
            // The first pass is interrupted after `cut` steps, and the next pass completes the work.
            let half = steps.iter().take(cut).fold(have.clone(), after);
            let done = diff(&want, half.values(), NODE).iter().fold(half, after);
            prop_assert_eq!(&done, &objects(&want));
            prop_assert_eq!(diff(&want, done.values(), NODE), []);
            // Correct objects are not written.
            let right = have.iter().filter(|(name, object)| objects(&want).get(*name) == Some(*object)).count();
            prop_assert_eq!(steps.len() + right, have.len() + want.keys().filter(|name| !have.contains_key(*name)).count());
        }

        #[test]
        fn an_object_of_another_class_is_deleted(want in capacities(), class in "[cd]{1,2}") {
            for (name, capacity) in &want {
                let mut object = build(name, capacity, NODE, &owner());
                object.storage_class_name.clone_from(&class);
                let only = [(name.clone(), capacity.clone())].into();
                let steps = diff(&only, [&object], NODE);
                prop_assert_eq!(steps, [Step::Delete { name: name.clone(), uid: None }]);
            }
        }
    }
}
