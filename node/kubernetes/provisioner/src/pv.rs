//! The PV of a volume, and what a PV of ours looks like. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    CSIPersistentVolumeSource, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, ObjectReference,
    PersistentVolume, PersistentVolumeClaim, PersistentVolumeSpec, VolumeNodeAffinity,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use units::Bytes;
use volume::{DRIVER_NAME, FINALIZER, PROVISIONED_BY, Record, VolumeId};

use crate::claim::Ask;
use crate::class::{ReclaimPolicy, VolumeMode};
use crate::quantity;

/// The PV that announces the volume, with what it really has. An admission policy lets a node create PVs of this shape
/// only (`reconciler::volumes`): a field more has to be one more there.
pub(crate) fn build(ask: &Ask, record: &Record, node: &str) -> PersistentVolume {
    let finalizers = match ask.reclaim {
        ReclaimPolicy::Delete => Some(vec![FINALIZER.to_owned()]),
        ReclaimPolicy::Retain => None,
    };
    PersistentVolume {
        metadata: ObjectMeta {
            name: Some(ask.id.to_string()),
            annotations: Some([(PROVISIONED_BY.to_owned(), DRIVER_NAME.to_owned())].into()),
            finalizers,
            ..ObjectMeta::default()
        },
        spec: Some(PersistentVolumeSpec {
            access_modes: Some(ask.access_modes.iter().map(|mode| mode.as_str().to_owned()).collect()),
            capacity: Some(BTreeMap::from([("storage".to_owned(), Quantity(quantity::text(record.size)))])),
            claim_ref: Some(ObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("PersistentVolumeClaim".to_owned()),
                namespace: Some(record.claim.namespace.clone()),
                name: Some(record.claim.name.clone()),
                uid: Some(record.claim.uid.clone()),
                ..ObjectReference::default()
            }),
            csi: Some(CSIPersistentVolumeSource {
                driver: DRIVER_NAME.to_owned(),
                volume_handle: ask.id.to_string(),
                ..CSIPersistentVolumeSource::default()
            }),
            node_affinity: Some(on_node(node)),
            persistent_volume_reclaim_policy: Some(ask.reclaim.as_str().to_owned()),
            storage_class_name: Some(record.class.clone()),
            volume_mode: Some(VolumeMode::from(record.mode).as_str().to_owned()),
            ..PersistentVolumeSpec::default()
        }),
        status: None,
    }
}

/// The volume that the PV stands for, if it is one of this node's.
pub(crate) fn ours(pv: &PersistentVolume, node: &str) -> Option<VolumeId> {
    let csi = pv.spec.as_ref()?.csi.as_ref().filter(|csi| csi.driver == DRIVER_NAME)?;
    let here = pv.spec.as_ref()?.node_affinity.as_ref().is_some_and(|affinity| names_node(affinity, node));
    if !here {
        return None;
    }
    csi.volume_handle.parse().ok()
}

/// The size that the PV promises.
pub(crate) fn capacity(pv: &PersistentVolume) -> Option<Bytes> {
    quantity::bytes(&pv.spec.as_ref()?.capacity.as_ref()?.get("storage")?.0).ok()
}

/// Whether the PV is the claim's, and not that of a former one of the same name.
pub(crate) fn is_of(pv: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let uid = pv.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref()).and_then(|claim| claim.uid.as_ref());
    uid.is_some() && uid == claim.metadata.uid.as_ref()
}

/// Whether the PV is of our driver, but lacks what says which volume of which node it is.
pub(crate) fn is_incomplete(pv: &PersistentVolume) -> bool {
    let Some(spec) = &pv.spec else { return false };
    let Some(csi) = spec.csi.as_ref().filter(|csi| csi.driver == DRIVER_NAME) else { return false };
    let placed = spec.node_affinity.as_ref().is_some_and(|affinity| hostnames(affinity).next().is_some());
    !placed || csi.volume_handle.parse::<VolumeId>().is_err()
}

/// Whether `found` announces the same volume for the same claim as `wanted`.
pub(crate) fn is_same(found: &PersistentVolume, wanted: &PersistentVolume, node: &str) -> bool {
    let claim = |pv: &PersistentVolume| {
        pv.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref()).and_then(|claim| claim.uid.clone())
    };
    ours(found, node).is_some() && ours(found, node) == ours(wanted, node) && claim(found) == claim(wanted)
}

fn on_node(node: &str) -> VolumeNodeAffinity {
    VolumeNodeAffinity {
        required: Some(NodeSelector {
            node_selector_terms: vec![NodeSelectorTerm {
                match_expressions: Some(vec![NodeSelectorRequirement {
                    key: volume::TOPOLOGY_KEY.to_owned(),
                    operator: "In".to_owned(),
                    values: Some(vec![node.to_owned()]),
                }]),
                match_fields: None,
            }],
        }),
    }
}

/// This node and no other: a PV that may be on two is on neither for us.
fn names_node(affinity: &VolumeNodeAffinity, node: &str) -> bool {
    let mut names = hostnames(affinity).peekable();
    names.peek().is_some() && names.all(|name| name == node)
}

fn hostnames(affinity: &VolumeNodeAffinity) -> impl Iterator<Item = &str> {
    let terms = affinity.required.iter().flat_map(|required| &required.node_selector_terms);
    let expressions = terms.flat_map(|term| term.match_expressions.iter().flatten());
    let of_hosts =
        expressions.filter(|expression| expression.key == volume::TOPOLOGY_KEY && expression.operator == "In");
    of_hosts.flat_map(|expression| expression.values.iter().flatten()).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use fsquota::ProjectId;
    use serde_json::{Value, json};
    use units::Inodes;
    use volume::{Allocation, Claim, Mode, Request, State};

    use super::*;
    use crate::claim::AccessMode;

    const NODE: &str = "granary";

    fn ask(reclaim: ReclaimPolicy) -> (Ask, Record) {
        let claim = Claim { uid: "u1".into(), namespace: "default".into(), name: "data".into() };
        let (size, mode) = (Bytes::GIB, Mode::Filesystem { inodes: Inodes::new(64) });
        let request = Request { claim: claim.clone(), class: "local".into(), mode, size };
        let id = "pvc-u1".parse().expect("an identifier");
        let record = Record {
            claim,
            class: "local".into(),
            mode,
            size,
            project: ProjectId::new(7).expect("an ID"),
            state: State::Staged,
        };
        (Ask { id, request, access_modes: vec![AccessMode::ReadWriteOnce], reclaim }, record)
    }

    fn built(reclaim: ReclaimPolicy) -> PersistentVolume {
        let (ask, record) = ask(reclaim);
        build(&ask, &record, NODE)
    }

    fn changed(change: impl FnOnce(&mut Value)) -> PersistentVolume {
        let mut pv = serde_json::to_value(built(ReclaimPolicy::Delete)).expect("JSON");
        change(&mut pv);
        serde_json::from_value(pv).expect("a PV")
    }

    #[test]
    fn the_pv_says_all_that_kubernetes_needs() {
        let expected = json!({
            "apiVersion": "v1", "kind": "PersistentVolume",
            "metadata": {
                "name": "pvc-u1",
                "annotations": {"pv.kubernetes.io/provisioned-by": "local.granary.dev"},
                "finalizers": ["local.granary.dev/volume"],
            },
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "capacity": {"storage": "1Gi"},
                "claimRef": {
                    "apiVersion": "v1", "kind": "PersistentVolumeClaim",
                    "namespace": "default", "name": "data", "uid": "u1",
                },
                "csi": {"driver": "local.granary.dev", "volumeHandle": "pvc-u1"},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                    {"key": "kubernetes.io/hostname", "operator": "In", "values": ["granary"]},
                ]}]}},
                "persistentVolumeReclaimPolicy": "Delete",
                "storageClassName": "local",
                "volumeMode": "Filesystem",
            },
        });
        assert_eq!(serde_json::to_value(built(ReclaimPolicy::Delete)).unwrap(), expected);
    }

    #[test]
    fn the_pv_of_an_image_is_a_disk() {
        let (ask, record) = ask(ReclaimPolicy::Delete);
        let record = Record { mode: Mode::Block { allocation: Allocation::Thin }, ..record };
        assert_eq!(build(&ask, &record, NODE).spec.unwrap().volume_mode.as_deref(), Some("Block"));
    }

    #[test]
    fn the_finalizer_is_in_the_drivers_domain() {
        assert_eq!(FINALIZER, format!("{DRIVER_NAME}/volume"));
    }

    #[test]
    fn only_volumes_that_are_deleted_with_their_pv_carry_the_finalizer() {
        assert_eq!(built(ReclaimPolicy::Retain).metadata.finalizers, None);
        assert_eq!(built(ReclaimPolicy::Delete).metadata.finalizers, Some(vec![FINALIZER.to_owned()]));
    }

    #[test]
    fn what_was_built_is_recognized_on_its_node_only() {
        assert_eq!(ours(&built(ReclaimPolicy::Delete), NODE).unwrap().as_str(), "pvc-u1");
        assert_eq!(ours(&built(ReclaimPolicy::Delete), "other"), None);
    }

    #[test]
    fn hand_made_pvs_with_missing_fields_are_passed_over() {
        assert_eq!(ours(&PersistentVolume::default(), NODE), None);
        assert!(!is_incomplete(&PersistentVolume::default()));
        for (pointer, value) in [
            ("/spec/nodeAffinity", json!(null)),
            ("/spec/nodeAffinity/required", json!(null)),
            ("/spec/nodeAffinity/required/nodeSelectorTerms", json!([])),
            ("/spec/nodeAffinity/required/nodeSelectorTerms/0/matchExpressions", json!(null)),
            ("/spec/nodeAffinity/required/nodeSelectorTerms/0/matchExpressions/0/values", json!(null)),
            ("/spec/csi/volumeHandle", json!("../etc")),
            ("/spec/csi/volumeHandle", json!("")),
        ] {
            let pv = changed(|pv| *pv.pointer_mut(pointer).expect("it is there") = value);
            assert_eq!(ours(&pv, NODE), None, "{pointer}");
            assert!(is_incomplete(&pv), "{pointer}");
        }
        let foreign = changed(|pv| pv["spec"]["csi"]["driver"] = "other.example.com".into());
        assert_eq!(ours(&foreign, NODE), None);
        assert!(!is_incomplete(&foreign));
    }

    #[test]
    fn a_pv_of_two_nodes_is_not_ours() {
        let pv = changed(|pv| {
            *pv.pointer_mut("/spec/nodeAffinity/required/nodeSelectorTerms/0/matchExpressions/0/values").unwrap() =
                json!([NODE, "other"]);
        });
        assert_eq!(ours(&pv, NODE), None);
    }

    #[test]
    fn the_same_name_is_not_the_same_volume() {
        let wanted = built(ReclaimPolicy::Delete);
        assert!(is_same(&wanted, &wanted, NODE));
        assert!(is_same(&changed(|pv| pv["metadata"]["resourceVersion"] = "9".into()), &wanted, NODE));
        assert!(!is_same(&changed(|pv| pv["spec"]["claimRef"]["uid"] = "u2".into()), &wanted, NODE));
        assert!(!is_same(&changed(|pv| pv["spec"]["csi"]["volumeHandle"] = "pvc-u2".into()), &wanted, NODE));
        assert!(!is_same(&changed(|pv| pv["spec"]["csi"]["driver"] = "other.example.com".into()), &wanted, NODE));
        let host = "/spec/nodeAffinity/required/nodeSelectorTerms/0/matchExpressions/0/values/0";
        assert!(!is_same(&changed(|pv| *pv.pointer_mut(host).unwrap() = "other".into()), &wanted, NODE));
    }
}
