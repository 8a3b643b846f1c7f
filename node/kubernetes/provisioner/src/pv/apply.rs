//! Keeps or deletes a PV of this node, with its data.

use std::sync::Arc;

use dir::Ensured;
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::ResourceExt as _;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::runtime::controller::Action;
use serde_json::{Value, json};
use tokio::task::JoinError;
use tokio::time::Instant;
use tracing::{Instrument as _, info, info_span, warn};
use volume::{DRIVER_NAME, FINALIZER, Owner, PROVISIONED_BY, Record, State, VolumeId};

use crate::context::{Outcome, Provisioner};
use crate::discard::queue::EndOfPv;
use crate::error::{ApiError, Error, api, unless_gone};
use crate::listing::Listing;
use crate::metrics::Object;
use crate::pv::object;
use crate::pv::plan::{self, PvPlan};

/// Maximum number of conflicts with other writes of a PV that is being deleted, before the back-off.
const CONFLICTS: usize = 3;

enum Ended {
    /// The API server has confirmed the deletion. This node removed the driver's finalizer by a request that it sent
    /// after `before`, or the PV does not exist.
    Deleted { before: Instant },
    /// The PV does not exist or does not have the driver's finalizer, and no response confirms that it was to be
    /// deleted.
    Gone,
    /// The PV is not to be deleted any more.
    Kept,
}

pub(crate) async fn reconcile_pv(pv: Arc<PersistentVolume>, provisioner: Arc<Provisioner>) -> Result<Action, Error> {
    let Some(id) = object::volume_of(&pv, &provisioner.node) else {
        if object::is_incomplete(&pv) {
            info!(pv = pv.name_any(), "PV of this driver without a volume or a node ignored");
        }
        return Ok(Action::await_change());
    };
    let uid = pv.uid().unwrap_or_default();
    if let Some(left) = provisioner.attempts.wait(&uid) {
        return Ok(Action::requeue(left));
    }
    let Some(_guard) = provisioner.locks.try_lock(&id) else { return Ok(Outcome::Occupied.action()) };
    let span = info_span!("volume", volume = %id);
    match plan::plan(&pv) {
        PvPlan::Ignore => {}
        PvPlan::Keep => provisioner.keep(&id).instrument(span).await?,
        PvPlan::SetFinalizers(finalizers) => {
            provisioner.keep(&id).instrument(span.clone()).await?;
            provisioner.set_finalizers(&pv, finalizers).instrument(span).await?;
        }
        PvPlan::Delete => {
            if let Err(error) = provisioner.delete(&pv, &id).instrument(span).await {
                provisioner.events.delete_failed(&pv, &error);
                return Err(error);
            }
        }
    }
    provisioner.attempts.succeeded(&uid);
    Ok(Action::await_change())
}

/// Counts the failure, and schedules the next pass.
pub(crate) fn failed(pv: Arc<PersistentVolume>, error: &Error, provisioner: Arc<Provisioner>) -> Action {
    provisioner.metrics.failed(Object::Volume, error.kind());
    let retry = provisioner.removal_failed(&pv.uid().unwrap_or_default(), error);
    let cause: &dyn std::error::Error = error;
    warn!(volume = pv.name_any(), error = cause, attempt = retry.attempt, "pass over PV failed, will retry");
    Action::requeue(retry.after)
}

impl Provisioner {
    /// Records that the volume has a PV, if an earlier run did not, and restores the volume from the trash, if a failed
    /// deletion has left it there. The caller has the volume's lock, so that no deletion is between trash and PV.
    pub(crate) async fn keep(&self, id: &VolumeId) -> Result<(), Error> {
        match self.keep_on_disk(id).await? {
            Ok(Ensured::Created(())) => {
                info!("volume restored from the trash, its PV is kept");
                Ok(())
            }
            // The sweep reports a PV without a volume.
            Ok(Ensured::Unchanged(())) | Err(volume::Error::Unknown { .. }) => Ok(()),
            Err(error) => Err(Error::Store(error)),
        }
    }

    /// Records that the volume has a PV, and restores it from the trash. The Controller service itself announces its
    /// volumes when they are complete: an administrator may have created the PV before, or for a former volume of the
    /// same name.
    pub(crate) async fn keep_on_disk(&self, id: &VolumeId) -> Result<Result<Ensured<()>, volume::Error>, JoinError> {
        self.on_volume(id, |store, id| match store.record(id)? {
            // A call that creates a volume with this ID may wait for the source, before it has written a record.
            None | Some(Record { owner: Owner::Controller { .. }, state: State::Staged, .. }) => {
                Ok(Ensured::Unchanged(()))
            }
            Some(Record { owner: Owner::Controller { .. }, .. }) => store.restore(id),
            Some(_) => store.announce(id).and_then(|_| store.restore(id)),
        })
        .await
    }

    /// Reads the PV again. Returns `None` if the PV does not keep the volume.
    pub(crate) async fn kept_pv(&self, id: &VolumeId, name: &str) -> Result<Option<PersistentVolume>, ApiError> {
        let found = self.pvs.get_opt(name).await.map_err(api("get a PV"))?;
        Ok(found.filter(|pv| {
            object::volume_of(pv, &self.node).as_ref() == Some(id)
                && !matches!(plan::plan(pv), PvPlan::Delete | PvPlan::Ignore)
        }))
    }

    async fn delete(&self, watched: &PersistentVolume, id: &VolumeId) -> Result<(), Error> {
        // Each of the requests of an earlier pass caused an event of the watch.
        if watched.metadata.uid.as_deref().is_some_and(|uid| self.index.has_removed(uid)) {
            return Ok(());
        }
        let _write = self.events.queue.begin_write();
        // An administrator may have created a second PV for the volume.
        if let Some(other) = self.other_pv(watched, id).await? {
            return Err(Error::Shared { other, id: id.clone() });
        }
        let claim = watched.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
        let claim_uid = claim.and_then(|claim| claim.uid.as_deref());
        let claim = claim.map(|claim| [&claim.namespace, &claim.name].map(|part| part.as_deref().unwrap_or_default()));
        info!(
            pv = watched.name_any(),
            pv_uid = watched.uid(),
            claim = claim.map(|claim| claim.join("/")),
            claim_uid,
            is_deleted_by_hand = watched.metadata.deletion_timestamp.is_some(),
            "audit: deleting the data of a released PV with policy Delete"
        );
        let retired = self.on_volume(id, |store, id| store.retire(id)).await?.map_err(Error::Store)?;
        // The watch may be behind, so the API server compares the PV's version. Until the PV has ended, the volume can
        // be restored.
        let before = match self.end_pv(watched, id).await? {
            Ended::Deleted { before } => before,
            // An earlier pass may have deleted the PV.
            Ended::Gone if retired == Ensured::Unchanged(()) => Instant::now(),
            Ended::Gone | Ended::Kept => {
                self.on_volume(id, |store, id| store.restore(id)).await?.map_err(Error::Store)?;
                warn!("PV was changed before its deletion, volume restored");
                return Ok(());
            }
        };
        info!("PV deleted");
        self.discards.add(id.clone(), EndOfPv { before, after: Instant::now() });
        Ok(())
    }

    /// Name of another PV of the volume, from a watch that may be behind. The removal of the data repeats the check
    /// exactly.
    async fn other_pv(&self, pv: &PersistentVolume, id: &VolumeId) -> Result<Option<String>, ApiError> {
        if self.index.is_current() {
            return Ok(self.index.other(id, pv.metadata.uid.as_deref()));
        }
        let listing = self.listings.since(Instant::now(), Listing::read(&self.pvs, &self.node)).await?;
        Ok(listing.other(id, &pv.name_any()).map(str::to_owned))
    }

    /// Deletes the PV and removes the driver's finalizer, if the PV is still to be deleted. The first request has the
    /// version of the PV that was checked.
    async fn end_pv(&self, watched: &PersistentVolume, id: &VolumeId) -> Result<Ended, ApiError> {
        let mut pv = watched.clone();
        let (mut conflicts, mut is_confirmed) = (0, false);
        let gone = |is_confirmed| if is_confirmed { Ended::Deleted { before: Instant::now() } } else { Ended::Gone };
        // A PV whose deletion is confirmed had the finalizer after this moment.
        let mut before = Instant::now();
        loop {
            let done = match pv.metadata.deletion_timestamp {
                None => self.delete_pv(&pv).await.map(|deleted| deleted.map(Some)),
                Some(_) if is_confirmed => self.remove_finalizer(&pv).await.map(|is_set| is_set.then_some(None)),
                Some(_) => {
                    self.set_finalizers(&pv, plan::without_driver(&pv)).await.map(|is_set| is_set.then_some(None))
                }
            };
            match done {
                Ok(Some(Some(deleted))) => {
                    (pv, is_confirmed) = (deleted, true);
                    continue;
                }
                Ok(Some(None)) => {
                    self.index.removed(pv.uid().unwrap_or_default(), id.clone(), before);
                    return Ok(Ended::Deleted { before });
                }
                Ok(None) => return Ok(gone(is_confirmed)),
                Err(error) if error.is_conflict() && conflicts < CONFLICTS => conflicts += 1,
                Err(error) => {
                    if pv.metadata.deletion_timestamp.is_some() {
                        // The failed request may have removed the finalizer, and then the PV has no other pass.
                        let after = Instant::now();
                        self.discards.add(id.clone(), EndOfPv { before: after, after });
                    }
                    return Err(error);
                }
            }
            before = Instant::now();
            match self.pvs.get_opt(&pv.name_any()).await.map_err(api("get the PV"))? {
                Some(found) if found.uid() == pv.uid() => match plan::plan(&found) {
                    PvPlan::Delete => (pv, is_confirmed) = (found, true),
                    PvPlan::Ignore => return Ok(gone(is_confirmed)),
                    PvPlan::Keep | PvPlan::SetFinalizers(_) => return Ok(Ended::Kept),
                },
                Some(_) | None => return Ok(gone(is_confirmed)),
            }
        }
    }

    /// Returns the PV if a finalizer keeps it, or `None` if it does not exist any more.
    async fn delete_pv(&self, pv: &PersistentVolume) -> Result<Option<PersistentVolume>, ApiError> {
        let preconditions = Some(Preconditions { uid: pv.uid(), resource_version: pv.resource_version() });
        let params = DeleteParams { preconditions, ..DeleteParams::default() };
        let deleted = unless_gone(self.pvs.delete(&pv.name_any(), &params).await, "delete the PV")?;
        Ok(deleted.and_then(|answer| answer.left()))
    }

    /// Removes the driver's finalizer from a PV whose deletion is confirmed. The request does not have the PV's
    /// version, because Kubernetes removes `pv-protection` at the same time. Returns whether the PV exists.
    async fn remove_finalizer(&self, pv: &PersistentVolume) -> Result<bool, ApiError> {
        let metadata = json!({"uid": pv.uid(), "$deleteFromPrimitiveList/finalizers": [FINALIZER]});
        self.patch_finalizers(pv, &Patch::Strategic(json!({ "metadata": metadata }))).await
    }

    /// Replaces the finalizers of the PV. Returns whether the PV exists.
    async fn set_finalizers(&self, pv: &PersistentVolume, finalizers: Vec<String>) -> Result<bool, ApiError> {
        let mut metadata = json!({
            "uid": pv.uid(),
            "resourceVersion": pv.resource_version(),
            "finalizers": finalizers,
        });
        if finalizers.iter().any(|name| name == FINALIZER) {
            metadata["annotations"][PROVISIONED_BY] = DRIVER_NAME.into();
        }
        self.patch_finalizers(pv, &Patch::Merge(json!({ "metadata": metadata }))).await
    }

    /// Patches the spec of the PV, and returns the changed PV. Fails if the PV was changed since it was read.
    pub(crate) async fn patch_pv(
        &self,
        pv: &PersistentVolume,
        spec: Value,
        what: &'static str,
    ) -> Result<PersistentVolume, ApiError> {
        let metadata = json!({"uid": pv.uid(), "resourceVersion": pv.resource_version()});
        let patch = Patch::Merge(json!({"metadata": metadata, "spec": spec}));
        self.pvs.patch(&pv.name_any(), &PatchParams::default(), &patch).await.map_err(api(what))
    }

    async fn patch_finalizers(&self, pv: &PersistentVolume, patch: &Patch<Value>) -> Result<bool, ApiError> {
        let patched = self.pvs.patch_metadata(&pv.name_any(), &PatchParams::default(), patch).await;
        Ok(unless_gone(patched, "set the PV's finalizers")?.is_some())
    }
}

#[cfg(test)]
mod tests {
    use volume::{Allocation, Mode};

    use super::*;
    use crate::fixture::{self, id};

    /// An announced volume is never created to its end.
    #[tokio::test]
    async fn a_pv_does_not_announce_a_volume_that_a_client_is_creating() {
        let (provisioner, disk) = fixture::unanswered(&[]);
        let volumes = [("pvc-1", Owner::Provisioner), ("data", Owner::Controller { source: None })];
        let states = async |state| {
            let mut found = Vec::new();
            for (name, owner) in &volumes {
                let record = fixture::record(Mode::Block { allocation: Allocation::Thick }, state);
                disk.put(&id(name), Record { owner: owner.clone(), ..record });
                provisioner.keep(&id(name)).await.expect("a pass");
                found.push(disk.record(&id(name)).expect("a record").state);
            }
            found
        };
        assert_eq!(states(State::Staged).await, [State::Announced, State::Staged]);
        assert_eq!(states(State::Announced).await, [State::Announced, State::Announced]);
        disk.retire(&id("data"));
        provisioner.keep(&id("data")).await.expect("a pass");
        assert!(disk.retired().is_empty(), "the PV restores a volume of either");
    }
}
