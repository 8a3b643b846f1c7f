//! Volumes of claims that ended before they were bound. No pass over such a claim follows, so the sweep undoes its
//! volume.

use std::collections::BTreeSet;
use std::mem;
use std::sync::{Mutex, MutexGuard, PoisonError};

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::runtime::watcher::Event;
use tokio::sync::Notify;
use volume::VolumeId;

use crate::claim::plan;

#[derive(Debug, Default)]
pub(crate) struct EndedClaims {
    volumes: Mutex<BTreeSet<VolumeId>>,
    pub(crate) added: Notify,
}

impl EndedClaims {
    /// Adds the volume of a claim that was deleted, or waits for the end of its finalizers: a scheduled pod, or another
    /// finalizer, keeps the claim. Kubernetes' `pvc-protection` ignores pods without `spec.nodeName`.
    pub(crate) fn observe(&self, event: &Event<PersistentVolumeClaim>, node: &str) {
        let ended = match event {
            Event::Delete(claim) => claim,
            Event::Apply(claim) | Event::InitApply(claim) if claim.metadata.deletion_timestamp.is_some() => claim,
            Event::Apply(_) | Event::InitApply(_) | Event::Init | Event::InitDone => return,
        };
        if let Some(id) = plan::unbound_volume(ended, node) {
            self.volumes().insert(id);
            self.added.notify_one();
        }
    }

    pub(crate) fn take(&self) -> BTreeSet<VolumeId> {
        mem::take(&mut *self.volumes())
    }

    fn volumes(&self) -> MutexGuard<'_, BTreeSet<VolumeId>> {
        self.volumes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::fixture::id;

    type ClaimEvent = Event<PersistentVolumeClaim>;

    /// Whether the event of a claim on this node, which is being deleted before this change, adds its volume.
    fn is_added(event: fn(PersistentVolumeClaim) -> ClaimEvent, change: fn(&mut Value)) -> bool {
        let mut claim = json!({
            "metadata": {
                "name": "data", "namespace": "default", "uid": "u", "deletionTimestamp": "2026-01-01T00:00:00Z",
                "annotations": {
                    "volume.kubernetes.io/storage-provisioner": "local.granary.dev",
                    "volume.kubernetes.io/selected-node": "granary",
                },
            },
            "spec": {},
        });
        change(&mut claim);
        let claims = EndedClaims::default();
        claims.observe(&event(serde_json::from_value(claim).expect("a claim")), "granary");
        let added = claims.take();
        assert!(claims.take().is_empty());
        added == BTreeSet::from([id("pvc-u")])
    }

    #[test]
    fn an_unbound_claim_of_this_node_that_ends_is_added() {
        assert!(is_added(Event::Apply, |_| {}));
        assert!(is_added(Event::InitApply, |_| {}));
        assert!(is_added(Event::Delete, |claim| claim["metadata"]["deletionTimestamp"] = Value::Null));
    }

    #[test]
    fn a_claim_that_stays_is_bound_or_of_another_node_is_not_added() {
        assert!(!is_added(Event::Apply, |claim| claim["metadata"]["deletionTimestamp"] = Value::Null));
        assert!(!is_added(Event::Delete, |claim| claim["spec"]["volumeName"] = "pvc-u".into()));
        assert!(!is_added(Event::Delete, |claim| claim["metadata"]["annotations"] = json!({})));
    }
}
