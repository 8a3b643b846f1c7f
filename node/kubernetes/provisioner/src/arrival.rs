//! Reduces watched objects to the fields that the provisioner uses. A cluster may have ten thousand claims with 10 KiB
//! each.

use std::fmt::Debug;

use apiclient::only;
use futures::{Stream, StreamExt as _, TryStreamExt as _, future};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::{CSIStorageCapacity, StorageClass};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::reflector::{self, Store};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use supervisor::Context;
use tracing::warn;
use volume::{DRIVER_NAME, PROVISIONED_BY};

use crate::claim::plan;

/// Returns a copy of the objects that `keep` accepts, and a stream with an item for each change. The watch continues
/// after failures, which are reported to `cx`.
pub(crate) fn watch<K>(
    cx: Context,
    api: Api<K>,
    config: watcher::Config,
    trim: fn(&mut K),
    keep: fn(&K) -> bool,
) -> (Store<K>, impl Stream<Item = ()>)
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    let (store, writer) = reflector::store();
    let changes = watcher(api, config)
        .modify(trim)
        .try_filter_map(move |event| future::ready(Ok(only(event, keep))))
        .reflect(writer)
        .default_backoff()
        .filter_map(move |event| {
            future::ready(match event {
                // An incomplete list is not a change.
                Ok(Event::Init | Event::InitApply(_)) => None,
                Ok(Event::InitDone | Event::Apply(_) | Event::Delete(_)) => {
                    cx.report(true);
                    Some(())
                }
                Err(error) => {
                    cx.report(false);
                    warn!(what = K::plural(&()).as_ref(), error = causes::of(&error), "watch failed, will continue");
                    None
                }
            })
        });
    (store, changes)
}

/// Removes unused fields from the copy of a PV. The provisioner updates PVs with patches, so the API server keeps these
/// fields.
pub(crate) fn trim_pv(pv: &mut PersistentVolume) {
    trim_metadata(&mut pv.metadata, &[PROVISIONED_BY]);
    if let Some(csi) = pv.spec.as_mut().and_then(|spec| spec.csi.as_mut()) {
        csi.volume_attributes = None;
    }
    if let Some(status) = &mut pv.status {
        (status.message, status.reason, status.last_phase_transition_time) = (None, None, None);
    }
}

/// Keeps the conditions of other components: a patch of the status contains all conditions.
pub(crate) fn trim_claim(claim: &mut PersistentVolumeClaim) {
    trim_metadata(&mut claim.metadata, &plan::ANNOTATIONS);
    claim.metadata.finalizers = None;
}

pub(crate) fn trim_class(class: &mut StorageClass) {
    trim_metadata(&mut class.metadata, &[]);
}

/// Keeps labels and owners, which the plan compares.
pub(crate) fn trim_capacity(capacity: &mut CSIStorageCapacity) {
    capacity.metadata.managed_fields = None;
}

/// Keeps these annotations and those in the domain of the driver. Their values are parts of back-off keys and errors.
fn trim_metadata(metadata: &mut ObjectMeta, annotations: &[&str]) {
    let of_driver = |key: &str| key.strip_prefix(DRIVER_NAME).is_some_and(|name| name.starts_with('/'));
    apiclient::trim_metadata(metadata, |key| annotations.contains(&key) || of_driver(key));
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use apiclient::VALUE_LEN;
    use cluster::claim::{RESTORE_FROM, is_object_name};
    use serde_json::{Value, json};

    use super::*;

    fn metadata() -> Value {
        json!({
            "name": "data", "namespace": "default", "uid": "u", "resourceVersion": "7", "finalizers": ["f"],
            "labels": {"a": "b"},
            "annotations": {
                "kubectl.kubernetes.io/last-applied-configuration": "{}",
                "pv.kubernetes.io/provisioned-by": "local.granary.dev",
                "volume.kubernetes.io/selected-node": "granary",
                "local.granary.dev/node": "granary",
            },
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "p"}],
            "managedFields": [{"manager": "kubectl", "operation": "Update"}],
        })
    }

    #[test]
    fn a_trimmed_pv_has_the_fields_of_its_plan_and_its_patches() {
        let mut pv: PersistentVolume = serde_json::from_value(json!({
            "metadata": metadata(),
            "spec": {"csi": {"driver": "d", "volumeHandle": "h", "volumeAttributes": {"a": "b"}}},
            "status": {"phase": "Released", "message": "m"},
        }))
        .expect("a PV");
        trim_pv(&mut pv);
        let expected = json!({
            "apiVersion": "v1", "kind": "PersistentVolume",
            "metadata": {
                "name": "data", "namespace": "default", "uid": "u", "resourceVersion": "7", "finalizers": ["f"],
                "annotations": {
                    "pv.kubernetes.io/provisioned-by": "local.granary.dev", "local.granary.dev/node": "granary",
                },
            },
            "spec": {"csi": {"driver": "d", "volumeHandle": "h"}},
            "status": {"phase": "Released"},
        });
        assert_eq!(serde_json::to_value(pv).expect("JSON"), expected);
    }

    #[test]
    fn a_trimmed_claim_keeps_the_conditions_of_others() {
        let status = json!({"phase": "Bound", "conditions": [{"type": "Unused", "status": "True"}]});
        let spec = json!({"accessModes": ["ReadWriteOnce"], "volumeName": "pvc-u"});
        let mut claim: PersistentVolumeClaim =
            serde_json::from_value(json!({"metadata": metadata(), "spec": spec, "status": status})).expect("a claim");
        trim_claim(&mut claim);
        let expected = json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {
                "name": "data", "namespace": "default", "uid": "u", "resourceVersion": "7",
                "annotations": {
                    "volume.kubernetes.io/selected-node": "granary", "local.granary.dev/node": "granary",
                },
            },
            "spec": spec,
            "status": status,
        });
        assert_eq!(serde_json::to_value(claim).expect("JSON"), expected);
    }

    /// Regression: each value of the request for a rollback was kept for ten minutes after it had failed.
    #[test]
    fn long_annotations_are_cut_and_name_no_other_object() {
        for (character, more) in [("a", 1), ("\u{e4}", 1), ("\u{20ac}", 2), ("\u{1f980}", 3)] {
            let annotations = json!({RESTORE_FROM: character.repeat(64 << 10), "local.granary.dev/node": "granary"});
            let mut claim: PersistentVolumeClaim =
                serde_json::from_value(json!({"metadata": {"annotations": annotations}})).expect("a claim");
            trim_claim(&mut claim);
            let kept = claim.metadata.annotations.expect("both annotations");
            let value = &kept[RESTORE_FROM];
            assert_eq!((value.len(), value.capacity() < 1024), (VALUE_LEN + more, true), "{character}");
            assert!(!is_object_name(value) && kept["local.granary.dev/node"] == "granary");
        }
        let longest = "a".repeat(VALUE_LEN);
        let mut claim = PersistentVolumeClaim::default();
        claim.metadata.annotations = Some(BTreeMap::from([(RESTORE_FROM.to_owned(), longest.clone())]));
        trim_claim(&mut claim);
        assert_eq!(claim.metadata.annotations.expect("the annotation")[RESTORE_FROM], longest);
    }
}
