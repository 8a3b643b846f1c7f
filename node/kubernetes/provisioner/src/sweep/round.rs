//! Rounds of the sweep, and the comparison of one volume.

use std::collections::{BTreeMap, BTreeSet};

use dir::Ensured;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::Api;
use tracing::{error, info, warn};
use volume::{Claim, IdlePasses, LiveVolumeError, Record, State, Strays, VolumeGuard, VolumeId};

use crate::claim;
use crate::context::Provisioner;
use crate::error::{Error, api};
use crate::listing::ListedPv;
use crate::pv::object;

/// Errors, each with the volume that could not be compared; `None` for a list that several volumes need. An error does
/// not end the comparison of the other volumes.
pub(crate) type Failed = Vec<(Option<VolumeId>, Error)>;

/// A comparison of disk and cluster, or a look at the volumes that the last comparison left out.
#[derive(Debug, Default)]
pub(super) struct Round {
    pub(super) found: Findings,
    pub(super) failed: Failed,
}

/// Findings that only an administrator can repair.
#[derive(Debug, Default)]
pub(super) struct Findings {
    pub(super) orphans: BTreeSet<VolumeId>,
    pub(super) snapshots: BTreeSet<VolumeId>,
    pub(super) unreadable: BTreeSet<VolumeId>,
    /// Volumes of PVs that the disk does not have.
    pub(super) lost: BTreeSet<VolumeId>,
    /// Directories and quotas without a record.
    pub(super) strays: Strays,
    pub(super) left_out: LeftOut,
}

/// Volumes that other passes had during the comparison, those whose comparison failed, and those whose claims ended
/// after it.
#[derive(Debug, Default)]
pub(super) struct LeftOut {
    /// Volumes whose PV may not exist.
    pub(super) staged: BTreeSet<VolumeId>,
    /// Volumes that the disk may not have, with their PVs.
    pub(super) missing: BTreeMap<VolumeId, Vec<ListedPv>>,
}

/// State of a volume after its comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Compared {
    /// Disk and cluster agree, the PV is not kept, or the pass of a claim continues.
    Settled,
    /// A PV has the volume, and the disk does not.
    Lost,
    /// Another pass has the volume, or the source of its copy.
    Occupied,
    /// The comparison failed, and is repeated after its back-off.
    Failed,
}

impl LeftOut {
    pub(super) fn is_empty(&self) -> bool {
        self.staged.is_empty() && self.missing.is_empty()
    }

    fn has(&self, id: &VolumeId) -> bool {
        self.staged.contains(id) || self.missing.contains_key(id)
    }
}

impl Round {
    pub(super) fn has_progress(&self) -> bool {
        self.failed.iter().all(|(_, error)| error.is_about_object())
    }

    /// Whether the API server or the disk failed for a volume at which no look follows.
    pub(super) fn is_incomplete(&self) -> bool {
        let has_no_look = |id: &VolumeId| !self.found.left_out.has(id);
        self.failed.iter().any(|(id, error)| !error.is_about_object() && id.as_ref().is_none_or(has_no_look))
    }

    /// Logs the errors, and returns the findings.
    pub(super) fn logged(self) -> Findings {
        for (id, error) in self.failed {
            match id {
                Some(id) => {
                    warn!(volume = %id, error = causes::of(&error), "comparison of the volume failed, will retry");
                }
                None => warn!(error = causes::of(&error), "comparison of several volumes failed, will retry"),
            }
        }
        self.found
    }

    /// Compares a volume whose PV may not exist.
    pub(super) async fn compare_staged(&mut self, provisioner: &Provisioner, id: &VolumeId) {
        let key = format!("staged {id}");
        let compared = if provisioner.attempts.wait(&key).is_some() {
            Compared::Failed
        } else {
            let result = provisioner.settle_staged(id).await;
            self.compared(provisioner, &key, id, result)
        };
        let staged = &mut self.found.left_out.staged;
        match compared {
            Compared::Settled | Compared::Lost => drop(staged.remove(id)),
            Compared::Occupied | Compared::Failed => drop(staged.insert(id.clone())),
        }
    }

    /// Compares a volume of PVs that the disk may not have. `was_lost` is the result of the last comparison.
    pub(super) async fn compare_missing(
        &mut self,
        provisioner: &Provisioner,
        id: &VolumeId,
        pvs: &[ListedPv],
        was_lost: bool,
    ) {
        let key = format!("missing {id}");
        let compared = if provisioner.attempts.wait(&key).is_some() {
            Compared::Failed
        } else {
            let result = provisioner.settle_missing(id, pvs, was_lost).await;
            self.compared(provisioner, &key, id, result)
        };
        let (is_lost, is_left_out) = match compared {
            Compared::Settled => (false, false),
            Compared::Lost => (true, false),
            // Until another look, the result of the last one counts.
            Compared::Occupied | Compared::Failed => (was_lost, true),
        };
        let Findings { lost, left_out: LeftOut { missing, .. }, .. } = &mut self.found;
        if is_lost {
            lost.insert(id.clone());
        } else {
            lost.remove(id);
        }
        if is_left_out {
            missing.insert(id.clone(), pvs.to_vec());
        } else {
            missing.remove(id);
        }
    }

    /// Records the result of a comparison for the back-off of the volume.
    fn compared(
        &mut self,
        provisioner: &Provisioner,
        key: &str,
        id: &VolumeId,
        result: Result<Compared, Error>,
    ) -> Compared {
        match result {
            Ok(Compared::Occupied) => Compared::Occupied,
            Ok(compared) => {
                provisioner.attempts.succeeded(key);
                compared
            }
            Err(error) => {
                provisioner.attempts.pass_failed(key, &error);
                self.failed.push((Some(id.clone()), error));
                Compared::Failed
            }
        }
    }
}

impl Provisioner {
    /// Completes or undoes a volume whose PV may not exist.
    async fn settle_staged(&self, id: &VolumeId) -> Result<Compared, Error> {
        let Some(guard) = self.locks.try_lock(id) else { return Ok(Compared::Occupied) };
        // Another pass may have announced or undone it. The next sweep reports an unreadable record.
        let record = self.on_volume(id, |store, id| store.record(id)).await?.unwrap_or_default();
        let Some(record) = record.filter(is_staged) else { return Ok(Compared::Settled) };
        // The store undoes no copy while another operation has the source, such as a clone, which takes minutes. The
        // store gives up after a second, but it does so for each copy of the source, and each look would also send the
        // requests for all of them. A tenant chooses their number.
        if self.try_lock_all(record.cloning.as_ref().map(|cloning| &cloning.source)).is_none() {
            return Ok(Compared::Occupied);
        }
        if self.is_waiting(&record.claim).await? {
            return Ok(Compared::Settled);
        }
        // Read the PV after the claim: a claim that was bound in between has its PV now.
        let pv = self.pvs.get_opt(id.as_str()).await.map_err(api("get a PV"))?;
        let settled = if pv.is_some_and(|pv| object::volume_of(&pv, &self.node).as_ref() == Some(id)) {
            self.on_volume(id, |store, id| store.announce(id)).await?
        } else {
            self.undo(id, guard).await?
        };
        if settled.as_ref().is_err_and(volume::Error::is_locked) {
            return Ok(Compared::Occupied);
        }
        settled.map(|_| Compared::Settled).map_err(Error::Store)
    }

    /// Undoes a staged volume, in as many passes as it has files. The disk call of a pass has the lock, also if the
    /// future is dropped.
    async fn undo(&self, id: &VolumeId, mut guard: VolumeGuard) -> Result<Result<Ensured<()>, volume::Error>, Error> {
        let mut idle = IdlePasses::default();
        loop {
            let undone;
            (undone, guard) = self.on_volume(id, move |store, id| (store.undo(id), guard)).await?;
            match undone {
                Err(error) if idle.continues(&error) => {}
                done => return Ok(done),
            }
        }
    }

    async fn is_waiting(&self, claim: &Claim) -> Result<bool, Error> {
        let claims = Api::<PersistentVolumeClaim>::namespaced(self.client.clone(), &claim.namespace);
        let found = claims.get_opt(&claim.name).await.map_err(api("get a claim"))?;
        let assigned = found.and_then(|found| claim::plan::assigned(&found, &self.node));
        Ok(assigned.is_some_and(|assigned| assigned.claim.uid == claim.uid))
    }

    /// Restores a volume from the trash whose PV is kept, or reports that the disk does not have it. Reads volume and
    /// PVs again, because they may have been created or deleted since the disk was read.
    async fn settle_missing(&self, id: &VolumeId, pvs: &[ListedPv], was_lost: bool) -> Result<Compared, Error> {
        let Some(_guard) = self.locks.try_lock(id) else { return Ok(Compared::Occupied) };
        let live = self.on_volume(id, |store, id| store.live_volume(id)).await?;
        let Some(reason) = live.err().filter(LiveVolumeError::is_missing) else { return Ok(Compared::Settled) };
        let mut found = Compared::Settled;
        for listed in pvs.iter().filter(|pv| !pv.is_deleted) {
            let Some(pv) = self.kept_pv(id, &listed.name).await? else { continue };
            // The policy became Retain during the deletion, or an administrator created another PV for the volume. This
            // pass has the volume's lock, so that no deletion is between trash and PV.
            match self.keep_on_disk(id).await? {
                Ok(Ensured::Created(())) => {
                    info!(volume = %id, pv = listed.name, "volume restored from the trash, its PV is kept");
                    break;
                }
                Ok(Ensured::Unchanged(())) | Err(volume::Error::Unknown { .. }) => {
                    if found != Compared::Lost && !was_lost {
                        log_lost(id, &listed.name, &reason);
                        self.events.lost(&pv, &reason);
                    }
                    found = Compared::Lost;
                }
                Err(error) => return Err(Error::Store(error)),
            }
        }
        Ok(found)
    }
}

fn log_lost(id: &VolumeId, pv: &str, error: &(dyn std::error::Error + 'static)) {
    error!(volume = %id, pv, error, "PV without a volume on the disk");
}

pub(super) fn is_staged(record: &Record) -> bool {
    record.state == State::Staged && record.owner.is_provisioner()
}
