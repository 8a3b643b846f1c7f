//! State that all parts of the provisioner share.

use std::collections::{BTreeMap, HashMap};
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
use volume::{Copying, Drifted, SourcePauses, VolumeGuard, VolumeId, VolumeLocks, Volumes};

use crate::Metrics;
use crate::backoff::Attempts;
use crate::claim::apply::CreatedPvs;
use crate::claim::plan;
use crate::classes::Classes;
use crate::discard::queue::DiscardQueue;
use crate::events::Events;
use crate::group::object::GroupVersion;
use crate::index::PvIndex;
use crate::listing::Listings;
use crate::pv::object;
use crate::snapshot::object::Content;

/// When to try again while another pass has the volume.
pub(crate) const OCCUPIED: Duration = Duration::from_secs(1);

/// Between two passes of a clone or a snapshot: other claims get their turn.
const NEXT_PASS: Duration = Duration::from_millis(10);

/// Clones that get their content at once, of all kinds. That takes as long as their sources have files: a tenant must leave the
/// other passes ([`Settings::PARALLEL`](crate::Settings::PARALLEL) of each controller) to other tenants.
const CLONES: usize = 2;

/// Removals of snapshots at once, for the same reason. Of a group, one after the other.
const REMOVALS: usize = 4;

/// How a pass ended that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The next pass is when the object changes.
    Complete,
    /// The next pass continues a copy, after this pause.
    Copying(Duration),
    /// Other passes have the volume or its source.
    Occupied,
}

impl Outcome {
    /// When the next pass is, if the object does not change until then.
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

/// The pass may begin. With the sources, if it clones their content.
#[must_use = "other passes have the sources when this is dropped"]
pub(crate) struct CloneTurn<'a> {
    _content: Option<(SemaphorePermit<'a>, Vec<VolumeGuard>)>,
}

/// The passes that may take long.
#[derive(Debug)]
pub(crate) struct Places {
    clones: Semaphore,
    removals: Semaphore,
}

impl Default for Places {
    fn default() -> Self {
        Self { clones: Semaphore::new(CLONES), removals: Semaphore::new(REMOVALS) }
    }
}

/// Volumes, snapshots and groups that are copied, by the last pass over each in this process.
#[derive(Debug, Default)]
pub(crate) struct Copies(Mutex<HashMap<VolumeId, CopyState>>);

#[derive(Debug)]
struct CopyState {
    /// The last pass did not fail.
    is_cloned: bool,
    pauses: SourcePauses,
    last: Instant,
}

impl Copies {
    /// A copy is forgotten after this time without a pass: it has ended, its passes fail, or its object is gone, which nothing
    /// announces. If it goes on, its pauses begin again, and the next pass gets its turn as if it cloned the content: hundreds of
    /// copies that share the passes of a controller must not need that.
    const FORGOTTEN: Duration = Duration::from_hours(1);

    /// Whether no later pass clones the content again. The store may not have undone a copy completely before a pass failed, or
    /// before an earlier process ended, and takes it again.
    pub(crate) fn is_cloned(&self, id: &VolumeId) -> bool {
        self.table().get(id).is_some_and(|copy| copy.is_cloned)
    }

    /// Before a pass, which may fail, and before the removal.
    pub(crate) fn begin_pass(&self, id: &VolumeId) {
        if let Some(copy) = self.table().get_mut(id) {
            copy.is_cloned = false;
        }
    }

    /// How a pass ended that did not fail.
    pub(crate) fn outcome(&self, id: &VolumeId, copying: Option<Copying>) -> Outcome {
        let now = Instant::now();
        let mut copies = self.table();
        copies.retain(|_, copy| now.saturating_duration_since(copy.last) < Self::FORGOTTEN);
        let Some(copying) = copying else {
            copies.remove(id);
            return Outcome::Complete;
        };
        let first = || CopyState { is_cloned: true, pauses: SourcePauses::default(), last: now };
        let copy = copies.entry(id.clone()).or_insert_with(first);
        (copy.is_cloned, copy.last) = (true, now);
        Outcome::Copying(match copying {
            Copying::InPart => NEXT_PASS,
            Copying::Waits => copy.pauses.pause(),
        })
    }

    fn table(&self) -> MutexGuard<'_, HashMap<VolumeId, CopyState>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The provisioner has to be started again.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error("a part of the provisioner ended")]
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
    /// The version of groups of snapshots that the cluster serves.
    pub(crate) group_version: Mutex<GroupVersion>,
    pub(crate) classes: Classes,
    pub(crate) created: CreatedPvs,
    pub(crate) events: Events,
    pub(crate) attempts: Attempts,
    /// One pass at a time per volume.
    pub(crate) locks: VolumeLocks,
    pub(crate) places: Places,
    pub(crate) copies: Copies,
    pub(crate) discards: DiscardQueue,
    /// Volumes with inodes outside of their projects, as last reported.
    pub(crate) drifted: Mutex<BTreeMap<VolumeId, Drifted>>,
    pub(crate) index: PvIndex,
    pub(crate) listings: Listings,
    pub(crate) metrics: Metrics,
    /// The watch's copy of the PVs of this node.
    pub(crate) watched_pvs: Mutex<Option<reflector::Store<PersistentVolume>>>,
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
            attempts: Attempts::new(metrics.clone()),
            locks: VolumeLocks::default(),
            places: Places::default(),
            copies: Copies::default(),
            discards: DiscardQueue::default(),
            drifted: Mutex::default(),
            index: PvIndex::new(node.clone()),
            listings: Listings::default(),
            watched_pvs: Mutex::default(),
            store,
            node,
            client,
            metrics,
        }
    }

    /// The PV as the watch has seen it last.
    pub(crate) fn watched_pv(&self, pv: &ObjectRef<PersistentVolume>) -> Option<Arc<PersistentVolume>> {
        self.watched_pvs.lock().unwrap_or_else(PoisonError::into_inner).as_ref()?.get(pv)
    }

    /// The PV of a volume as the watch has seen it last.
    pub(crate) fn watched_pv_of(&self, id: &VolumeId) -> Option<Arc<PersistentVolume>> {
        let watched = self.watched_pvs.lock().unwrap_or_else(PoisonError::into_inner);
        watched.as_ref()?.find(|pv| object::volume_of(pv, &self.node).as_ref() == Some(id))
    }

    /// Whether the claim names this node, or is bound to a PV of it. PVs are not enough: their watch may be behind, and a
    /// PV that arrives starts no pass of its claim.
    pub(crate) fn is_relevant(&self, claim: &PersistentVolumeClaim) -> bool {
        plan::names_node(claim, &self.node)
            || plan::volume_name(claim).is_some_and(|name| self.watched_pv(&ObjectRef::new(name)).is_some())
    }

    /// For a pass over a clone, a snapshot or a rollback. The pass over a new one clones the content: meanwhile, the store waits
    /// with all other operations on the sources. Later passes copy blocks for about a second, and change the source at the end.
    ///
    /// `None` if other passes have a source or all places: the pass ends with [`Outcome::Occupied`]. A pass that waited would
    /// take the place of passes over other volumes.
    pub(crate) fn clone_turn<'a>(
        &self,
        is_new: bool,
        sources: impl IntoIterator<Item = &'a VolumeId>,
    ) -> Option<CloneTurn<'_>> {
        let sources = sources.into_iter().map(|id| self.locks.try_lock(id)).collect::<Option<Vec<_>>>()?;
        let content = if is_new { Some((self.places.clones.try_acquire().ok()?, sources)) } else { None };
        Some(CloneTurn { _content: content })
    }

    /// For the removal of snapshots. `None`: [`Outcome::Occupied`].
    pub(crate) fn removal_place(&self) -> Option<SemaphorePermit<'_>> {
        self.places.removals.try_acquire().ok()
    }

    /// Claims of the claim's namespace.
    pub(crate) fn claims_beside(&self, claim: &PersistentVolumeClaim) -> Api<PersistentVolumeClaim> {
        Api::namespaced(self.client.clone(), &claim.namespace().unwrap_or_default())
    }

    /// Runs blocking disk operations in a thread. They run to their end even if the future is dropped.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::id;

    #[tokio::test(start_paused = true)]
    async fn each_copy_waits_longer_until_it_is_forgotten() {
        let copies = Copies::default();
        let pause = |name| copies.outcome(&id(name), Some(Copying::Waits)).next().expect("a pause").as_millis();
        assert_eq!([pause("pvc-1"), pause("pvc-1"), pause("pvc-2")], [500, 1000, 500]);
        tokio::time::advance(Copies::FORGOTTEN / 2).await;
        // A pass that is about to begin changes no pause.
        copies.begin_pass(&id("pvc-1"));
        assert_eq!(pause("pvc-1"), 2000);
        tokio::time::advance(Copies::FORGOTTEN / 2).await;
        assert_eq!([pause("pvc-1"), pause("pvc-2")], [4000, 500]);
    }

    /// The ID of a content that was released while it was copied stayed until the next start.
    #[tokio::test(start_paused = true)]
    async fn a_copy_is_forgotten_when_it_is_complete_or_had_no_pass_for_long() {
        let copies = Copies::default();
        let [ready, released, copied] = ["snapshot-ready", "snapshot-released", "snapshot-copied"].map(id);
        let pass = |id: &VolumeId, copying| {
            copies.begin_pass(id);
            assert!(!copies.is_cloned(id), "the pass may fail");
            let outcome = copies.outcome(id, copying);
            assert_eq!(copies.is_cloned(id), copying.is_some());
            outcome
        };
        for id in [&ready, &released, &copied] {
            assert_eq!(pass(id, Some(Copying::InPart)), Outcome::Copying(NEXT_PASS));
        }
        assert_eq!(pass(&ready, None), Outcome::Complete);
        for _ in 0..2 {
            assert!(copies.is_cloned(&released));
            tokio::time::advance(Copies::FORGOTTEN / 2).await;
            pass(&copied, Some(Copying::InPart));
        }
        assert_eq!(copies.table().keys().collect::<Vec<_>>(), [&copied]);
    }
}
