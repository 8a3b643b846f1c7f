//! What the scheduler is told of this node's room: one object per storage class. Pure.
//!
//! The scheduler puts a claim only where some object of the claim's class, whose topology the node has, says
//! `maximumVolumeSize` ≥ what the claim asks for. `capacity` is for people, and for schedulers that prefer the fuller
//! or the emptier node.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::{CSIStorageCapacity, StorageClass};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta, OwnerReference};
use kube::{Resource as _, ResourceExt as _};
use sha2::{Digest as _, Sha256};
use units::Bytes;
use volume::{DRIVER_NAME, Space, TOPOLOGY_KEY};

use crate::class::{self, VolumeMode};
use crate::quantity;

/// Where the objects are.
pub(crate) const NAMESPACE: &str = "kube-system";

/// Whose object it is, for the watch.
const DRIVER_LABEL: &str = "csi.storage.k8s.io/drivername";
const NODE_LABEL: &str = "local.granary.dev/node";

/// Bytes of a class name's digest that stand in the object's name.
const DIGEST_LEN: usize = 8;

/// What one class still finds on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    pub(crate) class: String,
    /// What may still be promised.
    pub(crate) free: Bytes,
    /// The largest claim that would be served, in either mode.
    pub(crate) largest: Bytes,
}

/// The Node object, which takes the capacity objects along when it goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) uid: String,
}

/// One change of one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// There is none of this name.
    Create { name: String, room: Room },
    /// It says something else.
    Update { name: String, room: Room },
    /// Its class is gone, or another provisioner's, or not the one its name says.
    Delete { name: String, uid: Option<String> },
}

/// Which objects the watch has to bring.
pub(crate) fn selector(node: &str) -> String {
    format!("{DRIVER_LABEL}={DRIVER_NAME},{NODE_LABEL}={node}")
}

/// What is to be told, by the objects' names.
///
/// A class that no claim can be served with is told of too: else its claims would never come here, and nobody would
/// hear what is wrong with it.
pub(crate) fn wanted<'a>(
    classes: impl IntoIterator<Item = &'a StorageClass>,
    space: &Space,
    node: &str,
) -> BTreeMap<String, Room> {
    let ours = classes.into_iter().filter(|class| class.provisioner == DRIVER_NAME);
    ours.map(|class| {
        let room = Room { class: class.name_any(), free: space.free(), largest: largest(class, space) };
        (name(node, &room.class), room)
    })
    .collect()
}

/// The largest claim of the class that would be served in either mode: an object does not tell modes apart, and a claim
/// that comes here in vain would only be given back.
fn largest(class: &StorageClass, space: &Space) -> Bytes {
    let filesystem = match class::parameters(class) {
        Ok(parameters) => space.largest(|size| parameters.mode(VolumeMode::Filesystem, size)),
        Err(_) => space.largest_filesystem(),
    };
    filesystem.min(space.largest_block())
}

/// What makes `seen` say what is `wanted`. Objects that are not this node's are left alone.
pub(crate) fn diff<'a>(
    wanted: &BTreeMap<String, Room>,
    seen: impl IntoIterator<Item = &'a CSIStorageCapacity>,
    node: &str,
) -> Vec<Step> {
    let mut missing = wanted.clone();
    let mut steps = Vec::new();
    for object in seen.into_iter().filter(|object| is_ours(object, node)) {
        let name = object.name_any();
        match missing.remove(&name) {
            Some(room) if tells(object, &room, node) => {}
            Some(room) if object.storage_class_name == room.class => steps.push(Step::Update { name, room }),
            // Nothing but making it anew changes its class.
            Some(_) | None => steps.push(Step::Delete { name, uid: object.uid() }),
        }
    }
    steps.extend(missing.into_iter().map(|(name, room)| Step::Create { name, room }));
    steps
}

/// The whole object.
pub(crate) fn build(name: &str, room: &Room, node: &str, owner: &Owner) -> CSIStorageCapacity {
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
        storage_class_name: room.class.clone(),
        capacity: Some(Quantity(quantity::text(room.free))),
        maximum_volume_size: Some(Quantity(quantity::text(room.largest))),
    }
}

/// One name per node and class, that ends in the node's: an admission policy can tell whose it is.
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

fn is_ours(object: &CSIStorageCapacity, node: &str) -> bool {
    let named = object.metadata.name.as_deref().and_then(|name| name.strip_suffix(&format!(".{node}.{DRIVER_NAME}")));
    named.is_some_and(|digest| digest.len() == 2 * DIGEST_LEN && !digest.contains('.'))
        && object.node_topology.as_ref() == Some(&topology(node))
}

/// Whether the object says this, and goes with a Node of this name: which one, only the one who makes it has to know.
fn tells(object: &CSIStorageCapacity, room: &Room, node: &str) -> bool {
    let is = |found: &Option<Quantity>, wanted: Bytes| {
        found.as_ref().is_some_and(|found| quantity::bytes(&found.0) == Ok(wanted))
    };
    object.storage_class_name == room.class
        && is(&object.capacity, room.free)
        && is(&object.maximum_volume_size, room.largest)
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

    /// A disk with so much left.
    fn space(free: Bytes) -> Space {
        Space { size: free, reserved: Bytes::ZERO, reserve: Bytes::ZERO, overcommit: Overcommit::NONE }
    }

    fn owner() -> Owner {
        Owner { uid: "u".into() }
    }

    /// What is there after a step.
    fn after(mut seen: BTreeMap<String, CSIStorageCapacity>, step: &Step) -> BTreeMap<String, CSIStorageCapacity> {
        match step {
            Step::Create { name, room } | Step::Update { name, room } => {
                seen.insert(name.clone(), build(name, room, NODE, &owner()));
            }
            Step::Delete { name, .. } => {
                seen.remove(name);
            }
        }
        seen
    }

    #[test]
    fn every_class_of_ours_is_told_of_and_no_other() {
        let classes = [class("local", DRIVER_NAME), class("mine", DRIVER_NAME), class("other", "example.invalid")];
        let wanted = wanted(&classes, &space(Bytes::GIB), NODE);
        let told: Vec<_> = wanted.values().map(|room| (room.class.as_str(), room.free)).collect();
        assert_eq!(told.len(), 2);
        for name in ["local", "mine"] {
            assert!(told.contains(&(name, Bytes::GIB)), "{told:?}");
        }
    }

    #[test]
    fn a_class_that_is_refused_is_told_of_so_that_its_claims_hear_why() {
        let mut odd = class("odd", DRIVER_NAME);
        odd.parameters = Some([("colour".to_owned(), "red".to_owned())].into());
        let wanted = wanted(&[odd], &space(Bytes::GIB), NODE);
        assert!(wanted.values().all(|room| room.largest > Bytes::ZERO));
        assert_eq!(wanted.len(), 1);
    }

    #[test]
    fn an_object_says_everything_the_scheduler_asks_for() {
        let wanted = wanted(&[class("local", DRIVER_NAME)], &space(Bytes::GIB), NODE);
        let (name, room) = wanted.first_key_value().expect("one");
        let object = serde_json::to_value(build(name, room, NODE, &owner())).expect("JSON");
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
    fn a_name_tells_the_node_and_is_a_dns_subdomain_of_bounded_length() {
        let longest = "n".repeat(63);
        let name = name(&longest, &"c".repeat(253));
        assert!(name.len() <= 253, "{}", name.len());
        assert!(name.ends_with(&format!(".{longest}.{DRIVER_NAME}")));
        assert!(name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'.'), "{name}");
        // A policy compares this length: no other node's name ends the same way and is as long.
        assert_eq!(super::name(NODE, "local").len(), 35 + NODE.len());
    }

    #[test]
    fn objects_of_others_are_left_alone() {
        let room = Room { class: "gone".into(), free: Bytes::GIB, largest: Bytes::GIB };
        let of = |node: &str| build(&name(node, "gone"), &room, node, &owner());
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
    fn an_object_without_its_node_as_owner_is_mended() {
        let wanted = wanted(&[class("local", DRIVER_NAME)], &space(Bytes::GIB), NODE);
        let (name, room) = wanted.first_key_value().expect("one");
        let mut object = build(name, room, NODE, &owner());
        // The uid is not known here: an object with a dead one is collected, and made anew.
        object.metadata.owner_references = Some(vec![]);
        assert_eq!(diff(&wanted, [&object], NODE), [Step::Update { name: name.clone(), room: room.clone() }]);
    }

    #[test]
    fn numbers_are_compared_not_their_text() {
        let wanted = wanted(&[class("local", DRIVER_NAME)], &space(Bytes::GIB), NODE);
        let (name, room) = wanted.first_key_value().expect("one");
        let mut object = build(name, room, NODE, &owner());
        object.capacity = Some(Quantity("1048576Ki".into()));
        assert_eq!(diff(&wanted, [&object], NODE), []);
        object.capacity = Some(Quantity("much".into()));
        assert_eq!(diff(&wanted, [&object], NODE).len(), 1);
    }

    fn rooms() -> impl Strategy<Value = BTreeMap<String, Room>> {
        prop::collection::btree_map("[ab]{1,2}", (0u64..4, 0u64..4), 0..5).prop_map(|rooms| {
            let room = |(class, (free, largest))| Room { class, free: Bytes::new(free), largest: Bytes::new(largest) };
            rooms.into_iter().map(room).map(|room| (name(NODE, &room.class), room)).collect()
        })
    }

    fn objects(rooms: &BTreeMap<String, Room>) -> BTreeMap<String, CSIStorageCapacity> {
        rooms.iter().map(|(name, room)| (name.clone(), build(name, room, NODE, &owner()))).collect()
    }

    #[test]
    fn a_class_with_fewer_files_finds_more_room() {
        let with = |ratio: &str| {
            let mut class = class("mine", DRIVER_NAME);
            class.parameters = Some([("bytesPerInode".to_owned(), ratio.to_owned())].into());
            largest(&class, &space(Bytes::GIB))
        };
        assert_eq!(with("2048"), largest(&class("local", DRIVER_NAME), &space(Bytes::GIB)));
        assert!(with("512") < with("2048") && with("2048") < with("16384"));
        // A disk needs room for the map of its image, however few files there are.
        assert_eq!(with("1073741824"), space(Bytes::GIB).largest_block());
    }

    proptest! {
        #[test]
        fn a_claim_as_large_as_told_fits_in_either_mode(free in 0u64..1 << 50, ratio in 512u64..1 << 30) {
            let space = space(Bytes::new(free));
            let mut class = class("mine", DRIVER_NAME);
            class.parameters = Some([("bytesPerInode".to_owned(), ratio.to_string())].into());
            let found = class::parameters(&class).expect("it is a good class");
            let modes = |size| [VolumeMode::Filesystem, VolumeMode::Block].map(|mode| found.mode(mode, size));
            let told = largest(&class, &space);
            prop_assert!(told.get().is_multiple_of(4096));
            prop_assert!(told == Bytes::ZERO || modes(told).iter().all(|mode| mode.reserved(told) <= space.free()));
            let more = told.saturating_add(Bytes::new(4096));
            prop_assert!(modes(more).iter().any(|mode| mode.reserved(more) > space.free()));
        }

        #[test]
        fn the_steps_make_what_is_there_what_is_wanted(have in rooms(), want in rooms(), cut in 0usize..6) {
            let have = objects(&have);
            let steps = diff(&want, have.values(), NODE);
            // Wherever it stops, the next pass finishes.
            let half = steps.iter().take(cut).fold(have.clone(), after);
            let done = diff(&want, half.values(), NODE).iter().fold(half, after);
            prop_assert_eq!(&done, &objects(&want));
            prop_assert_eq!(diff(&want, done.values(), NODE), []);
            // What is right is not touched.
            let right = have.iter().filter(|(name, object)| objects(&want).get(*name) == Some(*object)).count();
            prop_assert_eq!(steps.len() + right, have.len() + want.keys().filter(|name| !have.contains_key(*name)).count());
        }

        #[test]
        fn an_object_whose_class_is_not_what_its_name_says_is_made_anew(want in rooms(), class in "[cd]{1,2}") {
            for (name, room) in &want {
                let mut object = build(name, room, NODE, &owner());
                object.storage_class_name.clone_from(&class);
                let only = [(name.clone(), room.clone())].into();
                let steps = diff(&only, [&object], NODE);
                prop_assert_eq!(steps, [Step::Delete { name: name.clone(), uid: None }]);
            }
        }
    }
}
