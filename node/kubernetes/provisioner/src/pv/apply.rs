//! Keeps or deletes a PV of this node, with its data.

use std::sync::Arc;

use k8s_openapi::api::core::v1::PersistentVolume;
use kube::ResourceExt as _;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::runtime::controller::Action;
use serde_json::json;
use tokio::time::Instant;
use tracing::{Instrument as _, info, info_span, warn};
use volume::{DRIVER_NAME, FINALIZER, PROVISIONED_BY, VolumeId};

use crate::context::{OCCUPIED, Provisioner};
use crate::error::{ApiError, Error, api};
use crate::metrics::Object;
use crate::pv::object;
use crate::pv::plan::{self, PvPlan};

/// Conflicting writes of a deleted PV before the back-off.
const CONFLICTS: usize = 3;

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
    let span = info_span!("volume", volume = %id);
    match plan::plan(&pv) {
        PvPlan::Ignore => {}
        PvPlan::Keep => provisioner.keep(&id).instrument(span).await?,
        PvPlan::SetFinalizers(finalizers) => {
            provisioner.keep(&id).instrument(span.clone()).await?;
            provisioner.set_finalizers(&pv, finalizers).instrument(span).await?;
        }
        PvPlan::Delete => {
            let Some(_guard) = provisioner.locks.try_lock(&id) else { return Ok(Action::requeue(OCCUPIED)) };
            if let Err(error) = provisioner.delete(&pv, &id).instrument(span).await {
                provisioner.events.delete_failed(&pv, error.kind(), &error).await;
                return Err(error);
            }
        }
    }
    provisioner.attempts.succeeded(&uid);
    Ok(Action::await_change())
}

/// Counts the failure. Returns when the next pass is.
pub(crate) fn failed(pv: Arc<PersistentVolume>, error: &Error, provisioner: Arc<Provisioner>) -> Action {
    provisioner.metrics.failed(Object::Volume, error.kind());
    let retry = provisioner.attempts.failed(&pv.uid().unwrap_or_default());
    let cause: &dyn std::error::Error = error;
    warn!(volume = pv.name_any(), error = cause, attempt = retry.attempt, "pass over PV failed, will retry");
    Action::requeue(retry.after)
}

impl Provisioner {
    /// Records that the volume has a PV, if an earlier run did not.
    async fn keep(&self, id: &VolumeId) -> Result<(), Error> {
        match self.on_volume(id, |store, id| store.announce(id)).await? {
            // The sweep reports a PV without a volume.
            Ok(_) | Err(volume::Error::Unknown { .. }) => Ok(()),
            Err(error) => Err(Error::Store(error)),
        }
    }

    async fn delete(&self, watched: &PersistentVolume, id: &VolumeId) -> Result<(), Error> {
        // The watch may be behind, and deleted data cannot be restored: read the PV again.
        let started = Instant::now();
        let Some(pv) = self.pvs.get_opt(&watched.name_any()).await.map_err(api("get the PV"))? else {
            return Ok(());
        };
        if pv.uid() != watched.uid() || plan::plan(&pv) != PvPlan::Delete {
            return Ok(());
        }
        // A second PV that an administrator created for the volume.
        let listing = self.listings.since(started, &self.pvs, &self.node).await?;
        if let Some(other) = listing.other(id, &pv.name_any()) {
            return Err(Error::Shared { other: other.name.clone(), id: id.clone() });
        }
        let claim = pv.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
        let claim_uid = claim.and_then(|claim| claim.uid.as_deref());
        let claim = claim.map(|claim| [&claim.namespace, &claim.name].map(|part| part.as_deref().unwrap_or_default()));
        info!(
            pv = pv.name_any(),
            pv_uid = pv.uid(),
            claim = claim.map(|claim| claim.join("/")),
            claim_uid,
            is_deleted_by_hand = pv.metadata.deletion_timestamp.is_some(),
            "audit: deleting the data of a released PV with policy Delete"
        );
        self.on_volume(id, |store, id| store.retire(id)).await?.map_err(Error::Store)?;
        let deleted = if pv.metadata.deletion_timestamp.is_some() { Some(pv) } else { self.delete_pv(&pv).await? };
        if let Some(pv) = deleted {
            self.remove_finalizer(pv).await?;
        }
        info!("PV deleted");
        self.discards.add(id.clone());
        Ok(())
    }

    /// Returns the PV if it still has the driver's finalizer.
    async fn delete_pv(&self, pv: &PersistentVolume) -> Result<Option<PersistentVolume>, Error> {
        let preconditions = Some(Preconditions { uid: pv.uid(), resource_version: pv.resource_version() });
        let params = DeleteParams { preconditions, ..DeleteParams::default() };
        match self.pvs.delete(&pv.name_any(), &params).await {
            Ok(answer) => Ok(answer.left().filter(|pv| pv.finalizers().iter().any(|name| name == FINALIZER))),
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(None),
            Err(error) => Err(api("delete the PV")(error).into()),
        }
    }

    /// Kubernetes removes `pv-protection` at the same time: conflicts are expected.
    async fn remove_finalizer(&self, mut pv: PersistentVolume) -> Result<(), ApiError> {
        for _ in 0..CONFLICTS {
            match self.set_finalizers(&pv, plan::without_driver(&pv)).await {
                Err(error) if error.is_conflict() => {}
                done => return done,
            }
            match self.pvs.get_opt(&pv.name_any()).await.map_err(api("get the PV"))? {
                Some(found) if found.uid() == pv.uid() => pv = found,
                Some(_) | None => return Ok(()),
            }
        }
        self.set_finalizers(&pv, plan::without_driver(&pv)).await
    }

    async fn set_finalizers(&self, pv: &PersistentVolume, finalizers: Vec<String>) -> Result<(), ApiError> {
        let mut metadata = json!({
            "uid": pv.uid(),
            "resourceVersion": pv.resource_version(),
            "finalizers": finalizers,
        });
        if finalizers.iter().any(|name| name == FINALIZER) {
            metadata["annotations"][PROVISIONED_BY] = DRIVER_NAME.into();
        }
        let patch = Patch::Merge(json!({ "metadata": metadata }));
        match self.pvs.patch_metadata(&pv.name_any(), &PatchParams::default(), &patch).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
            Err(error) => Err(api("set the PV's finalizers")(error)),
        }
    }
}
