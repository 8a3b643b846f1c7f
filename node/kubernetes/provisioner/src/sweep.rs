//! Compares disk and cluster in both directions, at start and every 5 to 10 minutes.
//!
//! | on the disk | in the cluster | action |
//! |---|---|---|
//! | staged | claim waits | none: the pass of the claim continues |
//! | staged | no claim, PV | recorded as announced |
//! | staged | neither | undone: no pod ever had it |
//! | announced | no PV | an orphan: reported, kept |
//! | in the trash | no PV | removed |
//! | in the trash | PV that is kept | restored |
//! | nothing | PV | lost: reported |
//! | no record, or an unreadable one | | reported, kept |
//!
//! Snapshots are compared with their contents: `snapshot/sweep.rs`. Those of rollbacks are compared with the annotations of claims:
//! without the request, a copy is removed, and a former content becomes an ordinary snapshot.
//! Volumes of another [`Owner`](volume::Owner) are ignored: claims and PVs do not decide about them.
//!
//! If the API server returns no PV at all although the disk has volumes that had one, it may have lost its data, or may be
//! that of another cluster. Then nothing is undone or removed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use dir::Ensured;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::Api;
use supervisor::Context;
use tokio::time::{Instant, sleep};
use tracing::{error, info, warn};
use volume::{Claim, LiveVolumeError, Owner, Record, Records, State, Strays, VolumeId};

use crate::backoff::{self, delay, random};
use crate::claim;
use crate::context::{Provisioner, RunError};
use crate::discard::queue::EndOfPv;
use crate::error::{Error, api};
use crate::events::source_mode;
use crate::listing::Listing;
use crate::metrics::Orphan;
use crate::pv::object;

/// Less a random part of up to a half: nodes that started together list all PVs at different times.
const INTERVAL: Duration = Duration::from_mins(10);

/// Findings that only an administrator can repair.
#[derive(Debug, Default)]
struct Findings {
    orphans: BTreeSet<VolumeId>,
    snapshots: BTreeSet<VolumeId>,
    unreadable: BTreeSet<VolumeId>,
    /// Volumes of PVs that the disk does not have.
    lost: BTreeSet<VolumeId>,
    /// Directories and quotas without a record.
    strays: Strays,
}

/// Sweeps until it is cancelled. Healthy after the first sweep.
pub(crate) async fn run(cx: Context, provisioner: Arc<Provisioner>) -> Result<(), RunError> {
    let mut reported = Findings::default();
    let mut failures = 0;
    loop {
        let wait = match cx.round(provisioner.sweep(&reported), Result::is_ok).await {
            Ok(found) => {
                failures = 0;
                reported = found;
                cx.healthy();
                backoff::jittered(INTERVAL, random())
            }
            Err(error) => {
                failures += 1;
                let error: &dyn std::error::Error = &error;
                warn!(error, attempt = failures, "comparison of disk and cluster failed, will retry");
                delay(failures, random())
            }
        };
        tokio::select! {
            () = cx.cancelled() => return Ok(()),
            () = sleep(wait) => {}
        }
    }
}

impl Provisioner {
    /// Reads the disk first: a later volume has its PV or its claim when the API server is read.
    async fn sweep(&self, reported: &Findings) -> Result<Findings, Error> {
        let (records, retired, strays) =
            self.on_disk(|store| (store.records(), store.retired(), store.strays())).await?;
        let (Records { readable, unreadable }, retired, strays) = (records?, retired?, strays?);
        let is_managed =
            |id: &VolumeId| readable.get(id).is_none_or(|record| !matches!(record.owner, Owner::Controller { .. }));
        let retired = retired.into_iter().filter(is_managed);
        // A claim decides about the snapshot of its rollback.
        let is_rollback =
            |record: &Record| record.rollback().is_some_and(|rollback| readable.contains_key(&rollback.volume));
        let rollbacks = readable.iter().filter(|(_, record)| is_rollback(record));
        let rollbacks: BTreeMap<_, _> = rollbacks.map(|(id, record)| (id.clone(), record.clone())).collect();
        let is_snapshot = |id: &VolumeId| readable.get(id).is_some_and(|record| record.mode.is_snapshot());
        let (retired_snapshots, retired): (BTreeSet<_>, BTreeSet<_>) = retired.partition(is_snapshot);
        let (snapshots, readable): (BTreeMap<_, _>, BTreeMap<_, _>) = readable
            .into_iter()
            .filter(|(id, _)| !rollbacks.contains_key(id))
            .partition(|(_, record)| record.mode.is_snapshot());
        let since = Instant::now();
        let listing = self.listings.since(since, &self.pvs, &self.node).await?;
        if is_plausible(&listing, &readable) {
            let staged =
                readable.iter().filter(|(_, record)| record.state == State::Staged && record.owner.is_provisioner());
            for (id, record) in staged {
                self.settle_staged(id, record).await?;
            }
            for id in retired.iter().filter(|id| !listing.has(id)) {
                self.discards.add(id.clone(), EndOfPv { before: since, after: since });
            }
        } else {
            warn!("the API server has no PVs, but the disk has volumes of PVs: nothing is undone or removed");
        }
        self.sweep_rollbacks(&rollbacks).await?;
        let found = Findings {
            orphans: orphans(&readable, &retired, &listing),
            snapshots: self.sweep_snapshots(&snapshots, &retired_snapshots).await?,
            unreadable: unreadable.keys().cloned().collect(),
            lost: self.lost(&listing, &readable, &retired, reported).await?,
            strays,
        };
        self.count(&found);
        self.report(&found, reported, &readable, &snapshots);
        for (id, reason) in unreadable.iter().filter(|(id, _)| !reported.unreadable.contains(id)) {
            let reason: &dyn std::error::Error = reason;
            error!(volume = %id, error = reason, "volume has an unreadable record; it is kept, and no pod can use it");
        }
        Ok(found)
    }

    fn count(&self, found: &Findings) {
        let Findings { orphans, snapshots, unreadable, lost, strays } = found;
        self.metrics.orphans(Orphan::Volume, orphans.len());
        self.metrics.orphans(Orphan::Snapshot, snapshots.len());
        self.metrics.orphans(Orphan::Record, unreadable.len());
        self.metrics.orphans(Orphan::Pv, lost.len());
        self.metrics.orphans(Orphan::Directory, strays.directories.len());
        self.metrics.orphans(Orphan::Project, strays.projects.len());
        self.attempts.forget();
    }

    fn report(
        &self,
        found: &Findings,
        reported: &Findings,
        records: &BTreeMap<VolumeId, Record>,
        snapshots: &BTreeMap<VolumeId, Record>,
    ) {
        for id in found.snapshots.difference(&reported.snapshots) {
            let Some(record) = snapshots.get(id) else { continue };
            let Record { claim: snapshot, size, mode, .. } = record;
            error!(
                volume = %id, %snapshot, content_uid = snapshot.uid, limit = %size, source_mode = source_mode(*mode),
                "snapshot has data and no content; it is kept: create a content to use it or to delete it"
            );
            self.events.orphaned(&self.node, id, record);
        }
        for id in found.orphans.difference(&reported.orphans) {
            let Some(record) = records.get(id) else { continue };
            let Record { claim, size, class, mode, .. } = record;
            error!(
                volume = %id, %claim, claim_uid = claim.uid, limit = %size, %mode, class,
                "volume has data and no PV; it is kept: create a PV to use it or to delete it"
            );
            self.events.orphaned(&self.node, id, record);
        }
        if found.strays != reported.strays {
            for (place, name) in &found.strays.directories {
                error!(?place, name = ?name, "directory without a record in the volumes directory; it is kept");
            }
            for project in &found.strays.projects {
                warn!(%project, "quota without a record; it is kept");
            }
        }
    }

    /// Completes or undoes a volume whose PV may not exist.
    async fn settle_staged(&self, id: &VolumeId, record: &Record) -> Result<(), Error> {
        let Some(_guard) = self.locks.try_lock(id) else { return Ok(()) };
        if self.is_waiting(&record.claim).await? {
            return Ok(());
        }
        // After the claim: a claim that was bound in between has its PV now.
        let pv = self.pvs.get_opt(id.as_str()).await.map_err(api("get a PV"))?;
        let settled = if pv.is_some_and(|pv| object::volume_of(&pv, &self.node).as_ref() == Some(id)) {
            self.on_volume(id, |store, id| store.announce(id)).await?
        } else {
            self.on_volume(id, |store, id| store.undo(id)).await?
        };
        if let Err(error) = settled {
            log_unsettled(id, &error);
        }
        Ok(())
    }

    async fn is_waiting(&self, claim: &Claim) -> Result<bool, Error> {
        let claims = Api::<PersistentVolumeClaim>::namespaced(self.client.clone(), &claim.namespace);
        let found = claims.get_opt(&claim.name).await.map_err(api("get a claim"))?;
        let assigned = found.and_then(|found| claim::plan::assigned(&found, &self.node));
        Ok(assigned.is_some_and(|assigned| assigned.claim.uid == claim.uid))
    }

    /// Restores volumes from the trash whose PV is kept, and returns those that the disk does not have. Reads each volume
    /// and PV again, because it may have been created or deleted since the disk was read.
    async fn lost(
        &self,
        listing: &Listing,
        records: &BTreeMap<VolumeId, Record>,
        retired: &BTreeSet<VolumeId>,
        reported: &Findings,
    ) -> Result<BTreeSet<VolumeId>, Error> {
        let mut lost = BTreeSet::new();
        for (id, pvs) in listing.volumes().filter(|(id, _)| !records.contains_key(id) || retired.contains(id)) {
            let Some(_guard) = self.locks.try_lock(id) else { continue };
            let live = self.on_volume(id, |store, id| store.live_volume(id)).await?;
            let Some(reason) = live.err().filter(LiveVolumeError::is_missing) else { continue };
            for listed in pvs.iter().filter(|pv| !pv.is_deleted) {
                let Some(pv) = self.kept_pv(id, &listed.name).await? else { continue };
                // The policy became Retain during the deletion, or an administrator created another PV for the volume. With
                // the volume's turn: no deletion is between trash and PV.
                let restored = self.on_volume(id, |store, id| store.announce(id).and_then(|_| store.restore(id)));
                match restored.await? {
                    Ok(Ensured::Created(())) => {
                        info!(volume = %id, pv = listed.name, "volume restored from the trash, its PV is kept");
                        break;
                    }
                    Ok(Ensured::Unchanged(())) | Err(volume::Error::Unknown { .. }) => {
                        if lost.insert(id.clone()) && !reported.lost.contains(id) {
                            log_lost(id, &listed.name, &reason);
                            self.events.lost(&pv, &reason);
                        }
                    }
                    // Other volumes are checked nevertheless.
                    Err(error) => log_unsettled(id, &error),
                }
            }
        }
        Ok(lost)
    }
}

fn log_unsettled(id: &VolumeId, error: &(dyn std::error::Error + 'static)) {
    warn!(volume = %id, error, "interrupted operation on the volume not completed, will retry");
}

fn log_lost(id: &VolumeId, pv: &str, error: &(dyn std::error::Error + 'static)) {
    error!(volume = %id, pv, error, "PV without a volume on the disk");
}

/// See the module.
fn is_plausible(listing: &Listing, records: &BTreeMap<VolumeId, Record>) -> bool {
    !listing.is_empty || records.values().all(|record| record.state == State::Staged || !record.owner.is_provisioner())
}

/// Announced volumes that are not in the trash and have no PV.
fn orphans(
    records: &BTreeMap<VolumeId, Record>,
    retired: &BTreeSet<VolumeId>,
    listing: &Listing,
) -> BTreeSet<VolumeId> {
    let announced = |record: &Record| record.state == State::Announced && record.owner.is_provisioner();
    let announced = records.iter().filter(|(_, record)| announced(record)).map(|(id, _)| id);
    announced.filter(|id| !retired.contains(*id) && listing.of_volume(id).is_empty()).cloned().collect()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::PersistentVolume;
    use units::Inodes;
    use volume::Mode;

    use super::*;
    use crate::fixture::{self, id};
    use crate::listing;

    const NODE: &str = "granary";

    fn record(state: State) -> Record {
        fixture::record(Mode::Filesystem { inodes: Inodes::new(64) }, state)
    }

    /// Of CSI's Controller service.
    fn external() -> Record {
        Record { owner: Owner::Controller { source: None }, ..record(State::Announced) }
    }

    fn pv(name: &str) -> PersistentVolume {
        listing::tests::pv(name, name, NODE)
    }

    #[test]
    fn orphans_are_announced_live_and_without_a_pv() {
        let records: BTreeMap<_, _> = [
            (id("pvc-staged"), record(State::Staged)),
            (id("pvc-used"), record(State::Announced)),
            (id("pvc-trash"), record(State::Announced)),
            (id("pvc-orphan"), record(State::Announced)),
            (id("pvc-external"), external()),
        ]
        .into();
        let listing = Listing::of(&[pv("pvc-used"), pv("pvc-of-no-record")], NODE);
        let retired = [id("pvc-trash")].into();
        assert_eq!(orphans(&records, &retired, &listing), [id("pvc-orphan")].into());
    }

    #[test]
    fn an_empty_list_of_pvs_is_implausible() {
        let nothing = Listing::of(&[], NODE);
        let had_one = [(id("pvc-used"), record(State::Announced)), (id("pvc-staged"), record(State::Staged))].into();
        assert!(!is_plausible(&nothing, &had_one));
        assert!(is_plausible(&Listing::of(&[pv("pvc-other")], NODE), &had_one));
        assert!(is_plausible(&nothing, &[(id("pvc-external"), external())].into()));
        // The first claim of a new cluster, interrupted.
        assert!(is_plausible(&nothing, &[(id("pvc-staged"), record(State::Staged))].into()));
    }
}
