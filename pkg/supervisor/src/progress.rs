//! Rounds of work, and detection of services without progress.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::Settings;

/// Rounds of the current attempt of a service.
#[derive(Debug, Default)]
pub(crate) struct Progress(Mutex<Rounds>);

#[derive(Debug, Default)]
struct Rounds {
    /// The attempt that may begin rounds.
    attempt: u32,
    next: u64,
    /// Start times of the running rounds by number. Numbers ascend, so the first round is the oldest.
    running: BTreeMap<u64, Instant>,
    /// Failed rounds since the last progress.
    failed: BTreeMap<Effort, Failed>,
}

/// Name, which is empty for the service as a whole, and the longest time until the next failure of the same work:
/// without a failure for this time, the work has succeeded or is gone.
type Effort = (&'static str, Duration);

#[derive(Clone, Copy, Debug)]
struct Failed {
    begin: Instant,
    end: Instant,
    count: u32,
}

impl Progress {
    /// Forgets the rounds of earlier attempts.
    pub(crate) fn reset(&self, attempt: u32) {
        let mut rounds = self.lock();
        *rounds = Rounds { attempt, next: rounds.next, ..Rounds::default() };
    }

    /// Runs one round of `attempt`. A round that is dropped before its end does not count.
    pub(crate) async fn round<T>(
        self: Arc<Self>,
        attempt: u32,
        settings: &Settings,
        work: impl Future<Output = T>,
        has_progress: impl FnOnce(&T) -> bool,
    ) -> T {
        let mut work = pin!(work);
        let round = Round::begin(self, attempt);
        let mut has_waited = false;
        let done = poll_fn(|cx| {
            let polled = work.as_mut().poll(cx);
            has_waited |= polled.is_pending();
            polled
        })
        .await;
        if !has_progress(&done) {
            round.failed(("", settings.quiet()));
        } else if has_waited {
            round.succeeded();
        }
        done
    }

    /// Records a round that begins and ends now. The reporter retries within the deadline, so a failure after a longer
    /// time shows that the work succeeded meanwhile, without a report.
    pub(crate) fn report(self: Arc<Self>, attempt: u32, settings: &Settings, effort: &'static str, has_progress: bool) {
        let (round, effort) = (Round::begin(self, attempt), (effort, settings.round_deadline));
        if has_progress { round.reported(effort) } else { round.failed(effort) }
    }

    /// How long the service has made no progress, if it is stalled.
    pub(crate) fn stalled(&self, settings: &Settings) -> Option<Duration> {
        let (rounds, deadline, now) = (self.lock(), settings.round_deadline, Instant::now());
        let running = rounds.running.values().next().map(|begin| now - *begin).filter(|time| *time >= deadline);
        let failed = rounds.failed.iter().filter(|((_, pause), failed)| {
            failed.count > 1 && failed.end - failed.begin >= deadline && now - failed.end <= *pause
        });
        running.max(failed.map(|(_, failed)| now - failed.begin).max())
    }

    fn lock(&self) -> MutexGuard<'_, Rounds> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Settings {
    /// Time within which a service with work retries a failed round. A service that does not retry by then is idle.
    fn quiet(&self) -> Duration {
        self.round_deadline.saturating_add(self.backoff.most)
    }
}

/// A round that runs.
struct Round {
    progress: Arc<Progress>,
    number: u64,
}

impl Round {
    fn begin(progress: Arc<Progress>, attempt: u32) -> Self {
        let mut rounds = progress.lock();
        let number = rounds.next;
        rounds.next += 1;
        if rounds.attempt == attempt {
            rounds.running.insert(number, Instant::now());
        }
        drop(rounds);
        Self { progress, number }
    }

    fn succeeded(self) {
        let mut rounds = self.progress.lock();
        if rounds.running.contains_key(&self.number) {
            rounds.failed.clear();
        }
    }

    /// Clears the reported failures of the effort. The failed rounds of the service and other efforts stay.
    fn reported(self, effort: Effort) {
        let mut rounds = self.progress.lock();
        if rounds.running.contains_key(&self.number) {
            rounds.failed.remove(&effort);
        }
    }

    fn failed(self, effort: Effort) {
        let (mut rounds, end) = (self.progress.lock(), Instant::now());
        let Some(&begin) = rounds.running.get(&self.number) else { return };
        let before = rounds.failed.get(&effort).filter(|before| end - before.end <= effort.1);
        let failed = match before {
            Some(before) => Failed { begin: before.begin.min(begin), end, count: before.count.saturating_add(1) },
            None => Failed { begin, end, count: 1 },
        };
        rounds.failed.insert(effort, failed);
    }
}

impl Drop for Round {
    fn drop(&mut self) {
        self.progress.lock().running.remove(&self.number);
    }
}
