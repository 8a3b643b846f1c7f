//! State that all parts of the provisioner share.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::runtime::controller::Action;
use kube::runtime::reflector::{self, ObjectRef};
use kube::{Api, Client, ResourceExt as _};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::task::{JoinError, spawn_blocking};
use tokio::time::Instant;
use tracing::Span;
use units::Bytes;
use volume::{Copying, Drifted, Record, SourcePauses, VolumeGuard, VolumeId, VolumeLocks, Volumes};

use crate::Metrics;
use crate::backoff::{Attempts, Retry};
use crate::claim::created::CreatedPvs;
use crate::claim::ended::EndedClaims;
use crate::claim::plan;
use crate::classes::Classes;
use crate::discard::queue::DiscardQueue;
use crate::error::Error;
use crate::events::Events;
use crate::group::object::GroupVersion;
use crate::index::PvIndex;
use crate::listing::{Listing, Listings};
use crate::pv::object;
use crate::snapshot::listing::ContentListing;
use crate::snapshot::object::Content;

/// Retry interval while another pass has the volume.
pub(crate) const OCCUPIED: Duration = Duration::from_secs(1);

/// Longest pause of a removal while a client of CSI has the source. A clone of many files has it for up to 10 minutes;
/// between two clones, the removal must find it free.
const LOCKED: Duration = Duration::from_secs(10);

/// Pause between two passes over a clone or a snapshot, in which other claims get their turn.
pub(crate) const NEXT_PASS: Duration = Duration::from_millis(10);

/// Maximum number of passes that clone content at once, for clones of all kinds. The duration of such a pass grows with
/// the number of files of the source. The limits of the passes that may take long leave the other passes
/// ([`Settings::PARALLEL`](crate::Settings::PARALLEL) of each controller) to other tenants.
const CLONES: usize = 2;

/// Maximum number of further passes over clones of claims, and over rollbacks, at once, for the same reason: each pass
/// looks at all files.
const COPIES: usize = 3;

/// Maximum number of these passes over the copies of one namespace, so that the others have a place.
const COPIES_OF_ONE: usize = 2;

/// Pause after a pass that leaves its place to another copy, which tries again each [`OCCUPIED`].
const LEFT: Duration = Duration::from_secs(2);

/// Maximum number of passes that remove snapshots or copies of unfinished rollbacks at once, for the same reason. The
/// snapshots of a group are removed one after the other.
const REMOVALS: usize = 4;

/// Result of a pass that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The next pass starts when the object changes.
    Complete,
    /// The next pass continues a copy after this pause.
    Copying(Duration),
    /// Other passes have the volume or its source.
    Occupied,
}

impl Outcome {
    /// Pause until the next pass if the object does not change before.
    pub(crate) const fn next(self) -> Option<Duration> {
        match self {
            Self::Complete => None,
            Self::Copying(pause) => Some(pause),
            Self::Occupied => Some(OCCUPIED),
        }
    }

    pub(crate) fn action(self) -> Action {
        self.next().map_or_else(Action::await_change, Action::requeue)
    }
}

/// Permission for the disk call of a pass. A pass that clones content also has the locks of its sources. The pass drops
/// it before its next request: the API server may not answer, and other passes need places and sources.
#[must_use = "other passes have the sources when this is dropped"]
pub(crate) struct CloneTurn<'a> {
    _clone: Option<SemaphorePermit<'a>>,
    _copy: Option<CopyPlace<'a>>,
    _sources: Vec<VolumeGuard>,
}

/// Places of the passes that may take long.
#[derive(Debug)]
pub(crate) struct Places {
    clones: Semaphore,
    copies: CopyPlaces,
    removals: Semaphore,
}

impl Default for Places {
    fn default() -> Self {
        Self { clones: Semaphore::new(CLONES), copies: CopyPlaces::default(), removals: Semaphore::new(REMOVALS) }
    }
}

/// Places of the passes that continue copies.
#[derive(Debug, Default)]
struct CopyPlaces(Mutex<CopyTable>);

#[derive(Debug, Default)]
struct CopyTable {
    /// The namespace of each pass that has a place.
    taken: Vec<String>,
    /// Namespaces with a copy that found no place since a pass last left its own for it.
    waiting: BTreeSet<String>,
}

/// Place of a pass that continues a copy, until it is dropped.
struct CopyPlace<'a> {
    places: &'a CopyPlaces,
    namespace: String,
}

impl CopyPlaces {
    fn try_take(&self, namespace: &str) -> Option<CopyPlace<'_>> {
        let mut table = self.table();
        if table.taken.len() >= COPIES || table.has_its_share(namespace) {
            table.waiting.insert(namespace.to_owned());
            return None;
        }
        table.taken.push(namespace.to_owned());
        Some(CopyPlace { places: self, namespace: namespace.to_owned() })
    }

    /// Whether a copy waits that can use the place of a pass over a copy of this namespace, which has ended. The next
    /// call is about another copy.
    fn is_left_by(&self, namespace: &str) -> bool {
        let mut table = self.table();
        let next = table.waiting.iter().find(|other| *other == namespace || !table.has_its_share(other)).cloned();
        next.is_some_and(|next| table.waiting.remove(&next))
    }

    fn table(&self) -> MutexGuard<'_, CopyTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CopyTable {
    fn has_its_share(&self, namespace: &str) -> bool {
        self.taken.iter().filter(|taken| *taken == namespace).count() >= COPIES_OF_ONE
    }
}

impl Drop for CopyPlace<'_> {
    fn drop(&mut self) {
        let mut table = self.places.table();
        if let Some(place) = table.taken.iter().position(|taken| *taken == self.namespace) {
            table.taken.swap_remove(place);
        }
    }
}

/// Copies that a claim waits for, as of the last pass of this process over each.
#[derive(Debug, Default)]
pub(crate) struct Copies(Mutex<HashMap<VolumeId, CopyState>>);

#[derive(Debug)]
struct CopyState {
    pauses: SourcePauses,
    last: Instant,
}

impl Copies {
    /// Time without a pass after which a copy is forgotten. The copy has ended, its passes fail, or its object is gone,
    /// which no event announces. If such a copy continues, its pauses start from the beginning. The time is long enough
    /// for hundreds of copies that share the passes of a controller.
    const FORGOTTEN: Duration = Duration::from_hours(1);

    /// Records a pass that did not fail, and returns its outcome.
    pub(crate) fn outcome(&self, id: &VolumeId, copying: Option<Copying>) -> Outcome {
        let now = Instant::now();
        let mut copies = self.table();
        copies.retain(|_, copy| now.saturating_duration_since(copy.last) < Self::FORGOTTEN);
        let Some(copying) = copying else {
            copies.remove(id);
            return Outcome::Complete;
        };
        let first = || CopyState { pauses: SourcePauses::default(), last: now };
        let copy = copies.entry(id.clone()).or_insert_with(first);
        copy.last = now;
        Outcome::Copying(match copying {
            Copying::InPart => NEXT_PASS,
            Copying::Waits => copy.pauses.pause(),
        })
    }

    fn table(&self) -> MutexGuard<'_, HashMap<VolumeId, CopyState>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sources of new clones that had no turn, as the last pass over each claim found them.
#[derive(Debug, Default)]
pub(crate) struct WaitingClones(Mutex<HashMap<VolumeId, (VolumeId, Instant)>>);

impl WaitingClones {
    /// Time without a pass after which a clone is forgotten. Its claim is gone.
    const FORGOTTEN: Duration = Duration::from_mins(1);

    fn add(&self, clone: &VolumeId, source: &VolumeId) {
        let now = Instant::now();
        let mut clones = self.table();
        clones.retain(|_, (_, last)| now.saturating_duration_since(*last) < Self::FORGOTTEN);
        clones.insert(clone.clone(), (source.clone(), now));
    }

    fn source(&self, clone: &VolumeId) -> Option<VolumeId> {
        let mut clones = self.table();
        let (source, last) = clones.get_mut(clone)?;
        *last = Instant::now();
        Some(source.clone())
    }

    fn table(&self) -> MutexGuard<'_, HashMap<VolumeId, (VolumeId, Instant)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Error after which the provisioner has to be started again.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error("a service of the provisioner ended")]
    Part(#[from] supervisor::Ended),
    #[error("the watch of {0} ended")]
    WatchEnded(&'static str),
    #[error("a task of the provisioner panicked")]
    Panicked(#[from] JoinError),
}

pub(crate) struct Provisioner {
    pub(crate) node: String,
    pub(crate) client: Client,
    pub(crate) store: Arc<dyn Volumes>,
    pub(crate) pvs: Api<PersistentVolume>,
    pub(crate) contents: Api<Content>,
    /// API version of group snapshots that the cluster serves.
    pub(crate) group_version: Mutex<GroupVersion>,
    pub(crate) classes: Classes,
    pub(crate) created: CreatedPvs,
    pub(crate) ended: EndedClaims,
    pub(crate) events: Events,
    pub(crate) attempts: Attempts,
    /// Removals of snapshots that found their sources locked in the store, which are not failures.
    pub(crate) locked: Attempts,
    /// One pass at a time per volume.
    pub(crate) locks: VolumeLocks,
    pub(crate) places: Places,
    pub(crate) copies: Copies,
    waiting_clones: WaitingClones,
    pub(crate) discards: DiscardQueue,
    /// Volumes with inodes outside of their projects, as last reported.
    pub(crate) drifted: Mutex<BTreeMap<VolumeId, Drifted>>,
    pub(crate) index: PvIndex,
    pub(crate) listings: Listings<Listing>,
    pub(crate) content_listings: Listings<ContentListing>,
    pub(crate) metrics: Metrics,
    /// The watch's copy of the PVs of this node.
    pub(crate) watched_pvs: Mutex<Option<reflector::Store<PersistentVolume>>>,
    /// The watch's copy of the claims that are relevant to this node.
    pub(crate) watched_claims: Mutex<Option<reflector::Store<PersistentVolumeClaim>>>,
}

impl Provisioner {
    pub(crate) fn new(client: Client, node: String, store: Arc<dyn Volumes>, metrics: Metrics) -> Self {
        Self {
            events: Events::new(client.clone(), &node, metrics.clone()),
            pvs: Api::all(client.clone()),
            contents: Api::all(client.clone()),
            group_version: Mutex::default(),
            classes: Classes::default(),
            created: CreatedPvs::default(),
            ended: EndedClaims::default(),
            attempts: Attempts::new(metrics.clone()),
            locked: Attempts::default(),
            locks: VolumeLocks::default(),
            places: Places::default(),
            copies: Copies::default(),
            waiting_clones: WaitingClones::default(),
            discards: DiscardQueue::default(),
            drifted: Mutex::default(),
            index: PvIndex::new(node.clone()),
            listings: Listings::default(),
            content_listings: Listings::default(),
            watched_pvs: Mutex::default(),
            watched_claims: Mutex::default(),
            store,
            node,
            client,
            metrics,
        }
    }

    /// The latest copy of the PV from the watch.
    pub(crate) fn watched_pv(&self, pv: &ObjectRef<PersistentVolume>) -> Option<Arc<PersistentVolume>> {
        self.watched_pvs.lock().unwrap_or_else(PoisonError::into_inner).as_ref()?.get(pv)
    }

    /// The latest copy of the volume's PV from the watch.
    pub(crate) fn watched_pv_of(&self, id: &VolumeId) -> Option<Arc<PersistentVolume>> {
        let watched = self.watched_pvs.lock().unwrap_or_else(PoisonError::into_inner);
        watched.as_ref()?.find(|pv| object::volume_of(pv, &self.node).as_ref() == Some(id))
    }

    /// The latest copy of the claim from the watch.
    pub(crate) fn watched_claim(&self, claim: &ObjectRef<PersistentVolumeClaim>) -> Option<Arc<PersistentVolumeClaim>> {
        self.watched_claims.lock().unwrap_or_else(PoisonError::into_inner).as_ref()?.get(claim)
    }

    /// Whether the claim names this node, or is bound to a PV of it. PVs are not enough: their watch may be behind, and
    /// a PV that arrives starts no pass of its claim.
    pub(crate) fn is_relevant(&self, claim: &PersistentVolumeClaim) -> bool {
        plan::names_node(claim, &self.node)
            || plan::volume_name(claim).is_some_and(|name| self.watched_pv(&ObjectRef::new(name)).is_some())
    }

    /// Requests the turn of a pass over a new clone, snapshot or rollback. The pass clones the content; meanwhile, all
    /// other operations on the sources wait in the store.
    ///
    /// Returns `None` if other passes have a source or all places. The pass then ends with [`Outcome::Occupied`],
    /// because a pass that waited would take the place of passes over other volumes.
    pub(crate) fn clone_turn<'a>(&self, sources: impl IntoIterator<Item = &'a VolumeId>) -> Option<CloneTurn<'_>> {
        let sources = self.try_lock_all(sources)?;
        let place = self.places.clones.try_acquire().ok()?;
        Some(CloneTurn { _clone: Some(place), _copy: None, _sources: sources })
    }

    /// As [`Provisioner::clone_turn`], for the later passes over a clone or a rollback. They look at all files, copy
    /// blocks for about a second, and change the source at the end. A pass without a source needs no place.
    pub(crate) fn copy_turn(&self, copy: &VolumeId, source: Option<&VolumeId>) -> Option<CloneTurn<'_>> {
        let is_free = |source: &VolumeId| self.locks.try_lock(source).is_some();
        let place = match source {
            Some(source) if is_free(source) => Some(self.places.copies.try_take(&self.namespace_of(copy))?),
            Some(_) => return None,
            None => None,
        };
        Some(CloneTurn { _clone: None, _copy: place, _sources: Vec::new() })
    }

    /// Namespace of a volume, empty if its record is unreadable.
    pub(crate) fn namespace_of(&self, id: &VolumeId) -> String {
        let record = self.store.record(id).ok().flatten();
        record.map(|record| record.claim.namespace).unwrap_or_default()
    }

    /// Whether the clone of a claim has not begun and would have no turn, according to the source that an earlier pass
    /// found. Sends no request. A claim needs no space before its clone begins, so that a tenant can have thousands.
    pub(crate) fn clone_waits(&self, id: &VolumeId) -> bool {
        let is_taken = || {
            self.places.clones.available_permits() == 0
                || self.waiting_clones.source(id).is_some_and(|source| self.locks.try_lock(&source).is_none())
        };
        matches!(self.store.record(id), Ok(None)) && is_taken()
    }

    /// Records that the new clone of a claim had no turn.
    pub(crate) fn turn_missed(&self, id: &VolumeId, source: &VolumeId) {
        self.waiting_clones.add(id, source);
    }

    /// Records a pass over the clone of a claim, or over a rollback, that did not fail. If another copy waits for the
    /// place, the next pass begins after its next try.
    pub(crate) fn copied(&self, id: &VolumeId, copying: Option<Copying>) -> Outcome {
        match self.copies.outcome(id, copying) {
            Outcome::Copying(pause) if self.places.copies.is_left_by(&self.namespace_of(id)) => {
                Outcome::Copying(pause.max(LEFT))
            }
            outcome => outcome,
        }
    }

    pub(crate) fn try_lock_all<'a>(&self, ids: impl IntoIterator<Item = &'a VolumeId>) -> Option<Vec<VolumeGuard>> {
        ids.into_iter().map(|id| self.locks.try_lock(id)).collect()
    }

    /// Requests a place for the removal of snapshots, or of the copy of an unfinished rollback. Without a place, the
    /// pass ends with [`Outcome::Occupied`]. The pass sends no request while it has the place.
    ///
    /// Returns `None` also while another pass has a source whose blocks a snapshot shares: the store would reject the
    /// end of the removal. The pass does not keep the lock of the source, so that a long removal delays no clone.
    ///
    /// Clients of CSI do not have the locks of the provisioner. If the store has rejected the removal, a back-off has
    /// to end before the next place.
    pub(crate) fn removal_place<'a>(&self, ids: impl IntoIterator<Item = &'a VolumeId>) -> Option<SemaphorePermit<'_>> {
        let is_free = |id: &VolumeId| match self.store.record(id) {
            _ if self.locked.wait(id.as_str()).is_some() => false,
            Ok(Some(Record { cloning: Some(cloning), .. })) => self.locks.try_lock(&cloning.source).is_some(),
            Ok(_) | Err(_) => true,
        };
        if ids.into_iter().all(is_free) { self.places.removals.try_acquire().ok() } else { None }
    }

    /// Records that another operation has the source of a snapshot in the store, and schedules the next removal.
    pub(crate) fn removal_locked(&self, id: &VolumeId) -> Retry {
        self.locked.failed_for(id.as_str(), LOCKED)
    }

    pub(crate) fn removal_ended(&self, id: &VolumeId) {
        self.locked.succeeded(id.as_str());
    }

    /// Whether the snapshot exists, and no earlier pass of this process has begun to remove it.
    pub(crate) fn is_new_removal(&self, id: &VolumeId) -> bool {
        !self.locked.is_failing(id.as_str()) && !matches!(self.store.record(id), Ok(None))
    }

    /// Claims in the namespace of this claim.
    pub(crate) fn claims_beside(&self, claim: &PersistentVolumeClaim) -> Api<PersistentVolumeClaim> {
        Api::namespaced(self.client.clone(), &claim.namespace().unwrap_or_default())
    }

    /// Runs blocking disk operations in a thread. The operations run to their end even if the future is dropped.
    pub(crate) async fn on_disk<T: Send + 'static>(
        &self,
        work: impl FnOnce(&dyn Volumes) -> T + Send + 'static,
    ) -> Result<T, JoinError> {
        let store = Arc::clone(&self.store);
        let span = Span::current();
        spawn_blocking(move || span.in_scope(|| work(&*store))).await
    }

    pub(crate) async fn on_volume<T: Send + 'static>(
        &self,
        id: &VolumeId,
        work: impl FnOnce(&dyn Volumes, &VolumeId) -> T + Send + 'static,
    ) -> Result<T, JoinError> {
        let id = id.clone();
        self.on_disk(move |store| work(store, &id)).await
    }

    pub(crate) async fn free(&self) -> Option<Bytes> {
        self.on_disk(|store| store.space().ok().map(|space| space.free())).await.ok().flatten()
    }
}

/// Takes a place or a turn after a request that has to precede the disk call. `None` if other passes have it, before or
/// after the request.
///
/// No pass has a place or a turn during a request, because the API server may not answer, and no pass waits for one. A
/// pass without one is repeated every second. The first try, which keeps nothing, prevents that such a pass sends its
/// request as often. If other passes take the last place during the request, the next pass sends the request again.
pub(crate) async fn take_after<T>(
    take: impl Fn() -> Option<T>,
    request: impl Future<Output = Result<(), Error>>,
) -> Result<Option<T>, Error> {
    if take().is_none() {
        return Ok(None);
    }
    request.await?;
    Ok(take())
}

#[cfg(test)]
mod tests {
    use volume::{Allocation, Claim, Mode, State};

    use super::*;
    use crate::Settings;
    use crate::fixture::{self, id};

    /// Regression: passes over the clones of one tenant, each of which looked at millions of files, delayed all claims.
    #[tokio::test(start_paused = true)]
    async fn passes_over_copies_leave_passes_to_others_and_places_to_other_copies() {
        let most = usize::from(Settings::PARALLEL.get());
        let (provisioner, disk) = fixture::unanswered(&[]);
        let record = |namespace: &str| {
            let begun = fixture::record(Mode::Block { allocation: Allocation::Thick }, State::Staged);
            Record { claim: Claim { namespace: namespace.into(), ..begun.claim.clone() }, ..begun }
        };
        let copies: Vec<_> = (0..most).map(|number| id(&format!("pvc-{number}"))).collect();
        for copy in &copies {
            disk.put(copy, record("shop"));
        }
        let [other, late] = ["pvc-other", "pvc-late"].map(id);
        disk.put(&other, record("bank"));
        disk.put(&late, record("mill"));
        let source = id("pvc-source");
        let turn = |copy| provisioner.copy_turn(copy, Some(&source));
        let turns: Vec<_> = copies.iter().filter_map(turn).collect();
        assert_eq!(turns.len(), COPIES_OF_ONE);
        let last = turn(&other).expect("a place that one namespace cannot have");
        assert!(COPIES + CLONES + REMOVALS < most);
        assert!(provisioner.copy_turn(&late, None).is_some(), "a claim without a source needs no place");
        assert!(provisioner.clone_turn([&source]).is_some());
        drop(last);
        let pause = |copy| provisioner.copied(copy, Some(Copying::InPart)).next();
        assert_eq!(pause(&other), Some(NEXT_PASS), "the others have their share");
        drop(turns);
        assert_eq!([pause(&copies[0]), pause(&copies[1])], [Some(LEFT), Some(NEXT_PASS)]);
        let turns = [&copies[0], &copies[1], &other].map(turn);
        assert!(turns.iter().all(Option::is_some) && turn(&late).is_none());
        drop(turns);
        assert_eq!([pause(&other), pause(&copies[0])], [Some(LEFT), Some(NEXT_PASS)]);
    }

    /// Regression: each clone that waited for its turn requested its source each second.
    #[tokio::test(start_paused = true)]
    async fn a_clone_waits_without_requests_for_a_place_and_its_source() {
        let [source, copy, other] = ["pvc-source", "pvc-copy", "pvc-other"].map(id);
        let (provisioner, disk) = fixture::unanswered(&[&source, &other]);
        let turn = provisioner.clone_turn([&source]).expect("a turn");
        assert!(!provisioner.clone_waits(&copy), "the source is not known yet");
        provisioner.turn_missed(&copy, &source);
        assert!(provisioner.clone_waits(&copy) && !provisioner.clone_waits(&id("pvc-new")));
        let second = provisioner.clone_turn([&other]).expect("a turn");
        assert!(provisioner.clone_waits(&id("pvc-new")), "all places are taken");
        drop(turn);
        assert!(!provisioner.clone_waits(&copy));
        drop(second);
        let begun = fixture::record(Mode::Block { allocation: Allocation::Thick }, State::Staged);
        disk.put(&copy, begun);
        let turn = provisioner.clone_turn([&source]).expect("a turn");
        assert!(!provisioner.clone_waits(&copy), "a clone that has begun needs its source no more");
        drop(turn);
        tokio::time::advance(WaitingClones::FORGOTTEN).await;
        provisioner.turn_missed(&other, &source);
        assert_eq!(provisioner.waiting_clones.table().keys().collect::<Vec<_>>(), [&other]);
    }

    #[tokio::test(start_paused = true)]
    async fn each_copy_waits_longer_until_it_is_forgotten() {
        let copies = Copies::default();
        let pause = |name| copies.outcome(&id(name), Some(Copying::Waits)).next().expect("a pause").as_millis();
        assert_eq!([pause("pvc-1"), pause("pvc-1"), pause("pvc-2")], [500, 1000, 500]);
        tokio::time::advance(Copies::FORGOTTEN / 2).await;
        assert_eq!(pause("pvc-1"), 2000);
        tokio::time::advance(Copies::FORGOTTEN / 2).await;
        assert_eq!([pause("pvc-1"), pause("pvc-2")], [4000, 500]);
    }

    /// Regression: the ID of a content that was released while it was copied stayed in the table until the next start.
    #[tokio::test(start_paused = true)]
    async fn a_copy_is_forgotten_when_it_is_complete_or_had_no_pass_for_long() {
        let copies = Copies::default();
        let [ready, released, copied] = ["pvc-ready", "pvc-released", "pvc-copied"].map(id);
        for id in [&ready, &released, &copied] {
            assert_eq!(copies.outcome(id, Some(Copying::InPart)), Outcome::Copying(NEXT_PASS));
        }
        assert_eq!(copies.outcome(&ready, None), Outcome::Complete);
        for _ in 0..2 {
            assert!(copies.table().contains_key(&released));
            tokio::time::advance(Copies::FORGOTTEN / 2).await;
            copies.outcome(&copied, Some(Copying::InPart));
        }
        assert_eq!(copies.table().keys().collect::<Vec<_>>(), [&copied]);
    }
}
