//! Compares disk and cluster in both directions, at start and every 5 to 10 minutes. A volume that another pass
//! has at this moment is compared 5 to 10 seconds later, without another list. A volume that cannot be compared has a
//! back-off. A volume whose claim ends before it is bound is compared at once.
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
//! Snapshots are compared with their contents: `snapshot/sweep.rs`. Snapshots of rollbacks are compared with the
//! annotations of claims: without the request, a copy is removed, and a former content becomes an ordinary snapshot.
//! Volumes of another [`Owner`](volume::Owner) are ignored: claims and PVs do not decide about them.
//!
//! If the API server returns no PV at all although the disk has volumes that had one, it may have lost its data, or may
//! be that of another cluster. Then the sweep undoes and removes nothing. The end of a claim is an event of this API
//! server: the volume of such a claim is undone, and so is one that an earlier comparison left out.

pub(crate) mod round;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use supervisor::Context;
use tokio::time::{Instant, sleep_until};
use tracing::{error, warn};
use volume::{Owner, Record, Records, State, VolumeId};

use crate::backoff::{self, delay, random};
use crate::context::{Provisioner, RunError};
use crate::discard::queue::EndOfPv;
use crate::error::Error;
use crate::events::source_mode;
use crate::listing::Listing;
use crate::metrics::Orphan;
use crate::sweep::round::{Failed, Findings, Round, is_staged};

/// Pause between two sweeps, less a random part of up to a half: nodes that started together list all PVs at different
/// times.
const INTERVAL: Duration = Duration::from_mins(10);

/// Pause before the next look at volumes that other passes had, less a random part of up to a half. While other passes
/// have the volumes, a look sends no request.
const LOOK_AGAIN: Duration = Duration::from_secs(10);

/// Sweeps until it is cancelled. Healthy after the first sweep.
pub(crate) async fn run(cx: Context, provisioner: Arc<Provisioner>) -> Result<(), RunError> {
    // A pass may end anywhere. A disk call runs on in its thread; one that removes data keeps its locks.
    tokio::select! {
        () = cx.cancelled() => {}
        () = compare(&cx, &provisioner) => {}
    }
    Ok(())
}

/// Compares until the future is dropped.
async fn compare(cx: &Context, provisioner: &Provisioner) {
    let mut reported = Findings::default();
    let mut failures = 0;
    loop {
        let has_progress = |swept: &Result<Round, Error>| swept.as_ref().is_ok_and(Round::has_progress);
        match cx.round(provisioner.sweep(&reported), has_progress).await {
            Ok(round) => {
                failures = if round.is_incomplete() { failures + 1 } else { 0 };
                reported = round.logged();
                cx.healthy();
            }
            Err(error) => {
                failures += 1;
                let error: &dyn std::error::Error = &error;
                warn!(error, attempt = failures, "comparison of disk and cluster failed, will retry");
            }
        }
        let wait = if failures == 0 { backoff::jittered(INTERVAL, random()) } else { delay(failures, random()) };
        let next = Instant::now() + wait;
        loop {
            let look = Instant::now() + backoff::jittered(LOOK_AGAIN, random());
            let wake = if reported.left_out.is_empty() { next } else { next.min(look) };
            tokio::select! {
                () = sleep_until(wake) => {}
                () = provisioner.ended.added.notified() => {}
            }
            if Instant::now() >= next {
                break;
            }
            reported = cx.round(provisioner.look_again(reported), Round::has_progress).await.logged();
        }
    }
}

impl Provisioner {
    /// Compares disk and cluster once. The disk is read first, so that each volume in its list has its PV or its claim
    /// when the API server is read.
    async fn sweep(&self, reported: &Findings) -> Result<Round, Error> {
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
        let listing = self.listings.since(since, Listing::read(&self.pvs, &self.node)).await?;
        let found = Findings {
            orphans: orphans(&readable, &retired, &listing),
            unreadable: unreadable.keys().cloned().collect(),
            strays,
            ..Findings::default()
        };
        let mut round = Round { found, failed: Failed::new() };
        if is_plausible(&listing, &readable) {
            for (id, _) in readable.iter().filter(|(_, record)| is_staged(record)) {
                round.compare_staged(self, id).await;
            }
            for id in retired.iter().filter(|id| !listing.has(id)) {
                self.discards.add(id.clone(), EndOfPv { before: since, after: since });
            }
        } else {
            round.found.left_out.staged.clone_from(&reported.left_out.staged);
            warn!("the API server has no PVs, but the disk has volumes of PVs: no volume is removed");
        }
        self.sweep_rollbacks(&rollbacks, &mut round.failed).await;
        round.found.snapshots =
            self.sweep_snapshots(&snapshots, &retired_snapshots, &reported.snapshots, &mut round.failed).await;
        for (id, pvs) in listing.volumes().filter(|(id, _)| !readable.contains_key(id) || retired.contains(id)) {
            round.compare_missing(self, id, pvs, reported.lost.contains(id)).await;
        }
        self.count(&round.found);
        self.report(&round.found, reported, &readable, &snapshots);
        for (id, reason) in unreadable.iter().filter(|(id, _)| !reported.unreadable.contains(id)) {
            error!(volume = %id, error = causes::of(reason), "volume has an unreadable record; it is kept, and no pod can use it");
        }
        Ok(round)
    }

    fn count(&self, found: &Findings) {
        let Findings { orphans, snapshots, unreadable, lost, strays, left_out: _ } = found;
        self.metrics.orphans(Orphan::Volume, orphans.len());
        self.metrics.orphans(Orphan::Snapshot, snapshots.len());
        self.metrics.orphans(Orphan::Record, unreadable.len());
        self.metrics.orphans(Orphan::Pv, lost.len());
        self.metrics.orphans(Orphan::Directory, strays.directories.len());
        self.metrics.orphans(Orphan::Project, strays.projects.len());
        self.attempts.forget();
        self.locked.forget();
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

    /// Looks again at the volumes that the last comparison left out, and at those whose claims have ended.
    async fn look_again(&self, found: Findings) -> Round {
        let mut round = Round { found, failed: Failed::new() };
        round.found.left_out.staged.extend(self.ended.take());
        for id in round.found.left_out.staged.clone() {
            round.compare_staged(self, &id).await;
        }
        for (id, pvs) in round.found.left_out.missing.clone() {
            let was_lost = round.found.lost.contains(&id);
            round.compare_missing(self, &id, &pvs, was_lost).await;
            self.metrics.orphans(Orphan::Pv, round.found.lost.len());
        }
        round
    }
}

/// Whether the list of PVs is plausible: see the documentation of the module.
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
