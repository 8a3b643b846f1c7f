//! What happens to a PV of this node: it is kept, marked, or deleted with its data.

use std::sync::Arc;

use dir::Ensured;
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::ResourceExt as _;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::runtime::controller::Action;
use serde_json::json;
use tokio::task::JoinError;
use tokio::time::Instant;
use tracing::{Instrument as _, info, info_span, warn};
use volume::{DRIVER_NAME, FINALIZER, PROVISIONED_BY, VolumeId};

use crate::api::{ApiError, api};
use crate::controller::{OCCUPIED, Provisioner};
use crate::delete::{self, Verdict};
use crate::metrics::Object;
use crate::pv;

/// How often somebody else may be faster with a PV that is deleted, before it is tried again later.
const CONFLICTS: usize = 3;

/// Why a PV, or the volume that it stood for, is not settled yet.
#[derive(Debug, thiserror::Error)]
pub(crate) enum VolumeError {
    #[error(transparent)]
    Store(volume::Error),
    #[error(transparent)]
    Api(#[from] ApiError),
    #[error("PV {other} stands for the same volume {id}; delete one of the two PVs with policy Retain first")]
    Shared { other: String, id: VolumeId },
    #[error("work on the disk panicked")]
    Panicked(#[from] JoinError),
}

impl VolumeError {
    pub(crate) const fn kind(&self) -> &'static str {
        match self {
            Self::Store(error) if error.is_in_use() => "InUse",
            Self::Store(_) => "Store",
            Self::Api(_) => "Api",
            Self::Shared { .. } => "Shared",
            Self::Panicked(_) => "Panicked",
        }
    }
}

/// What [`Provisioner::take_back`] found.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum TakenBack {
    /// The volume was in the trash, and is live.
    Yes,
    /// It is not in the trash. The PV as it is now.
    NotThere(Box<PersistentVolume>),
    /// The PV is gone, or going.
    PvGoes,
}

/// Does what is left to do for the PV.
pub(crate) async fn pass(pv: Arc<PersistentVolume>, p: Arc<Provisioner>) -> Result<Action, VolumeError> {
    let Some(id) = pv::ours(&pv, &p.node) else {
        if pv::is_incomplete(&pv) {
            info!(pv = pv.name_any(), "PV names our driver, but no volume of one node; ignored");
        }
        return Ok(Action::await_change());
    };
    let uid = pv.uid().unwrap_or_default();
    if let Some(left) = p.attempts.wait(&uid) {
        return Ok(Action::requeue(left));
    }
    let span = info_span!("volume", volume = %id);
    let settled = match delete::judge(&pv) {
        Verdict::Leave => Ok(()),
        Verdict::Keep => p.keep(&pv, &id).instrument(span).await,
        Verdict::Mark(finalizers) => {
            async {
                p.keep(&pv, &id).await?;
                Ok(p.set_finalizers(&pv, finalizers).await?)
            }
            .instrument(span)
            .await
        }
        Verdict::Delete => {
            // Its removal, or the pass of another PV, may be at it.
            let Some(_guard) = p.locks.try_lock(&id) else { return Ok(Action::requeue(OCCUPIED)) };
            let deleted = p.delete(&pv, &id).instrument(span).await;
            if let Err(error) = &deleted {
                p.events.delete_failed(&pv, error.kind(), error).await;
            }
            deleted
        }
    };
    settled?;
    p.attempts.succeeded(&uid);
    Ok(Action::await_change())
}

/// Counts the failure and tells when the next pass is.
pub(crate) fn failed(pv: Arc<PersistentVolume>, error: &VolumeError, p: Arc<Provisioner>) -> Action {
    p.metrics.failed(Object::Volume, error.kind());
    let retry = p.attempts.failed(&pv.uid().unwrap_or_default());
    let cause: &dyn std::error::Error = error;
    warn!(volume = pv.name_any(), error = cause, attempt = retry.attempt, "PV not settled");
    Action::requeue(retry.after)
}

impl Provisioner {
    /// The PV exists and its volume is to be used: a run that ended before it could note that is made up for, and so is
    /// a deletion that failed half-way and that somebody thought better of.
    async fn keep(&self, pv: &PersistentVolume, id: &VolumeId) -> Result<(), VolumeError> {
        let volume = id.clone();
        match self.on_disk(move |store| store.announce(&volume)).await? {
            // The comparison reports a PV without a volume.
            Ok(_) | Err(volume::Error::Unknown { .. }) => {}
            Err(error) => return Err(VolumeError::Store(error)),
        }
        if self.attempts.is_failing(&pv.uid().unwrap_or_default())
            && let Some(_guard) = self.locks.try_lock(id)
        {
            self.take_back(&pv.name_any(), id).await?;
        }
        Ok(())
    }

    /// Takes the volume out of the trash if the API server says that the PV stays. Only with the volume's turn: else a
    /// deletion may be between trash and PV. Whether it was in the trash.
    pub(crate) async fn take_back(&self, pv: &str, id: &VolumeId) -> Result<TakenBack, VolumeError> {
        let found = self.volumes.get_opt(pv).await.map_err(api("look at the PV"))?;
        let stays = |pv: &PersistentVolume| {
            pv::ours(pv, &self.node).as_ref() == Some(id)
                && !matches!(delete::judge(pv), Verdict::Delete | Verdict::Leave)
        };
        let Some(found) = found.filter(stays) else { return Ok(TakenBack::PvGoes) };
        let volume = id.clone();
        let restored = self.on_disk(move |store| {
            // A run that ended before it could note that there is a PV.
            store.announce(&volume)?;
            store.restore(&volume)
        });
        match restored.await? {
            Ok(Ensured::Created(())) => {
                info!(volume = %id, pv, "volume taken back from the trash, its PV stays");
                Ok(TakenBack::Yes)
            }
            Ok(Ensured::Unchanged(())) | Err(volume::Error::Unknown { .. }) => Ok(TakenBack::NotThere(Box::new(found))),
            Err(error) => Err(VolumeError::Store(error)),
        }
    }

    async fn delete(&self, seen: &PersistentVolume, id: &VolumeId) -> Result<(), VolumeError> {
        // What the watch has seen may be old, and data does not come back: ask once more.
        let asked = Instant::now();
        let Some(pv) = self.volumes.get_opt(&seen.name_any()).await.map_err(api("look at the PV"))? else {
            return Ok(());
        };
        if pv.uid() != seen.uid() || delete::judge(&pv) != Verdict::Delete {
            return Ok(());
        }
        // Somebody adopted the volume by a second PV: its data is in use.
        let listing = self.listings.since(asked, &self.volumes, &self.node).await?;
        if let Some(other) = listing.other(id, &pv.name_any()) {
            return Err(VolumeError::Shared { other: other.name.clone(), id: id.clone() });
        }
        let claim = pv.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
        let claim_uid = claim.and_then(|claim| claim.uid.as_deref());
        let claim = claim.map(|claim| [&claim.namespace, &claim.name].map(|part| part.as_deref().unwrap_or_default()));
        info!(
            pv = pv.name_any(),
            pv_uid = pv.uid(),
            claim = claim.map(|of| of.join("/")),
            claim_uid,
            is_deleted_by_hand = pv.metadata.deletion_timestamp.is_some(),
            "audit: volume is deleted with its data, its PV is released and has policy Delete"
        );
        let retired = id.clone();
        self.on_disk(move |store| store.retire(&retired)).await?.map_err(VolumeError::Store)?;
        let leaving = if pv.metadata.deletion_timestamp.is_some() { Some(pv) } else { self.delete_pv(&pv).await? };
        if let Some(pv) = leaving {
            self.let_go(pv).await?;
        }
        info!("PV deleted");
        self.pending.add(id.clone());
        Ok(())
    }

    /// The PV as it is while it waits for its finalizers; `None` if it is gone.
    async fn delete_pv(&self, pv: &PersistentVolume) -> Result<Option<PersistentVolume>, VolumeError> {
        let preconditions = Some(Preconditions { uid: pv.uid(), resource_version: pv.resource_version() });
        let params = DeleteParams { preconditions, ..DeleteParams::default() };
        match self.volumes.delete(&pv.name_any(), &params).await {
            Ok(answer) => Ok(answer.left().filter(|pv| pv.finalizers().iter().any(|name| name == FINALIZER))),
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(None),
            Err(error) => Err(api("delete the PV")(error).into()),
        }
    }

    /// Takes our finalizer off, as long as the PV is to be deleted. The protection of PVs takes off its own at the same
    /// moment: nobody is told of that conflict, the PV is looked at once more.
    async fn let_go(&self, mut pv: PersistentVolume) -> Result<(), ApiError> {
        for _ in 0..CONFLICTS {
            match self.set_finalizers(&pv, delete::without_ours(&pv)).await {
                Err(error) if error.is_conflict() => {}
                done => return done,
            }
            match self.volumes.get_opt(&pv.name_any()).await.map_err(api("look at the PV"))? {
                Some(found) if found.uid() == pv.uid() => pv = found,
                Some(_) | None => return Ok(()),
            }
        }
        self.set_finalizers(&pv, delete::without_ours(&pv)).await
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
        match self.volumes.patch_metadata(&pv.name_any(), &PatchParams::default(), &patch).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
            Err(error) => Err(api("set the PV's finalizers")(error)),
        }
    }
}
