//! Removes the data of deleted volumes in the background.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use supervisor::Context;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tracing::{Instrument as _, debug, info, info_span, warn};
use volume::VolumeId;

use crate::backoff::{MOST, Retry};
use crate::context::{OCCUPIED, Provisioner, RunError};
use crate::discard::queue::{EndOfPv, Pass};
use crate::error::{ApiError, Error};
use crate::listing::{FRESH, Listing};

/// Number of removals with a place. A pass over a volume is bounded, and a volume that needs another pass waits behind
/// the others.
const REMOVALS: usize = 4;

/// Number of checks with a place. The first pass over a volume is a check, which reads up to a million inodes.
const CHECKS: usize = 3;

/// Largest number of places of the checks of one namespace, so that the others have a place.
const CHECKS_OF_ONE: usize = 2;

/// Time after which a pass gives up its place. A process decides for how long it has the lock of a file: `unlink` waits
/// for the lock without a limit, and no signal ends the call.
const SLOW: Duration = Duration::from_mins(5);

/// Largest number of passes, with those that have given up their places. Each may have a thread.
const LIMIT: usize = 64;

/// Largest number of passes over the volumes of one namespace, whose pods can let them hang.
const SHARE: usize = 16;

/// Time for the watch to show the end of a PV before the pass requests a list.
const UNTIL_WATCHED: Duration = Duration::from_secs(2);

/// Result of a pass that did not fail.
enum Finished {
    /// The next pass removes data.
    Checked,
    /// The data is removed, or kept for a PV.
    Complete,
    /// All PVs of the volume are being deleted. The request that removes the finalizer of the last one may have no
    /// response, and then the PV has no other pass.
    Waiting,
}

/// Kind of the place of a pass. A check takes no place of a removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Check,
    Removal,
}

/// A pass that is due.
#[derive(Debug, PartialEq, Eq)]
struct DuePass {
    id: VolumeId,
    /// Namespace of the volume, empty if unknown.
    namespace: String,
    place: Place,
}

/// Sorts passes that are due: the namespaces check in turn, whatever the number of their volumes. The removals keep
/// their order, and so do the checks of a namespace. `last_checks` has the time at which the last check of each began.
fn sort(due: &mut [DuePass], last_checks: &BTreeMap<String, Instant>) {
    due.sort_by_key(|pass| (pass.place == Place::Check).then(|| last_checks.get(&pass.namespace).copied()));
}

/// The passes that run.
#[derive(Debug, Default)]
struct RunningPasses(BTreeMap<VolumeId, RunningPass>);

#[derive(Debug)]
struct RunningPass {
    start: Instant,
    namespace: String,
    /// `None` for a slow pass.
    place: Option<Place>,
}

impl RunningPasses {
    /// Begins a pass, unless too many run.
    fn begin(&mut self, DuePass { id, namespace, place }: &DuePass) -> bool {
        let is_beside = |pass: &&RunningPass| pass.namespace == *namespace;
        let has_place = match place {
            Place::Check => {
                let checks = || self.with_place(Place::Check);
                checks().count() < CHECKS && checks().filter(is_beside).count() < CHECKS_OF_ONE
            }
            Place::Removal => self.with_place(Place::Removal).count() < REMOVALS,
        };
        let begins = has_place && self.0.values().filter(is_beside).count() < SHARE && self.0.len() < LIMIT;
        if begins {
            let pass = RunningPass { start: Instant::now(), namespace: namespace.clone(), place: Some(*place) };
            self.0.insert(id.clone(), pass);
        }
        begins
    }

    fn with_place(&self, place: Place) -> impl Iterator<Item = &RunningPass> {
        self.0.values().filter(move |pass| pass.place == Some(place))
    }

    /// Takes the places of slow passes, which continue without them.
    fn release_places(&mut self) {
        for (id, pass) in &mut self.0 {
            if pass.place.is_some() && pass.start.elapsed() >= SLOW {
                pass.place = None;
                warn!(
                    volume = %id, namespace = %pass.namespace,
                    "removal of a deleted volume is slow, others continue; if the disk is not busy, end the process that uses its files"
                );
            }
        }
    }

    /// Time at which the next pass gives up its place.
    fn next_release(&self) -> Option<Instant> {
        self.0.values().filter(|pass| pass.place.is_some()).map(|pass| pass.start + SLOW).min()
    }
}

/// Removes data until it is cancelled.
pub(crate) async fn run(cx: Context, provisioner: Arc<Provisioner>) -> Result<(), RunError> {
    let mut running = JoinSet::new();
    let (mut active, mut last_checks) = (RunningPasses::default(), BTreeMap::new());
    cx.healthy();
    while !cx.is_cancelled() {
        active.release_places();
        let mut wake = Instant::now() + MOST;
        let mut due = Vec::new();
        for (id, pause) in provisioner.discards.in_order() {
            if active.0.contains_key(&id) {
                continue;
            }
            match provisioner.attempts.wait(&backoff_key(&id)).max(pause) {
                Some(left) => wake = wake.min(Instant::now() + left),
                None => {
                    let place = if provisioner.discards.is_checked(&id) { Place::Removal } else { Place::Check };
                    due.push(DuePass { namespace: provisioner.namespace_of(&id), id, place });
                }
            }
        }
        if due.iter().all(|pass| pass.place == Place::Removal) {
            last_checks.clear();
        }
        sort(&mut due, &last_checks);
        for pass in due {
            // Otherwise, the volume waits until a running pass ends, or gives up its place.
            if active.begin(&pass) {
                let DuePass { id, namespace, place } = pass;
                if place == Place::Check {
                    last_checks.insert(namespace, Instant::now());
                }
                let (cx, provisioner) = (cx.clone(), Arc::clone(&provisioner));
                running.spawn(async move {
                    let result = provisioner.discard(&cx, &id).await;
                    (id, result)
                });
            }
        }
        wake = active.next_release().map_or(wake, |release| release.min(wake));
        tokio::select! {
            () = cx.cancelled() => {}
            () = sleep_until(wake) => {}
            () = provisioner.discards.added.notified() => {}
            Some(ended) = running.join_next() => {
                let (id, result) = ended?;
                active.0.remove(&id);
                provisioner.discarded(&id, result);
            }
        }
    }
    Ok(())
}

pub(crate) fn backoff_key(id: &VolumeId) -> String {
    format!("trash {id}")
}

impl Provisioner {
    /// One pass over a volume in the trash. Its rounds are the parts with requests: work on the disk may take hours.
    async fn discard(&self, cx: &Context, id: &VolumeId) -> Result<Finished, Error> {
        let _guard = loop {
            match self.locks.try_lock(id) {
                Some(guard) => break guard,
                None => sleep(OCCUPIED).await,
            }
        };
        let Some(Pass { end, is_first, is_retry }) = self.discards.begin(id) else { return Ok(Finished::Complete) };
        // The check comes before the list of PVs: it may take minutes, in which an administrator can create another PV.
        if is_first {
            self.check_projects(id).await?;
            return Ok(Finished::Checked);
        }
        // The PV may stay for long, for example while a policy denies the removal of its finalizer. A retry sends no
        // request while the watch shows the PV.
        if is_retry && self.index.is_ending(id) {
            return Ok(Finished::Waiting);
        }
        // An administrator may have created another PV since the deletion.
        if let Some(listing) = cx.round(self.listing_with(id, end), Result::is_ok).await? {
            return cx.round(self.keep_listed(id, &listing), Error::is_progress).await;
        }
        match self.on_volume(id, |store, id| store.discard(id)).await? {
            Ok(_) => info!(volume = %id, "deleted volume removed"),
            // Another pass restored the volume for a PV that is newer than the list, or that has ended since. Or a
            // client of CSI created a volume of this name after an earlier removal.
            Err(volume::Error::Refused { source: volume::VolumeRefusal::NotRetired, .. }) => {
                info!(volume = %id, "volume kept: it was restored or created again after its deletion");
            }
            Err(error) => return Err(Error::Store(error)),
        }
        Ok(Finished::Complete)
    }

    /// Returns a list in which a PV has the volume, or `None` if no PV has it. The list includes all nodes, except for
    /// PVs that other nodes provision.
    async fn listing_with(&self, id: &VolumeId, end: EndOfPv) -> Result<Option<Arc<Listing>>, ApiError> {
        let now = Instant::now();
        let not_before = |moment| now.checked_sub(FRESH).map_or(moment, |fresh| fresh.max(moment));
        let (watched, listed) = (not_before(end.before), not_before(end.after));
        let listing = match self.listings.cached(listed) {
            Some(listing) => listing,
            None => {
                let patience = (end.after + UNTIL_WATCHED).saturating_duration_since(now);
                if timeout(patience, self.index.has_none(id, watched)).await.is_ok() {
                    return Ok(None);
                }
                self.listings.since(listed, Listing::read(&self.pvs, &self.node)).await?
            }
        };
        Ok(Some(listing).filter(|listing| listing.has(id)))
    }

    /// Restores the volume if a PV of this node keeps it, as the next sweep would.
    async fn keep_listed(&self, id: &VolumeId, listing: &Listing) -> Result<Finished, Error> {
        let elsewhere = listing.elsewhere(id);
        if let Some(pv) = elsewhere {
            warn!(volume = %id, pv, "deleted volume not removed: a PV that other nodes can use refers to it");
        }
        for listed in listing.of_volume(id).iter().filter(|pv| !pv.is_deleted) {
            if self.kept_pv(id, &listed.name).await?.is_some() {
                self.keep(id).instrument(info_span!("volume", volume = %id)).await?;
                return Ok(Finished::Complete);
            }
        }
        Ok(if elsewhere.is_some() { Finished::Complete } else { Finished::Waiting })
    }

    fn discarded(&self, id: &VolumeId, result: Result<Finished, Error>) {
        match result {
            Ok(finished) => {
                self.attempts.succeeded(&backoff_key(id));
                match finished {
                    Finished::Checked => {}
                    Finished::Complete => self.discards.remove(id),
                    Finished::Waiting => {
                        debug!(volume = %id, "deleted volume waits for the end of its PVs");
                        self.discards.wait(id);
                    }
                }
            }
            // The next pass needs no pause, but waits behind the others.
            Err(Error::Store(error)) if self.discards.continues(id, &error) => {
                self.discards.requeue(id);
                if error.is_shrinking() {
                    self.attempts.succeeded(&backoff_key(id));
                    info!(volume = %id, error = causes::of(&error), "deleted volume partly removed");
                }
            }
            Err(error) => {
                self.discards.requeue(id);
                let Retry { attempt, .. } = self.removal_failed(&backoff_key(id), &error);
                warn!(volume = %id, error = causes::of(&error), attempt, "deleted volume not removed, will retry");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use envtest::FakeVolumes;
    use kube::runtime::watcher::Event;
    use supervisor::{Settings, Supervisor};
    use tokio::task::yield_now;
    use tokio::time::advance;
    use volume::{Allocation, Claim, Mode, Record, State};

    use super::*;
    use crate::fixture::{self, id};

    /// Adds a volume to the queue.
    fn delete(provisioner: &Provisioner, disk: &FakeVolumes, volume: &VolumeId, namespace: &str) {
        let record = fixture::record(Mode::Block { allocation: Allocation::Thick }, State::Announced);
        disk.put(volume, Record { claim: Claim { namespace: namespace.into(), ..record.claim.clone() }, ..record });
        disk.retire(volume);
        let now = Instant::now();
        provisioner.discards.add(volume.clone(), EndOfPv { before: now, after: now });
    }

    fn pass(number: usize, namespace: &str, place: Place) -> DuePass {
        DuePass { id: id(&format!("pvc-{number}")), namespace: namespace.to_owned(), place }
    }

    /// Regression: the service had no rounds, so it was never shown as stalled.
    #[tokio::test(start_paused = true)]
    async fn a_list_without_a_response_is_a_stall() {
        let own = id("pvc-1");
        let (provisioner, _disk) = fixture::unanswered(&[&own]);
        let now = Instant::now();
        provisioner.discards.add(own, EndOfPv { before: now, after: now });
        fixture::stalls(move |cx| run(cx, Arc::clone(&provisioner))).await;
    }

    /// Regression: four removals that waited for locks of files delayed all others, for as long as a process had them.
    #[tokio::test(start_paused = true)]
    async fn removals_that_hang_give_up_their_places_and_end_later() {
        let (client, _lists) = fixture::empty();
        let (provisioner, disk) = fixture::with_client(client);
        let volumes: Vec<_> = (0..=REMOVALS).map(|number| id(&format!("pvc-{number}"))).collect();
        for (number, volume) in volumes.iter().enumerate() {
            delete(&provisioner, &disk, volume, "shop");
            disk.set_hanging(volume, number < REMOVALS);
        }
        let settings = Settings::default();
        let deadline = settings.stop_deadline;
        let tree = Supervisor::start("discard", settings, move |cx| run(cx, Arc::clone(&provisioner)));
        // Threads run in real time, and the clock stands still meanwhile.
        let end = std::time::Instant::now() + Duration::from_secs(60);
        while disk.retired() != volumes[..REMOVALS] {
            assert!(std::time::Instant::now() < end, "{:?}", disk.retired());
            advance(SLOW).await;
        }
        for volume in &volumes {
            disk.set_hanging(volume, false);
        }
        while !disk.retired().is_empty() {
            assert!(std::time::Instant::now() < end, "{:?}", disk.retired());
            yield_now().await;
        }
        tree.stop(deadline).await.expect("it ends");
    }

    /// Regression: checks of volumes with many inodes had the places of removals for minutes.
    #[tokio::test(start_paused = true)]
    async fn long_checks_delay_neither_removals_nor_checks_of_others() {
        let (client, _lists) = fixture::empty();
        let (provisioner, disk) = fixture::with_client(client);
        let long: Vec<_> = (0..2 * CHECKS).map(|number| id(&format!("pvc-{number}"))).collect();
        for (number, volume) in long.iter().enumerate() {
            delete(&provisioner, &disk, volume, if number < CHECKS { "shop" } else { "mill" });
            disk.set_checking(volume, true);
        }
        let [checked, late] = ["pvc-checked", "pvc-late"].map(id);
        delete(&provisioner, &disk, &checked, "bank");
        provisioner.discards.begin(&checked).expect("a pass");
        // The index has no PV, so that no pass waits for the clock, which stands still.
        for event in [Event::Init, Event::InitDone] {
            provisioner.index.update(&Ok(event));
        }
        let settings = Settings::default();
        let deadline = settings.stop_deadline;
        let shared = Arc::clone(&provisioner);
        let tree = Supervisor::start("discard", settings, move |cx| run(cx, Arc::clone(&shared)));
        let end = std::time::Instant::now() + Duration::from_secs(60);
        let wait_for = async |left: &[VolumeId]| {
            while disk.retired() != left {
                assert!(std::time::Instant::now() < end, "{:?}", disk.retired());
                yield_now().await;
            }
        };
        wait_for(&long).await;
        delete(&provisioner, &disk, &late, "bank");
        // One of the three places is free.
        disk.set_checking(&long[CHECKS], false);
        wait_for(&[&long[..CHECKS], &long[CHECKS + 1..]].concat()).await;
        for volume in &long {
            disk.set_checking(volume, false);
        }
        wait_for(&[]).await;
        tree.stop(deadline).await.expect("it ends");
    }

    #[tokio::test(start_paused = true)]
    async fn namespaces_check_in_turn() {
        let all = || {
            [
                pass(1, "shop", Place::Check),
                pass(2, "shop", Place::Check),
                pass(3, "mill", Place::Check),
                pass(4, "shop", Place::Removal),
                pass(5, "bank", Place::Check),
            ]
        };
        let now = Instant::now();
        let last_checks = BTreeMap::from([("shop".to_owned(), now + SLOW), ("mill".to_owned(), now)]);
        let mut due = all();
        sort(&mut due, &last_checks);
        let [shop, next, mill, removal, bank] = all();
        assert_eq!(due, [removal, bank, mill, shop, next]);
    }

    #[tokio::test(start_paused = true)]
    async fn one_namespace_has_only_a_share_of_the_passes() {
        let mut passes = RunningPasses::default();
        for number in 0..LIMIT {
            let namespace = format!("team-{}", number / SHARE);
            assert!(passes.begin(&pass(number, &namespace, Place::Removal)), "{number}");
            advance(SLOW).await;
            assert_eq!(passes.next_release(), Some(Instant::now()));
            passes.release_places();
            assert_eq!(passes.next_release(), None);
            let is_full = (number + 1).is_multiple_of(SHARE);
            let next = pass(LIMIT, &namespace, Place::Check);
            assert_eq!(passes.begin(&next), !is_full, "{number}");
            passes.0.remove(&next.id);
        }
        let last = pass(LIMIT, "other", Place::Removal);
        assert!(!passes.begin(&last), "too many threads");
        passes.0.clear();
        assert!((0..CHECKS_OF_ONE).all(|number| passes.begin(&pass(number, "other", Place::Check))));
        assert!(!passes.begin(&pass(CHECKS_OF_ONE, "other", Place::Check)), "no place for this namespace");
        assert!((CHECKS_OF_ONE..CHECKS).all(|number| passes.begin(&pass(number, "last", Place::Check))));
        assert!(!passes.begin(&pass(CHECKS, "last", Place::Check)), "no place for a check");
        assert!((0..REMOVALS).all(|number| passes.begin(&pass(CHECKS + number, "other", Place::Removal))));
        assert!(!passes.begin(&last), "no place for a removal");
    }
}
