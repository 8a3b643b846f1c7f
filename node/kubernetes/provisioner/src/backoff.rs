//! Exponential back-off of objects whose pass failed.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher as _, RandomState};
use std::mem;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::Metrics;
use crate::error::Error;

const FIRST: Duration = Duration::from_secs(1);
pub(crate) const MOST: Duration = Duration::from_mins(5);

/// Longest pause after a failure of the API server. Within a minute after its return, claims are created, expanded and
/// deleted.
pub(crate) const OUTAGE: Duration = Duration::from_secs(15);

/// Pause after failure number `attempt`, from 1. The pause doubles with each failure up to 5 minutes, less a random
/// part of up to a half, so that objects that failed together are not retried together.
pub(crate) fn delay(attempt: u32, random: u64) -> Duration {
    delay_for(attempt, random, MOST)
}

/// As [`delay`], after this failure.
pub(crate) fn delay_after(attempt: u32, error: &Error) -> Duration {
    delay_for(attempt, random(), longest(error))
}

/// Longest pause after a failure.
fn longest(error: &Error) -> Duration {
    if error.is_outage() { OUTAGE } else { MOST }
}

fn delay_for(attempt: u32, random: u64, most: Duration) -> Duration {
    jittered(whole(attempt).min(most), random).max(FIRST)
}

fn whole(attempt: u32) -> Duration {
    FIRST.saturating_mul(1u32.checked_shl(attempt.saturating_sub(1)).unwrap_or(u32::MAX))
}

/// Subtracts a random part of up to a half from a pause.
pub(crate) fn jittered(whole: Duration, random: u64) -> Duration {
    let share = u32::try_from(random % 501).unwrap_or_default();
    whole - whole / 1000 * share
}

pub(crate) fn random() -> u64 {
    RandomState::new().hash_one(())
}

/// Failures of objects since their last success or wake.
#[derive(Debug, Default)]
pub(crate) struct Attempts {
    failures: Mutex<HashMap<String, Failures>>,
    metrics: Metrics,
}

#[derive(Debug)]
struct Failures {
    count: u32,
    not_before: Instant,
    /// Earliest retry after [`Attempts::wake`] or [`Attempts::end_all`].
    ended_not_before: Instant,
    /// Whether the last failure waits for a wake, and had none.
    is_until_woken: bool,
    /// Whether a wake came after the last failure.
    is_woken: bool,
}

impl Failures {
    /// Ends the back-off if the failure waits for a wake, and returns whether it does.
    fn wake(&mut self) -> bool {
        self.is_woken = true;
        if self.is_until_woken {
            (self.count, self.not_before) = (0, self.ended_not_before);
        }
        mem::take(&mut self.is_until_woken)
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Retry {
    pub(crate) attempt: u32,
    pub(crate) after: Duration,
}

impl Attempts {
    pub(crate) fn new(metrics: Metrics) -> Self {
        metrics.failing(0);
        Self { failures: Mutex::default(), metrics }
    }

    /// Counts the failure of a pass. The pauses are short if the API server failed.
    pub(crate) fn pass_failed(&self, uid: &str, error: &Error) -> Retry {
        self.failed_for(uid, longest(error))
    }

    /// Counts a failure, with pauses of `most` at the longest. Failures after that do not lengthen the pauses of other
    /// failures.
    pub(crate) fn failed_for(&self, uid: &str, most: Duration) -> Retry {
        self.record(uid, most, false)
    }

    /// As [`Attempts::failed_for`] with [`MOST`], for a failure whose back-off [`Attempts::wake`] ends.
    pub(crate) fn failed_until_woken(&self, uid: &str) -> Retry {
        self.record(uid, MOST, true)
    }

    fn record(&self, uid: &str, most: Duration, is_until_woken: bool) -> Retry {
        self.forget();
        let now = Instant::now();
        let mut failures = self.failures();
        let before = failures.get(uid).filter(|failed| !(is_until_woken && failed.is_woken));
        let before = before.map_or(0, |failed| failed.count);
        let is_longest = most < MOST && whole(before) >= most;
        let count = if is_longest { before } else { before.saturating_add(1) };
        let retry = Retry { attempt: count, after: delay_for(count, random(), most) };
        let (not_before, ended_not_before) = (now + retry.after, now + FIRST);
        let failed = Failures { count, not_before, ended_not_before, is_until_woken, is_woken: false };
        failures.insert(uid.to_owned(), failed);
        self.metrics.failing(failures.len());
        retry
    }

    /// Ends the back-off of an object that waits for this, once for each failure and a second after the failure at the
    /// earliest. If the next failure waits too, it begins a new back-off of a second, also if the object has not
    /// waited: the volume is often free a moment later, and a pass may have looked at the volume before the wake and
    /// record its failure afterwards. Returns whether the object has waited.
    pub(crate) fn wake(&self, uid: &str) -> bool {
        self.failures().get_mut(uid).is_some_and(Failures::wake)
    }

    /// As [`Attempts::wake`], for all keys in `of`. Returns those that have waited.
    pub(crate) fn wake_all(&self, of: impl Fn(&str) -> bool) -> HashSet<String> {
        let mut failures = self.failures();
        let woken = failures.iter_mut().filter_map(|(key, failed)| (of(key) && failed.wake()).then(|| key.clone()));
        woken.collect()
    }

    /// Ends the back-offs of the keys with this prefix, except for those in `except`, and removes each a second after
    /// its failure at the earliest. Until then, the key waits: the same request in a loop causes one pass a second at
    /// most. Returns the time until all of them can be removed.
    pub(crate) fn end_all(&self, prefix: &str, except: &[&str]) -> Option<Duration> {
        let now = Instant::now();
        let mut wait = Duration::ZERO;
        let mut failures = self.failures();
        failures.retain(|key, failed| {
            if !key.starts_with(prefix) || except.contains(&key.as_str()) {
                return true;
            }
            (failed.count, failed.not_before) = (0, failed.ended_not_before);
            let left = failed.ended_not_before.saturating_duration_since(now);
            wait = wait.max(left);
            !left.is_zero()
        });
        self.metrics.failing(failures.len());
        (!wait.is_zero()).then_some(wait)
    }

    pub(crate) fn succeeded(&self, uid: &str) {
        let mut failures = self.failures();
        failures.remove(uid);
        self.metrics.failing(failures.len());
    }

    /// Removes objects whose last retry was long ago: deleted objects never succeed.
    pub(crate) fn forget(&self) {
        let now = Instant::now();
        let mut failures = self.failures();
        failures.retain(|_, failed| failed.not_before + 2 * MOST > now);
        self.metrics.failing(failures.len());
    }

    /// Remaining back-off of the object.
    pub(crate) fn wait(&self, uid: &str) -> Option<Duration> {
        let left = self.failures().get(uid)?.not_before.saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(left)
    }

    pub(crate) fn is_failing(&self, uid: &str) -> bool {
        self.failures().contains_key(uid)
    }

    fn failures(&self) -> MutexGuard<'_, HashMap<String, Failures>> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn pauses_are_between_1_second_and_5_minutes(attempt in 0u32.., random: u64) {
            let wait = delay(attempt, random);
            prop_assert!((FIRST..=MOST).contains(&wait), "{wait:?}");
            prop_assert!(delay(attempt, 0) <= delay(attempt.saturating_add(1), 0));
            prop_assert!(wait >= delay(attempt, 0) / 2);
        }
    }

    #[test]
    fn a_part_of_a_pause_is_random() {
        let pauses = [0, 250, 500, 501].map(|random| jittered(MOST, random));
        assert_eq!(pauses, [MOST, MOST * 3 / 4, MOST / 2, MOST]);
    }

    #[test]
    fn pauses_double() {
        let waits: Vec<_> = (1..=10).map(|attempt| delay(attempt, 0).as_secs()).collect();
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300]);
    }

    #[tokio::test(start_paused = true)]
    async fn an_object_waits_until_a_success_resets_it() {
        let attempts = Attempts::default();
        assert_eq!(attempts.wait("a"), None);
        let first = attempts.failed_for("a", MOST);
        assert_eq!(first.attempt, 1);
        assert_eq!(attempts.wait("a"), Some(first.after));
        assert_eq!(attempts.wait("b"), None);
        tokio::time::advance(first.after).await;
        assert_eq!(attempts.wait("a"), None);
        assert_eq!(attempts.failed_for("a", MOST).attempt, 2);
        attempts.succeeded("a");
        assert_eq!(attempts.failed_for("a", MOST).attempt, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn failures_with_short_pauses_do_not_lengthen_others() {
        let attempts = Attempts::default();
        for _ in 0..20 {
            assert!(attempts.failed_for("a", OUTAGE).after <= OUTAGE);
        }
        assert_eq!(attempts.failed_for("a", MOST).attempt, 6);
        let retry = attempts.failed_for("a", OUTAGE);
        assert!(retry.attempt == 6 && retry.after <= OUTAGE, "{retry:?}");
        assert_eq!(attempts.failed_for("a", MOST).attempt, 7, "nor do they shorten them");
    }

    /// Wakes in a loop cause one pass a second at most.
    #[tokio::test(start_paused = true)]
    async fn a_wake_ends_a_back_off_once_for_each_failure() {
        let attempts = Attempts::default();
        for _ in 0..10 {
            attempts.failed_until_woken("a");
        }
        assert!(!attempts.wake("b"));
        assert!(attempts.wait("a") > Some(FIRST));
        assert!(attempts.wake("a") && !attempts.wake("a"));
        assert_eq!(attempts.wait("a"), Some(FIRST));
        tokio::time::advance(FIRST).await;
        assert_eq!(attempts.wait("a"), None);
        assert!(!attempts.wake("a"), "it has had its pass");
        assert_eq!(attempts.failed_until_woken("a").attempt, 1, "the back-off begins again");
        for _ in 0..10 {
            attempts.failed_until_woken("a");
        }
        tokio::time::advance(2 * FIRST).await;
        assert!(attempts.wait("a").is_some());
        assert!(attempts.wake("a"));
        assert_eq!(attempts.wait("a"), None, "the failure is more than a second ago");
        attempts.failed_until_woken("a");
        let other = attempts.failed_for("a", MOST);
        assert!(!attempts.wake("a"), "the last failure had another reason");
        assert_eq!(attempts.wait("a"), Some(other.after));
        assert_eq!(attempts.failed_until_woken("a").attempt, 1, "its pass may have looked before the wake");
    }

    /// Regression: the back-offs of all failures began again, and later that of a pass that had looked before the wake
    /// did not.
    #[tokio::test(start_paused = true)]
    async fn a_wake_changes_only_failures_that_wait_for_it() {
        let attempts = Attempts::default();
        for key in ["waits", "other"] {
            attempts.failed_until_woken(key);
        }
        for key in ["failed", "looked"] {
            attempts.failed_for(key, MOST);
        }
        assert_eq!(attempts.wake_all(|key| key != "other"), ["waits".to_owned()].into());
        assert!(attempts.wake_all(|key| key != "other").is_empty(), "once for each failure");
        assert!(attempts.wake("other") && !attempts.wake("failed"));
        assert_eq!(["waits", "failed"].map(|key| attempts.failed_for(key, MOST).attempt), [1, 2]);
        assert_eq!(attempts.failed_until_woken("looked").attempt, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn objects_that_are_not_retried_are_removed() {
        let attempts = Attempts::default();
        attempts.failed_for("gone", MOST);
        tokio::time::advance(3 * MOST).await;
        attempts.failed_for("other", MOST);
        assert!(!attempts.is_failing("gone"));
        assert!(attempts.is_failing("other"));
    }
}
