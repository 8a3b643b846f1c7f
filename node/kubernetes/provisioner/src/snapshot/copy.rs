//! Copies the blocks of complete snapshots in the background, whether or not their contents exist.
//!
//! Each snapshot has one pass after the other. A pass copies for about a second, but looks at all files before.
//! Namespaces have equal shares of the time of all passes, which together use at most half of the disk's time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use supervisor::Context;
use tokio::task::JoinError;
use tokio::time::{Instant, sleep, sleep_until};
use tracing::{debug, warn};
use volume::{Copying, Record, SourcePauses, VolumeId};

use crate::context::{NEXT_PASS, OCCUPIED, Provisioner, RunError};
use crate::error::Error;
use crate::metrics::Object;

/// Longest pause between two lists of the snapshots: a new one is copied after this time.
const INTERVAL: Duration = Duration::from_secs(1);

/// Pauses of a copy that waits, and the time of its next pass.
#[derive(Debug)]
struct NextPass {
    pauses: SourcePauses,
    at: Instant,
}

/// Time of the passes over the snapshots of each namespace. The tenant of a snapshot decides how long a pass takes.
#[derive(Debug, Default)]
struct Shares {
    /// Namespaces whose passes took longer than `clock`.
    spent: BTreeMap<String, Duration>,
    /// A namespace without snapshots for some time begins with this time.
    clock: Duration,
}

impl Shares {
    /// The next pass is over a snapshot of the namespace with the least time.
    fn of(&self, namespace: &str) -> Duration {
        self.spent.get(namespace).copied().unwrap_or_default().max(self.clock)
    }

    /// Adds a pass over a snapshot of the namespace with the least time.
    fn add(&mut self, namespace: &str, took: Duration) {
        self.clock = self.of(namespace);
        self.spent.insert(namespace.to_owned(), self.clock + took);
        self.spent.retain(|_, spent| *spent > self.clock);
    }
}

fn source_of(record: &Record) -> Option<&VolumeId> {
    record.cloning.as_ref().map(|cloning| &cloning.source)
}

/// Copies until it is cancelled. A pass that has begun ends in its thread.
pub(crate) async fn run(cx: Context, provisioner: Arc<Provisioner>) -> Result<(), RunError> {
    cx.healthy();
    tokio::select! {
        () = cx.cancelled() => Ok(()),
        failed = provisioner.copy_snapshots(&cx) => failed,
    }
}

impl Provisioner {
    async fn copy_snapshots(&self, cx: &Context) -> Result<(), RunError> {
        let mut changes = self.store.calls().changes();
        let mut passes = BTreeMap::<VolumeId, NextPass>::new();
        // Sources that another pass had, or for which a pass has waited, for a moment after it.
        let mut waiting = BTreeMap::<VolumeId, Instant>::new();
        let mut shares = Shares::default();
        loop {
            changes.mark_unchanged();
            let complete = self.on_disk(|store| store.complete_snapshots()).await?;
            passes.retain(|id, _| complete.contains_key(id));
            if complete.is_empty() {
                // An error would mean that the store is gone, which has the other end.
                let _ = changes.changed().await;
                sleep(INTERVAL).await;
                continue;
            }
            let now = Instant::now();
            // A pass may wait a second for its source. Other copies of this source do not follow at once, but a copy whose
            // blocks are not all copied must not have the long pauses of one that only waits.
            waiting.retain(|_, until| *until > now);
            let mut all = Vec::new();
            for (id, record) in &complete {
                let first = || NextPass { pauses: SourcePauses::default(), at: now };
                let at = passes.entry(id.clone()).or_insert_with(first).at;
                let until = source_of(record).and_then(|source| waiting.get(source).copied());
                all.push((until.map_or(at, |until| until.max(at)), id, record));
            }
            let soonest = all.iter().map(|(at, ..)| *at).min();
            // The pause between two passes over the same snapshot must not give its turn to another tenant.
            let due = all.into_iter().filter(|(at, ..)| *at <= now + NEXT_PASS);
            let next = due.min_by_key(|(at, _, record)| (shares.of(&record.claim.namespace), *at));
            let Some((at, id, record)) = next else {
                let latest = now + INTERVAL;
                sleep_until(soonest.map_or(latest, |at| at.min(latest))).await;
                continue;
            };
            sleep_until(at).await;
            // All copies of this source wait together: otherwise, a list of all snapshots would precede each look.
            if let Some(source) = source_of(record)
                && self.locks.try_lock(source).is_none()
            {
                waiting.insert(source.clone(), Instant::now() + OCCUPIED);
                continue;
            }
            let begin = Instant::now();
            let pause = cx.round(self.copy_pass(id, record), Result::is_ok).await?;
            shares.add(&record.claim.namespace, begin.elapsed());
            let Some(pass) = passes.get_mut(id) else { continue };
            pass.at = Instant::now() + pause.unwrap_or_else(|| pass.pauses.pause());
            if let (None, Some(source)) = (pause, source_of(record)) {
                waiting.insert(source.clone(), pass.at.min(Instant::now() + INTERVAL));
            }
        }
    }

    /// Runs one pass, and returns the pause before the next one, `None` if the copy waits for its source. The pass does
    /// not keep the lock of the snapshot, so that it delays no deletion: the store runs both one after the other.
    async fn copy_pass(&self, id: &VolumeId, record: &Record) -> Result<Option<Duration>, JoinError> {
        // Another pass may clone the source, or remove the snapshot, for minutes. This pass would wait a second for the
        // source, and for the snapshot until the removal has ended.
        if self.try_lock_all(source_of(record).into_iter().chain([id])).is_none() {
            return Ok(Some(OCCUPIED));
        }
        let key = format!("{id} copy");
        let error = match self.on_volume(id, |store, id| store.copy_snapshot(id)).await? {
            Ok(copying) => {
                self.attempts.succeeded(&key);
                debug!(snapshot = %id, ?copying, "blocks of the snapshot copied");
                return Ok(match copying {
                    Some(Copying::Waits) => None,
                    Some(Copying::InPart) => Some(NEXT_PASS),
                    // The snapshot has ended, or its removal has begun, which may be repeated later.
                    None => Some(INTERVAL),
                });
            }
            Err(error) => Error::of_claim(error),
        };
        self.metrics.failed(Object::Snapshot, error.kind());
        self.events.snapshot_copy_failed(&self.node, id, record, &error);
        let retry = self.attempts.pass_failed(&key, &error);
        warn!(snapshot = %id, error = causes::of(&error), attempt = retry.attempt, "copy of the snapshot failed, will retry");
        Ok(Some(retry.after))
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use envtest::FakeVolumes;
    use supervisor::Supervisor;
    use tokio::time::timeout;
    use units::Bytes;
    use volume::{Cloning, Mode, Owner, Sharing, State};

    use super::*;
    use crate::event_queue::QueuedEvent;
    use crate::fixture::{self, id};

    /// A complete snapshot of a volume.
    struct Fixture {
        provisioner: Arc<Provisioner>,
        disk: Arc<FakeVolumes>,
        source: VolumeId,
        snapshot: VolumeId,
        record: Record,
    }

    impl Fixture {
        fn new() -> Self {
            Self::of(Owner::Provisioner)
        }

        fn of(owner: Owner) -> Self {
            let [source, snapshot] = ["pvc-1", "snapshot-1"].map(id);
            let (provisioner, disk) = fixture::unanswered(&[&source]);
            let mode = Mode::Snapshot { taken: SystemTime::UNIX_EPOCH, sharing: Sharing::Temporary };
            let cloning = Some(Cloning::new(source.clone(), Bytes::GIB));
            let record = Record { owner, cloning, ..fixture::record(mode, State::Complete) };
            disk.put(&snapshot, record.clone());
            Self { provisioner, disk, source, snapshot, record }
        }

        async fn pass(&self) -> Duration {
            let pause = self.provisioner.copy_pass(&self.snapshot, &self.record).await.expect("the task ends");
            pause.expect("it does not wait for the source")
        }

        fn state(&self) -> Option<State> {
            self.disk.record(&self.snapshot).map(|record| record.state)
        }
    }

    /// Regression: each pass of a tenant with millions of files took minutes, between two passes of a second of others.
    #[test]
    fn namespaces_have_equal_shares_of_the_passes() {
        let seconds = Duration::from_secs;
        let mut shares = Shares::default();
        let mut count = |passes: &[(&str, u64)], total: u64| {
            let mut spent = BTreeMap::<String, u64>::new();
            while spent.values().sum::<u64>() < total {
                let next = passes.iter().min_by_key(|(namespace, _)| shares.of(namespace)).expect("a snapshot");
                let (namespace, took) = *next;
                shares.add(namespace, seconds(took));
                *spent.entry(namespace.to_owned()).or_default() += took;
            }
            spent
        };
        let spent = count(&[("slow", 300), ("slow", 300), ("slow", 300), ("quick", 1)], 6000);
        assert!(spent["quick"] >= 2700, "{spent:?}");
        // A namespace without snapshots for an hour does not catch up.
        count(&[("slow", 300)], 3600);
        let spent = count(&[("slow", 300), ("quick", 1)], 6000);
        assert!((2400..=3600).contains(&spent["quick"]), "{spent:?}");
        assert!(shares.spent.len() <= 2);
    }

    /// The client of CSI that took the snapshot may have given up.
    #[tokio::test]
    async fn the_service_copies_snapshots_of_csi() {
        const LIMIT: Duration = Duration::from_secs(20);
        let fixture = Fixture::of(Owner::Controller { source: Some(id("pvc-1")) });
        let mut changes = fixture.provisioner.store.calls().changes();
        let shared = Arc::clone(&fixture.provisioner);
        let tree = Supervisor::start("copies", supervisor::Settings::default(), move |cx| run(cx, Arc::clone(&shared)));
        timeout(LIMIT, changes.changed()).await.expect("a copy in time").expect("the store exists");
        assert_eq!(fixture.state(), Some(State::Announced));
        tree.stop(LIMIT).await.expect("it ends");
    }

    #[tokio::test]
    async fn a_copy_waits_for_passes_over_the_snapshot_or_its_source() {
        let fixture = Fixture::new();
        for occupied in [&fixture.source, &fixture.snapshot] {
            let _guard = fixture.provisioner.locks.try_lock(occupied).expect("no other pass");
            assert_eq!((fixture.pass().await, fixture.state()), (OCCUPIED, Some(State::Complete)), "{occupied}");
        }
        fixture.pass().await;
        assert_eq!(fixture.state(), Some(State::Announced));
    }

    /// Regression: each second, a list of all snapshots preceded the look at the source of each snapshot.
    #[tokio::test(start_paused = true)]
    async fn copies_wait_together_for_a_pass_over_their_source() {
        let fixture = Fixture::new();
        for number in 2..=100 {
            fixture.disk.put(&id(&format!("snapshot-{number}")), fixture.record.clone());
        }
        let guard = fixture.provisioner.locks.try_lock(&fixture.source).expect("no other pass");
        let shared = Arc::clone(&fixture.provisioner);
        let tree = Supervisor::start("copies", supervisor::Settings::default(), move |cx| run(cx, Arc::clone(&shared)));
        sleep(Duration::from_secs(10)).await;
        let lists = fixture.disk.snapshot_lists();
        assert!((5..=30).contains(&lists), "{lists} lists in 10 seconds");
        drop(guard);
        sleep(Duration::from_secs(10)).await;
        assert_eq!(fixture.state(), Some(State::Announced));
        tree.stop(Duration::from_secs(20)).await.expect("it ends");
    }

    /// Regression: a removal that is repeated later left the snapshot in the list, and the passes followed each other
    /// without a pause, or reported that its data was lost.
    #[tokio::test]
    async fn a_snapshot_in_the_trash_has_pauses_and_no_event() {
        let fixture = Fixture::new();
        fixture.disk.retire(&fixture.snapshot);
        assert_eq!((fixture.pass().await, fixture.state()), (INTERVAL, Some(State::Complete)));
        assert!(fixture.provisioner.events.queue.next().is_none());
    }

    #[tokio::test]
    async fn failures_of_a_copy_are_one_series_of_events() {
        let fixture = Fixture::new();
        fixture.disk.set_full(true);
        let mut series = Vec::new();
        for _ in 0..2 {
            assert!(fixture.pass().await >= INTERVAL, "a back-off");
            let queued = fixture.provisioner.events.queue.next();
            let QueuedEvent { event, regarding, .. } = queued.expect("an event");
            series.push((event.reason, event.action, event.secondary, regarding));
        }
        assert_eq!(series[0], series[1]);
        let about = series[0].2.as_ref().and_then(|object| object.name.as_deref());
        assert_eq!((&*series[0].0, about), ("SnapshotCopyFailed", Some("snapshot-1")), "one of each snapshot");
    }
}
