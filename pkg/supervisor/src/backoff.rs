//! Exponential back-off with jitter.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// Waiting times between the attempts of a service. Each failure in a row doubles the time. Jitter spreads the restarts
/// of services that failed together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The shortest wait.
    pub first: Duration,
    /// The longest wait.
    pub most: Duration,
    /// Health of at least this duration resets the count of failures.
    pub settled: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { first: Duration::from_secs(1), most: Duration::from_secs(5 * 60), settled: Duration::from_secs(60) }
    }
}

impl Backoff {
    /// Waiting time after failure number `failures` in a row, from 1. The upper bound doubles with each failure up to
    /// the longest wait. `jitter`, any `u32`, selects a time between half of the bound (at least the shortest wait) and
    /// the bound.
    pub(crate) fn wait(&self, failures: u32, jitter: u32) -> Duration {
        let doubled = 2_u32.checked_pow(failures.max(1)).unwrap_or(u32::MAX);
        let upper = self.first.saturating_mul(doubled).min(self.most);
        let lower = (upper / 2).max(self.first).min(upper);
        lower + (upper - lower).mul_f64(f64::from(jitter) / f64::from(u32::MAX))
    }

    /// Number of failures in a row, including a new one. `healthy` is how long the service was healthy before it
    /// failed.
    pub(crate) fn count(&self, failures: u32, healthy: Option<Duration>) -> u32 {
        match healthy {
            Some(time) if time >= self.settled => 1,
            Some(_) | None => failures.saturating_add(1),
        }
    }
}

/// Jitter from the standard library's random seeds of hash maps, which are good enough to spread restarts.
pub(crate) fn jitter() -> u32 {
    (RandomState::new().hash_one(()) >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_wait_is_between_the_shortest_and_the_longest(failures: u32, jitter: u32, first in 1_u64..10_000, more in 0_u64..1_000_000) {
            let backoff = Backoff {
                first: Duration::from_millis(first),
                most: Duration::from_millis(first + more),
                settled: Duration::from_secs(60),
            };
            let wait = backoff.wait(failures, jitter);
            prop_assert!(wait >= backoff.first && wait <= backoff.most, "{wait:?}");
        }

        #[test]
        fn with_equal_jitter_a_later_wait_is_never_shorter(failures in 0_u32..1000, jitter: u32) {
            let backoff = Backoff::default();
            prop_assert!(backoff.wait(failures, jitter) <= backoff.wait(failures + 1, jitter));
        }
    }

    #[test]
    fn waits_double_up_to_the_longest() {
        let backoff = Backoff::default();
        let longest: Vec<u64> = (1..=10).map(|failures| backoff.wait(failures, u32::MAX).as_secs()).collect();
        assert_eq!(longest, [2, 4, 8, 16, 32, 64, 128, 256, 300, 300]);
        assert_eq!(backoff.wait(1, 0), Duration::from_secs(1));
        assert_eq!(backoff.wait(1000, 0), Duration::from_secs(150));
    }

    #[test]
    fn only_settled_health_resets_the_count() {
        let backoff = Backoff::default();
        assert_eq!(backoff.count(7, None), 8);
        assert_eq!(backoff.count(7, Some(Duration::from_secs(59))), 8);
        assert_eq!(backoff.count(7, Some(Duration::from_secs(60))), 1);
        assert_eq!(backoff.count(u32::MAX, None), u32::MAX);
    }
}
