//! Determines the node of a bound claim from the affinity of its PV. Pure.

use std::collections::BTreeMap;

use cluster::claim::{RESTORE_FROM, ROLLBACK, is_object_name, status_writer};
use cluster::quantity::{self, QuantityError};
use cluster::{DRIVER_NAME, TOPOLOGY_KEY};
use k8s_openapi::api::core::v1::{NodeSelectorTerm, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::ResourceExt as _;
use units::Bytes;

/// Annotations with the claim's provisioner. Older controllers write the second annotation.
pub(crate) const PROVISIONER: [&str; 2] =
    ["volume.kubernetes.io/storage-provisioner", "volume.beta.kubernetes.io/storage-provisioner"];

/// The PV of a claim that is being expanded, gets another VolumeAttributesClass, or returns to a snapshot. `None` for
/// all other claims, and for claims of another provisioner.
pub(crate) fn changing(claim: &PersistentVolumeClaim) -> Option<&str> {
    let (spec, status) = (claim.spec.as_ref()?, claim.status.as_ref()?);
    let annotations = claim.annotations();
    let is_foreign = PROVISIONER.iter().any(|key| annotations.get(*key).is_some_and(|name| name != DRIVER_NAME));
    if is_foreign || status.phase.as_deref() != Some("Bound") || claim.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let requests = spec.resources.as_ref().and_then(|resources| resources.requests.as_ref());
    let is_larger = storage(requests) > storage(status.capacity.as_ref());
    let is_begun = status.allocated_resource_statuses.as_ref().is_some_and(|statuses| !statuses.is_empty());
    let named = |class: Option<&String>| class.filter(|class| !class.is_empty()).cloned();
    let is_modified = status.modify_volume_status.is_some()
        || named(spec.volume_attributes_class_name.as_ref())
            != named(status.current_volume_attributes_class_name.as_ref());
    let is_rolled_back = [RESTORE_FROM, ROLLBACK].iter().any(|key| annotations.contains_key(*key));
    let is_changing = is_larger || is_begun || is_modified || is_rolled_back;
    spec.volume_name.as_deref().filter(|name| is_object_name(name) && is_changing)
}

pub(crate) fn node_of<'a>(pv: &'a PersistentVolume, claim: &PersistentVolumeClaim) -> Option<&'a str> {
    let spec = pv.spec.as_ref()?;
    let is_of_driver = spec.csi.as_ref().is_some_and(|csi| csi.driver == DRIVER_NAME);
    let uid = spec.claim_ref.as_ref()?.uid.as_deref().filter(|uid| !uid.is_empty());
    if !is_of_driver || uid.is_none() || uid != claim.metadata.uid.as_deref() {
        return None;
    }
    let terms = &spec.node_affinity.as_ref()?.required.as_ref()?.node_selector_terms;
    let node = only_host(terms.first()?)?;
    terms.iter().all(|term| only_host(term) == Some(node)).then_some(node)
}

/// The node that the admission policy allows to write the claim's status.
pub(crate) fn writer(claim: &PersistentVolumeClaim) -> Option<&str> {
    let pv = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref());
    status_writer(claim.metadata.uid.as_deref().unwrap_or_default(), pv, claim.annotations())
}

pub(crate) fn storage(sizes: Option<&BTreeMap<String, Quantity>>) -> Option<Bytes> {
    match quantity::bytes(&sizes?.get("storage")?.0) {
        Ok(size) => Some(size),
        Err(QuantityError::TooLarge) => Some(Bytes::new(u64::MAX)),
        Err(QuantityError::Syntax | QuantityError::Negative) => None,
    }
}

/// The only host of the term, in the form that the policy on PVs requires.
fn only_host(term: &NodeSelectorTerm) -> Option<&str> {
    let mut hosts = term.match_expressions.iter().flatten().filter_map(|only| match only.values.as_deref() {
        Some([host]) if only.key == TOPOLOGY_KEY && only.operator == "In" => Some(host.as_str()),
        _ => None,
    });
    let host = hosts.next()?;
    hosts.all(|other| other == host).then_some(host)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn claim(metadata: Value, has: &str, stage: Value) -> PersistentVolumeClaim {
        let claim = json!({
            "metadata": metadata,
            "spec": {"volumeName": "adopted", "resources": {"requests": {"storage": "2Gi"}}},
            "status": {"phase": "Bound", "capacity": {"storage": has}, "allocatedResourceStatuses": stage},
        });
        serde_json::from_value(claim).unwrap()
    }

    fn pv(driver: &str, uid: Value, terms: Value) -> PersistentVolume {
        let pv = json!({"spec": {
            "csi": {"driver": driver, "volumeHandle": "v"}, "claimRef": {"uid": uid},
            "nodeAffinity": {"required": {"nodeSelectorTerms": terms}},
        }});
        serde_json::from_value(pv).unwrap()
    }

    fn on(hosts: &[&str]) -> Value {
        json!({"matchExpressions": [{"key": TOPOLOGY_KEY, "operator": "In", "values": hosts}]})
    }

    #[test]
    fn a_bound_claim_changes_when_it_requests_more_or_has_a_stage() {
        assert_eq!(changing(&claim(json!({}), "1Gi", Value::Null)), Some("adopted"));
        assert_eq!(changing(&claim(json!({}), "2Gi", Value::Null)), None);
        let begun = json!({"storage": "NodeResizePending"});
        assert_eq!(changing(&claim(json!({}), "2Gi", begun)), Some("adopted"));
        let deleted = json!({"deletionTimestamp": "2026-01-01T00:00:00Z"});
        assert_eq!(changing(&claim(deleted, "1Gi", Value::Null)), None);
        for (provisioner, expected) in [("example.invalid", None), (DRIVER_NAME, Some("adopted"))] {
            let annotated = json!({"annotations": {PROVISIONER[0]: provisioner}});
            assert_eq!(changing(&claim(annotated, "1Gi", Value::Null)), expected);
        }
        let mut gold = claim(json!({}), "2Gi", Value::Null);
        gold.spec.as_mut().unwrap().volume_attributes_class_name = Some("gold".into());
        assert_eq!(changing(&gold), Some("adopted"));
        gold.status.as_mut().unwrap().current_volume_attributes_class_name = Some("gold".into());
        assert_eq!(changing(&gold), None);
        for key in [RESTORE_FROM, ROLLBACK] {
            assert_eq!(changing(&claim(json!({"annotations": {key: "before"}}), "2Gi", Value::Null)), Some("adopted"));
        }
        for other in ["", "adopted?watch=true"] {
            let mut unnamed = claim(json!({}), "1Gi", Value::Null);
            unnamed.spec.as_mut().unwrap().volume_name = Some(other.into());
            assert_eq!(changing(&unnamed), None, "{other}");
        }
        let mut lost = claim(json!({}), "1Gi", Value::Null);
        lost.status.as_mut().unwrap().phase = Some("Lost".into());
        assert_eq!(changing(&lost), None);
    }

    #[test]
    fn the_node_is_that_of_the_claims_own_pv() {
        let own = claim(json!({"uid": "u"}), "1Gi", Value::Null);
        assert_eq!(node_of(&pv(DRIVER_NAME, "u".into(), json!([on(&["one"]), on(&["one"])])), &own), Some("one"));
        for (driver, uid, terms) in [
            ("example.invalid", json!("u"), json!([on(&["one"])])),
            (DRIVER_NAME, json!("of another claim"), json!([on(&["one"])])),
            (DRIVER_NAME, Value::Null, json!([on(&["one"])])),
            (DRIVER_NAME, json!("u"), json!([on(&["one"]), on(&["two"])])),
            (DRIVER_NAME, json!("u"), json!([on(&["one", "two"])])),
            (DRIVER_NAME, json!("u"), json!([on(&["one"]), {}])),
            (DRIVER_NAME, json!("u"), json!([])),
        ] {
            assert_eq!(node_of(&pv(driver, uid.clone(), terms.clone()), &own), None, "{driver} {uid} {terms}");
        }
        assert_eq!(
            node_of(&pv(DRIVER_NAME, Value::Null, json!([on(&["one"])])), &PersistentVolumeClaim::default()),
            None
        );
    }
}
