//! Releases of blocks that XFS has allocated in advance for a volume.
//!
//! The tenant of the volume decides how long a release takes: XFS retries a file that a process reads or writes at this
//! moment, without a limit, and no signal ends the call (`XFS_IOC_FREE_EOFBLOCKS`). The call also waits for all deleted
//! files of the disk. Therefore each release has a thread of its own, callers give up a second after its start, and the
//! next call for the same copy returns a result that came later.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use fsquota::FsError;
use tracing::warn;

use crate::VolumeId;

/// Largest number of releases at once.
const LIMIT: usize = 64;

/// Largest number of releases at once for the volumes of one namespace, whose pods can let them hang.
const SHARE: usize = 16;

/// Largest number of releases at once for the volumes without a namespace, which clients of CSI need not send. These
/// volumes may be of many tenants. The places of one namespace are left to the volumes with a namespace.
const WITHOUT_NAMESPACE: usize = LIMIT - SHARE;

/// Time from the start of a release after which no caller waits for it. A release of idle files takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(1);

/// The releases of all sources, and notifications of ends.
#[derive(Clone, Debug, Default)]
pub(crate) struct Releases(Arc<(Mutex<Table>, Condvar)>);

#[derive(Debug, Default)]
struct Table {
    /// By source.
    running: BTreeMap<VolumeId, Running>,
    /// Results that no call has returned yet, by copy.
    ended: BTreeMap<VolumeId, Late>,
}

#[derive(Debug)]
struct Late {
    source: VolumeId,
    result: Result<(), FsError>,
}

#[derive(Debug)]
struct Running {
    start: Instant,
    /// Namespace of the source, empty if unknown.
    namespace: String,
    /// The copy that needs the release. `None`: the source has new blocks in advance, see [`Releases::forget`].
    copy: Option<VolumeId>,
}

/// The only release of a source. Ends on drop.
struct Place {
    releases: Releases,
    source: VolumeId,
    /// `None` if the release did not start, or panicked.
    ended: Option<Result<(), FsError>>,
}

impl Table {
    fn is_full(&self, namespace: &str) -> bool {
        let most = if namespace.is_empty() { WITHOUT_NAMESPACE } else { SHARE };
        let share = self.running.values().filter(|running| running.namespace == namespace).count();
        self.running.len() >= LIMIT || share >= most
    }
}

impl Releases {
    /// Runs the release of a source of this namespace for a copy that shares no block with it any more, after an
    /// earlier release that is younger than a second. Returns at once if the last release for this copy ended after its
    /// call: it began when the copy already shared none. Returns false if the release has not ended in time, or could
    /// not begin: the earlier one, or too many of other volumes, have not ended.
    pub(crate) fn run(
        &self,
        source: &VolumeId,
        copy: &VolumeId,
        namespace: &str,
        release: impl FnOnce() -> Result<(), FsError> + Send + 'static,
    ) -> Result<bool, FsError> {
        self.run_for(PATIENCE, source, copy, namespace, release)
    }

    fn run_for(
        &self,
        patience: Duration,
        source: &VolumeId,
        copy: &VolumeId,
        namespace: &str,
        release: impl FnOnce() -> Result<(), FsError> + Send + 'static,
    ) -> Result<bool, FsError> {
        let mut table = self.wait(patience, source, copy);
        if let Some(late) = table.ended.remove(copy) {
            return late.result.map(|()| true);
        }
        if table.running.contains_key(source) || table.is_full(namespace) {
            return Ok(false);
        }
        let running = Running { start: Instant::now(), namespace: namespace.to_owned(), copy: Some(copy.clone()) };
        table.running.insert(source.clone(), running);
        drop(table);
        let place = Place { releases: self.clone(), source: source.clone(), ended: None };
        let started = thread::Builder::new().name("free-blocks".into()).spawn(move || {
            let mut place = place;
            place.ended = Some(release());
        });
        if let Err(error) = started {
            warn!(volume = %source, error = &error as &dyn Error, "cannot start a thread that frees unused blocks");
        }
        let ended = self.wait(patience, source, copy).ended.remove(copy);
        ended.map_or(Ok(false), |ended| ended.result.map(|()| true))
    }

    /// Makes earlier releases of a source count for no copy. Blocks in advance may be there again when a copy begins to
    /// share blocks, when one that shared blocks meanwhile ends, and after an exchange of the content. A later copy may
    /// also have the ID of one that has ended.
    pub(crate) fn forget(&self, source: &VolumeId) {
        let mut table = self.table();
        table.ended.retain(|_, late| late.source != *source);
        if let Some(running) = table.running.get_mut(source) {
            running.copy = None;
        }
    }

    /// Waits until all releases have ended, for 10 seconds at most: each has a descriptor of the file system.
    pub(crate) fn finish(&self) {
        let is_running = |table: &mut Table| !table.running.is_empty();
        drop(self.0.1.wait_timeout_while(self.table(), 10 * PATIENCE, is_running));
    }

    /// Waits for a result for this copy, until the present release of the source has ended or is this old.
    fn wait(&self, patience: Duration, source: &VolumeId, copy: &VolumeId) -> MutexGuard<'_, Table> {
        let table = self.table();
        let Some(start) = table.running.get(source).map(|running| running.start) else { return table };
        let left = patience.saturating_sub(start.elapsed());
        let waits = |table: &mut Table| {
            let is_same = table.running.get(source).is_some_and(|running| running.start == start);
            is_same && !table.ended.contains_key(copy)
        };
        self.0.1.wait_timeout_while(table, left, waits).unwrap_or_else(PoisonError::into_inner).0
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // No code panics while it holds the table.
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut table = self.releases.table();
        let copy = table.running.remove(&self.source).and_then(|running| running.copy);
        if let (Some(copy), Some(result)) = (copy, self.ended) {
            table.ended.insert(copy, Late { source: self.source.clone(), result });
        }
        drop(table);
        self.releases.0.1.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{self, Receiver};

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn id(number: usize) -> VolumeId {
        format!("pvc-{number}").parse().unwrap()
    }

    fn copy(number: usize) -> VolumeId {
        format!("snapshot-{number}").parse().unwrap()
    }

    /// Runs the release of the source with this number, for the copy with this number.
    fn run(
        releases: &Releases,
        patience: Duration,
        number: usize,
        release: impl FnOnce() -> Result<(), FsError> + Send + 'static,
    ) -> Result<bool, FsError> {
        releases.run_for(patience, &id(number), &copy(number), &format!("team-{}", number / SHARE), release)
    }

    /// A release that ends when the sender is dropped.
    fn until_closed(closed: Receiver<()>) -> impl FnOnce() -> Result<(), FsError> + Send + 'static {
        move || {
            let _ = closed.recv();
            Ok(())
        }
    }

    fn wait_for_all(releases: &Releases) {
        releases.finish();
        assert!(releases.table().running.is_empty());
    }

    /// Regression: the copies of all snapshots waited for the release of one volume.
    #[test]
    fn a_release_that_hangs_delays_no_other_volume_and_is_not_repeated() {
        let releases = Releases::default();
        let (hanging, closed) = mpsc::channel();
        assert_eq!(run(&releases, Duration::ZERO, 1, until_closed(closed)), Ok(false));
        assert_eq!(run(&releases, Duration::ZERO, 1, || panic!("a second thread")), Ok(false));
        assert_eq!(run(&releases, LONG, 2, || Ok(())), Ok(true));
        drop(hanging);
        wait_for_all(&releases);
    }

    /// Regression: on a disk where each release took more than a second, the copy of an image never ended.
    #[test]
    fn the_next_call_for_the_copy_returns_a_result_that_came_late() {
        for result in [Ok(()), Err(FsError::NotXfs)] {
            let releases = Releases::default();
            let (hanging, closed) = mpsc::channel::<()>();
            let late = move || {
                let _ = closed.recv();
                result
            };
            assert_eq!(run(&releases, Duration::ZERO, 1, late), Ok(false));
            drop(hanging);
            wait_for_all(&releases);
            let other = releases.run_for(LONG, &id(1), &copy(2), "team-0", || Err(FsError::EnforcementOff));
            assert_eq!(other, Err(FsError::EnforcementOff), "the result is of another copy");
            assert_eq!(run(&releases, LONG, 1, || panic!("a second thread")), result.map(|()| true));
            assert_eq!(run(&releases, LONG, 1, || Err(FsError::AccountingOff)), Err(FsError::AccountingOff), "once");
            assert!(releases.table().ended.is_empty());
        }
    }

    #[test]
    fn no_call_returns_a_result_that_is_forgotten() {
        for ends_first in [true, false] {
            let releases = Releases::default();
            let (hanging, closed) = mpsc::channel();
            assert_eq!(run(&releases, Duration::ZERO, 1, until_closed(closed)), Ok(false));
            if ends_first {
                releases.forget(&id(1));
            }
            drop(hanging);
            wait_for_all(&releases);
            releases.forget(&id(1));
            assert!(releases.table().ended.is_empty());
            assert_eq!(run(&releases, LONG, 1, || Err(FsError::NotXfs)), Err(FsError::NotXfs));
        }
    }

    #[test]
    fn two_releases_of_a_volume_follow_each_other() {
        let releases = Releases::default();
        let (hanging, closed) = mpsc::channel();
        assert_eq!(run(&releases, Duration::ZERO, 1, until_closed(closed)), Ok(false));
        thread::scope(|scope| {
            let second = scope.spawn(|| releases.run_for(LONG, &id(1), &copy(2), "team-0", || Err(FsError::NotXfs)));
            drop(hanging);
            assert_eq!(second.join().unwrap(), Err(FsError::NotXfs));
        });
    }

    #[test]
    fn the_number_of_releases_is_limited() {
        let releases = Releases::default();
        let mut hanging = Vec::new();
        for number in 0..LIMIT {
            let (sender, closed) = mpsc::channel();
            hanging.push(sender);
            assert_eq!(run(&releases, Duration::ZERO, number, until_closed(closed)), Ok(false));
        }
        assert_eq!(run(&releases, LONG, LIMIT, || panic!("too many threads")), Ok(false));
        drop(hanging);
        wait_for_all(&releases);
        assert_eq!(run(&releases, LONG, LIMIT, || Ok(())), Ok(true));
    }

    /// Regression: all volumes without a namespace had the places of one namespace.
    #[test]
    fn one_namespace_has_only_a_share_of_the_releases() {
        for (hostile, most) in [("hostile", SHARE), ("", WITHOUT_NAMESPACE)] {
            let releases = Releases::default();
            let mut hanging = Vec::new();
            for number in 0..most {
                let (sender, closed) = mpsc::channel();
                hanging.push(sender);
                let release = until_closed(closed);
                let ended = releases.run_for(Duration::ZERO, &id(number), &copy(number), hostile, release);
                assert_eq!(ended, Ok(false));
            }
            assert_eq!(releases.table().running.len(), most, "all have begun");
            let next = |namespace, release: fn() -> Result<(), FsError>| {
                releases.run_for(LONG, &id(most), &copy(most), namespace, release)
            };
            assert_eq!(next(hostile, || panic!("too many")), Ok(false));
            assert_eq!(next("other", || Ok(())), Ok(true));
            drop(hanging);
            wait_for_all(&releases);
        }
    }

    #[test]
    fn an_error_and_a_panic_end_the_release() {
        let releases = Releases::default();
        for _ in 0..2 {
            assert_eq!(run(&releases, LONG, 1, || Err(FsError::NotXfs)), Err(FsError::NotXfs));
        }
        assert_eq!(run(&releases, LONG, 1, || panic!("on purpose")), Ok(false));
        wait_for_all(&releases);
    }
}
