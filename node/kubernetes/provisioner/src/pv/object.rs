//! Builds the PV of a volume, and recognizes PVs of this node. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    CSIPersistentVolumeSource, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, ObjectReference,
    PersistentVolume, PersistentVolumeClaim, PersistentVolumeSpec, VolumeNodeAffinity,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use units::Bytes;
use volume::{DRIVER_NAME, FINALIZER, PROVISIONED_BY, Record, VolumeId, VolumeMode};

use crate::claim::plan::ProvisionRequest;
use crate::class::ReclaimPolicy;
use crate::quantity;

/// The PV of a volume, with its actual size. An admission policy lists all fields (reconciler/src/pv_policy.rs): add
/// new ones there too.
pub(crate) fn build(request: &ProvisionRequest, record: &Record, node: &str) -> PersistentVolume {
    let finalizers = match request.reclaim {
        ReclaimPolicy::Delete => Some(vec![FINALIZER.to_owned()]),
        ReclaimPolicy::Retain => None,
    };
    PersistentVolume {
        metadata: ObjectMeta {
            name: Some(request.id.to_string()),
            annotations: Some([(PROVISIONED_BY.to_owned(), DRIVER_NAME.to_owned())].into()),
            finalizers,
            ..ObjectMeta::default()
        },
        spec: Some(PersistentVolumeSpec {
            access_modes: Some(request.access_modes.iter().map(|mode| mode.as_str().to_owned()).collect()),
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
                volume_handle: request.id.to_string(),
                ..CSIPersistentVolumeSource::default()
            }),
            node_affinity: Some(on_node(node)),
            persistent_volume_reclaim_policy: Some(request.reclaim.as_str().to_owned()),
            storage_class_name: Some(record.class.clone()),
            volume_attributes_class_name: request.attributes_class.clone(),
            volume_mode: Some(VolumeMode::from(record.mode).as_str().to_owned()),
            ..PersistentVolumeSpec::default()
        }),
        status: None,
    }
}

/// Volume of the PV. `None` if the PV is not of this driver, or not on this node alone.
pub(crate) fn volume_of(pv: &PersistentVolume, node: &str) -> Option<VolumeId> {
    let here = pv.spec.as_ref()?.node_affinity.as_ref().is_some_and(|affinity| names_node(affinity, node));
    handle(pv).filter(|_| here)
}

/// The only node of the PV, which may be any node.
pub(crate) fn node_of(pv: &PersistentVolume) -> Option<&str> {
    let affinity = pv.spec.as_ref()?.node_affinity.as_ref()?;
    hostnames(affinity).next().filter(|node| names_node(affinity, node))
}

/// The volume of a PV of this driver, on any node.
pub(crate) fn handle(pv: &PersistentVolume) -> Option<VolumeId> {
    let csi = pv.spec.as_ref()?.csi.as_ref().filter(|csi| csi.driver == DRIVER_NAME)?;
    csi.volume_handle.parse().ok()
}

pub(crate) fn capacity(pv: &PersistentVolume) -> Option<Bytes> {
    quantity::bytes(&pv.spec.as_ref()?.capacity.as_ref()?.get("storage")?.0).ok()
}

/// Whether the PV is of this claim, and not of an earlier one with the same name.
pub(crate) fn is_of(pv: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    claim_uid(pv).is_some() && claim_uid(pv) == claim.metadata.uid.as_deref()
}

/// Whether the PV is of this driver, but names no volume or no node.
pub(crate) fn is_incomplete(pv: &PersistentVolume) -> bool {
    let Some(spec) = &pv.spec else { return false };
    let Some(csi) = spec.csi.as_ref().filter(|csi| csi.driver == DRIVER_NAME) else { return false };
    let has_node = spec.node_affinity.as_ref().is_some_and(|affinity| hostnames(affinity).next().is_some());
    !has_node || csi.volume_handle.parse::<VolumeId>().is_err()
}

pub(crate) fn is_same(found: &PersistentVolume, wanted: &PersistentVolume, node: &str) -> bool {
    let volume = volume_of(found, node);
    volume.is_some() && volume == volume_of(wanted, node) && claim_uid(found) == claim_uid(wanted)
}

/// Whether another node's provisioner may have created the PV, for a volume of its own. The admission policy denies a
/// node all PVs with another name or affinity.
pub(crate) fn is_provisioned_elsewhere(pv: &PersistentVolume, node: &str) -> bool {
    let affinity = pv.spec.as_ref().and_then(|spec| spec.node_affinity.as_ref());
    let is_elsewhere = |affinity: &VolumeNodeAffinity| {
        hostnames(affinity).next().is_some_and(|name| name != node && *affinity == on_node(name))
    };
    affinity.is_some_and(is_elsewhere) && handle(pv).is_some_and(|id| pv.metadata.name.as_deref() == Some(id.as_str()))
}

fn claim_uid(pv: &PersistentVolume) -> Option<&str> {
    pv.spec.as_ref()?.claim_ref.as_ref()?.uid.as_deref()
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
    use serde_json::{Value, json};
    use units::Inodes;
    use volume::{Allocation, Claim, Mode, Owner, Request, State};

    use super::*;
    use crate::claim::plan::AccessMode;
    use crate::fixture;

    const NODE: &str = "granary";

    fn request(reclaim: ReclaimPolicy) -> (ProvisionRequest, Record) {
        let claim = Claim { uid: "u1".into(), namespace: "default".into(), name: "data".into() };
        let mode = Mode::Filesystem { inodes: Inodes::new(64) };
        let (owner, class) = (Owner::Provisioner, "local".into());
        let volume = Request { claim: claim.clone(), owner, class, mode, size: Bytes::GIB, source: None };
        let id = "pvc-u1".parse().expect("an identifier");
        let record = Record { claim, ..fixture::record(mode, State::Staged) };
        let (source, attributes_class, io) = (None, None, volume::IoLimits::NONE);
        let access_modes = vec![AccessMode::ReadWriteOnce];
        (ProvisionRequest { id, volume, source, attributes_class, io, access_modes, reclaim }, record)
    }

    fn built(reclaim: ReclaimPolicy) -> PersistentVolume {
        let (request, record) = request(reclaim);
        build(&request, &record, NODE)
    }

    fn changed(change: impl FnOnce(&mut Value)) -> PersistentVolume {
        let mut pv = serde_json::to_value(built(ReclaimPolicy::Delete)).expect("JSON");
        change(&mut pv);
        serde_json::from_value(pv).expect("a PV")
    }

    #[test]
    fn a_pv_has_all_fields() {
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
        assert_eq!(built(ReclaimPolicy::Retain).metadata.finalizers, None);
    }

    #[test]
    fn the_pv_of_an_image_has_mode_block() {
        let (request, record) = request(ReclaimPolicy::Delete);
        let request = ProvisionRequest { attributes_class: Some("gold".into()), ..request };
        let record = Record { mode: Mode::Block { allocation: Allocation::Thin }, ..record };
        let spec = build(&request, &record, NODE).spec.unwrap();
        assert_eq!(spec.volume_mode.as_deref(), Some("Block"));
        assert_eq!(spec.volume_attributes_class_name.as_deref(), Some("gold"));
    }

    #[test]
    fn a_built_pv_is_recognized_on_its_node_only() {
        assert_eq!(volume_of(&built(ReclaimPolicy::Delete), NODE).unwrap().as_str(), "pvc-u1");
        assert_eq!(volume_of(&built(ReclaimPolicy::Delete), "other"), None);
    }

    #[test]
    fn pvs_with_missing_fields_are_ignored() {
        assert_eq!(volume_of(&PersistentVolume::default(), NODE), None);
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
            assert_eq!(volume_of(&pv, NODE), None, "{pointer}");
            assert!(is_incomplete(&pv), "{pointer}");
        }
        let foreign = changed(|pv| pv["spec"]["csi"]["driver"] = "other.example.com".into());
        assert_eq!(volume_of(&foreign, NODE), None);
        assert!(!is_incomplete(&foreign));
    }

    #[test]
    fn a_pv_of_two_nodes_is_ignored() {
        let pv = changed(|pv| {
            *pv.pointer_mut("/spec/nodeAffinity/required/nodeSelectorTerms/0/matchExpressions/0/values").unwrap() =
                json!([NODE, "other"]);
        });
        assert_eq!(volume_of(&pv, NODE), None);
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
