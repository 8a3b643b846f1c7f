//! Releases of blocks that XFS has allocated in advance for a volume.
//!
//! The tenant of the volume decides how long a release takes: XFS retries a file that a process reads or writes at this
//! moment, without a limit, and no signal ends the call (`XFS_IOC_FREE_EOFBLOCKS`). Therefore each release has a thread
//! of its own, and callers give up a second after its start.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::mpsc::{self, SendError};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use fsquota::FsError;
use tracing::warn;

use crate::VolumeId;

/// Largest number of releases at once.
const LIMIT: usize = 64;

/// Time from the start of a release after which no caller waits for it. A release of idle files takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(1);

/// The volumes that have a release at this moment, each with its start, and notifications of ends.
#[derive(Clone, Debug, Default)]
pub(crate) struct Releases(Arc<(Mutex<BTreeMap<VolumeId, Instant>>, Condvar)>);

/// The only release of a volume. Ends on drop.
struct Place {
    releases: Releases,
    volume: VolumeId,
}

impl Releases {
    /// Runs the release of a volume, after an earlier one that is younger than a second. Returns false if it has not
    /// ended in time, or could not begin: the earlier one, or too many of other volumes, have not ended.
    pub(crate) fn run(
        &self,
        volume: &VolumeId,
        release: impl FnOnce() -> Result<(), FsError> + Send + 'static,
    ) -> Result<bool, FsError> {
        self.run_for(PATIENCE, volume, release)
    }

    fn run_for(
        &self,
        patience: Duration,
        volume: &VolumeId,
        release: impl FnOnce() -> Result<(), FsError> + Send + 'static,
    ) -> Result<bool, FsError> {
        let Some(place) = self.take(patience, volume) else { return Ok(false) };
        let (sender, ended) = mpsc::channel();
        let started = thread::Builder::new().name("free-blocks".into()).spawn(move || {
            let released = release();
            let volume = place.volume.clone();
            drop(place);
            // The caller has given up.
            if let Err(SendError(Err(error))) = sender.send(released) {
                warn!(%volume, error = &error as &dyn Error, "cannot free unused blocks of the volume");
            }
        });
        if let Err(error) = started {
            warn!(%volume, error = &error as &dyn Error, "cannot start a thread that frees unused blocks");
        }
        // A thread that was not started, or panicked, has closed the channel.
        ended.recv_timeout(patience).map_or(Ok(false), |released| released.map(|()| true))
    }

    fn take(&self, patience: Duration, volume: &VolumeId) -> Option<Place> {
        let mut running = self.running();
        if let Some(start) = running.get(volume).copied() {
            let left = patience.saturating_sub(start.elapsed());
            let is_running = |running: &mut BTreeMap<VolumeId, Instant>| running.contains_key(volume);
            running = self.0.1.wait_timeout_while(running, left, is_running).unwrap_or_else(PoisonError::into_inner).0;
        }
        if running.contains_key(volume) || running.len() >= LIMIT {
            return None;
        }
        running.insert(volume.clone(), Instant::now());
        Some(Place { releases: self.clone(), volume: volume.clone() })
    }

    fn running(&self) -> MutexGuard<'_, BTreeMap<VolumeId, Instant>> {
        // No code panics while it holds the map.
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.releases.running().remove(&self.volume);
        self.releases.0.1.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::Receiver;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn id(number: usize) -> VolumeId {
        format!("pvc-{number}").parse().unwrap()
    }

    /// A release that ends when the sender is dropped.
    fn until_closed(closed: Receiver<()>) -> impl FnOnce() -> Result<(), FsError> + Send + 'static {
        move || {
            let _ = closed.recv();
            Ok(())
        }
    }

    fn wait_for_all(releases: &Releases) {
        while !releases.running().is_empty() {
            thread::yield_now();
        }
    }

    /// Regression: the copies of all snapshots waited for the release of one volume.
    #[test]
    fn a_release_that_hangs_delays_no_other_volume_and_is_not_repeated() {
        let releases = Releases::default();
        let (hanging, closed) = mpsc::channel();
        assert_eq!(releases.run_for(Duration::ZERO, &id(1), until_closed(closed)), Ok(false));
        assert_eq!(releases.run_for(Duration::ZERO, &id(1), || panic!("a second thread")), Ok(false));
        assert_eq!(releases.run_for(LONG, &id(2), || Ok(())), Ok(true));
        drop(hanging);
        wait_for_all(&releases);
        assert_eq!(releases.run_for(LONG, &id(1), || Ok(())), Ok(true), "the former one has ended");
    }

    #[test]
    fn two_releases_of_a_volume_follow_each_other() {
        let releases = Releases::default();
        let (hanging, closed) = mpsc::channel();
        assert_eq!(releases.run_for(Duration::ZERO, &id(1), until_closed(closed)), Ok(false));
        thread::scope(|scope| {
            let second = scope.spawn(|| releases.run_for(LONG, &id(1), || Ok(())));
            drop(hanging);
            assert_eq!(second.join().unwrap(), Ok(true));
        });
    }

    #[test]
    fn the_number_of_releases_is_limited() {
        let releases = Releases::default();
        let mut hanging = Vec::new();
        for number in 0..LIMIT {
            let (sender, closed) = mpsc::channel();
            hanging.push(sender);
            assert_eq!(releases.run_for(Duration::ZERO, &id(number), until_closed(closed)), Ok(false));
        }
        assert_eq!(releases.run_for(LONG, &id(LIMIT), || panic!("too many threads")), Ok(false));
        drop(hanging);
        wait_for_all(&releases);
        assert_eq!(releases.run_for(LONG, &id(LIMIT), || Ok(())), Ok(true));
    }

    #[test]
    fn an_error_and_a_panic_end_the_release() {
        let releases = Releases::default();
        for _ in 0..2 {
            assert_eq!(releases.run_for(LONG, &id(1), || Err(FsError::NotXfs)), Err(FsError::NotXfs));
        }
        assert_eq!(releases.run_for(LONG, &id(1), || panic!("on purpose")), Ok(false));
        wait_for_all(&releases);
    }
}
