//! The claims that the reclaimer keeps, and their fields. A cluster may have ten thousand claims of all drivers, with
//! 10 KiB each.

use cluster::DRIVER_NAME;
use cluster::claim::{RESTORE_FROM, ROLLBACK, SELECTED_NODE, VOLUME_NODE};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimSpec, PersistentVolumeClaimStatus};
use kube::ResourceExt as _;

use crate::bound::{self, PROVISIONER};
use crate::clone;
use crate::placement::OLD_CLASS;

/// Annotations that passes read.
const ANNOTATIONS: [&str; 7] =
    [PROVISIONER[0], PROVISIONER[1], SELECTED_NODE, VOLUME_NODE, OLD_CLASS, RESTORE_FROM, ROLLBACK];

/// Whether a pass over the claim may have something to do. A clone also stays when it is bound: its pods are checked
/// until they have a node.
pub(crate) fn is_kept(claim: &PersistentVolumeClaim) -> bool {
    is_waiting(claim) || bound::changing(claim).is_some() || is_of_driver(claim) && clone::source(claim).is_some()
}

/// Whether Granary's driver has to create a volume for the claim. kube-controller-manager sets the annotation: at once
/// if the class binds immediately, otherwise when the scheduler has selected a node.
pub(crate) fn is_waiting(claim: &PersistentVolumeClaim) -> bool {
    let volume = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref()).unwrap_or_default();
    is_of_driver(claim) && volume.is_empty() && claim.metadata.deletion_timestamp.is_none()
}

/// The selected node of a claim of Granary's driver without a volume.
pub(crate) fn waits_for(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.annotations().get(SELECTED_NODE).map(String::as_str).filter(|_| is_waiting(claim))
}

fn is_of_driver(claim: &PersistentVolumeClaim) -> bool {
    PROVISIONER.iter().any(|key| claim.annotations().get(*key).is_some_and(|name| name == DRIVER_NAME))
}

/// Removes unused fields. The reclaimer updates claims with patches, so the API server keeps these fields.
pub(crate) fn trim(claim: &mut PersistentVolumeClaim) {
    apiclient::trim_metadata(&mut claim.metadata, |key| ANNOTATIONS.contains(&key));
    claim.metadata.finalizers = None;
    claim.spec = claim.spec.take().map(|spec| PersistentVolumeClaimSpec {
        data_source: spec.data_source,
        resources: spec.resources,
        storage_class_name: spec.storage_class_name,
        volume_attributes_class_name: spec.volume_attributes_class_name,
        volume_name: spec.volume_name,
        ..PersistentVolumeClaimSpec::default()
    });
    claim.status = claim.status.take().map(|status| PersistentVolumeClaimStatus {
        allocated_resource_statuses: status.allocated_resource_statuses,
        capacity: status.capacity,
        current_volume_attributes_class_name: status.current_volume_attributes_class_name,
        modify_volume_status: status.modify_volume_status,
        phase: status.phase,
        ..PersistentVolumeClaimStatus::default()
    });
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn claim(annotations: Value, spec: Value, metadata: Value) -> PersistentVolumeClaim {
        let mut claim = json!({"metadata": {"name": "c", "annotations": annotations}, "spec": spec});
        claim["metadata"].as_object_mut().unwrap().extend(metadata.as_object().cloned().unwrap());
        serde_json::from_value(claim).unwrap()
    }

    #[test]
    fn only_unbound_claims_of_the_driver_are_returned() {
        for key in PROVISIONER {
            let selected = json!({SELECTED_NODE: "one", key: DRIVER_NAME});
            assert_eq!(waits_for(&claim(selected.clone(), json!({}), json!({}))), Some("one"));
            assert_eq!(waits_for(&claim(selected.clone(), json!({"volumeName": "pvc-1"}), json!({}))), None);
            let deleted = json!({"deletionTimestamp": "2026-01-01T00:00:00Z"});
            assert_eq!(waits_for(&claim(selected, json!({}), deleted)), None);
            let others = json!({SELECTED_NODE: "one", key: "example.invalid"});
            assert_eq!(waits_for(&claim(others, json!({}), json!({}))), None);
            assert_eq!(waits_for(&claim(json!({key: DRIVER_NAME}), json!({}), json!({}))), None);
        }
        assert_eq!(waits_for(&claim(json!({SELECTED_NODE: "one"}), json!({}), json!({}))), None);
    }

    #[test]
    fn claims_without_work_are_not_kept() {
        let of = |driver: &str| json!({PROVISIONER[0]: driver, SELECTED_NODE: "one"});
        let (own, foreign) = (of(DRIVER_NAME), of("example.invalid"));
        let source = json!({"kind": "PersistentVolumeClaim", "name": "data"});
        let (bound, copied) = (json!({"volumeName": "v"}), json!({"volumeName": "v", "dataSource": source}));
        for (annotations, spec, expected) in [
            (&own, json!({}), true),
            (&own, bound.clone(), false),
            (&own, copied.clone(), true),
            (&foreign, json!({}), false),
            (&foreign, copied, false),
            // No component has set the provisioner yet, or the claim names a PV.
            (&json!({}), json!({"storageClassName": "local"}), false),
            (&json!({}), bound, false),
        ] {
            let claim = claim(annotations.clone(), spec, json!({}));
            assert_eq!(is_kept(&claim), expected, "{claim:?}");
        }
        let request = |size: &str| json!({"volumeName": "v", "resources": {"requests": {"storage": size}}});
        for (annotations, size, expected) in [
            (json!({}), "1Gi", false),
            (json!({}), "2Gi", true),
            (json!({RESTORE_FROM: "before"}), "1Gi", true),
            (own, "2Gi", true),
            (foreign, "2Gi", false),
        ] {
            let mut claim = claim(annotations, request(size), json!({}));
            let status = json!({"phase": "Bound", "capacity": {"storage": "1Gi"}});
            claim.status = Some(serde_json::from_value(status).unwrap());
            assert_eq!(is_kept(&claim), expected, "{claim:?}");
        }
    }

    /// A pass reads all fields that stay, and no other field.
    #[test]
    fn a_trimmed_claim_has_the_fields_that_passes_read() {
        let annotations: serde_json::Map<String, Value> =
            ANNOTATIONS.iter().map(|key| ((*key).to_owned(), DRIVER_NAME.into())).collect();
        let expected = json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {
                "name": "data", "namespace": "shop", "uid": "u", "resourceVersion": "7",
                "annotations": annotations,
            },
            "spec": {
                "dataSource": {"kind": "PersistentVolumeClaim", "name": "source"},
                "resources": {"requests": {"storage": "2Gi"}}, "storageClassName": "local",
                "volumeAttributesClassName": "gold", "volumeName": "pvc-u",
            },
            "status": {
                "allocatedResourceStatuses": {"storage": "NodeResizePending"}, "capacity": {"storage": "1Gi"},
                "currentVolumeAttributesClassName": "silver", "modifyVolumeStatus": {"status": "Pending"},
                "phase": "Bound",
            },
        });
        let mut whole = expected.clone();
        whole["metadata"]["annotations"]["kubectl.kubernetes.io/last-applied-configuration"] = "{}".into();
        whole["metadata"]["finalizers"] = json!(["kubernetes.io/pvc-protection"]);
        whole["metadata"]["labels"] = json!({"a": "b"});
        whole["metadata"]["managedFields"] = json!([{"manager": "kubectl", "operation": "Update"}]);
        whole["spec"]["accessModes"] = json!(["ReadWriteOnce"]);
        whole["spec"]["selector"] = json!({"matchLabels": {"a": "b"}});
        whole["status"]["conditions"] = json!([{"type": "Unused", "status": "True"}]);
        let mut claim: PersistentVolumeClaim = serde_json::from_value(whole).unwrap();
        trim(&mut claim);
        assert_eq!(serde_json::to_value(claim).unwrap(), expected);
    }
}
