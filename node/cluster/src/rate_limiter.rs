//! [`TokenBucket`] and [`RateLimiter`]. No I/O: the caller passes the time.

use std::collections::BTreeMap;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    pub burst: u32,
    pub per_second: u32,
}

/// A token bucket for each key. A key without a bucket has all tokens.
#[derive(Debug)]
pub struct RateLimiter {
    rate: Rate,
    buckets: BTreeMap<String, TokenBucket>,
}

/// A new bucket has all tokens.
#[derive(Debug, Default)]
pub struct TokenBucket {
    /// Missing tokens in billionths of a token: a rate of one per second adds one in each nanosecond.
    missing: u128,
    at: Duration,
}

const TOKEN: u128 = 1_000_000_000;

impl RateLimiter {
    pub const fn new(rate: Rate) -> Self {
        Self { rate, buckets: BTreeMap::new() }
    }

    /// Takes a token of the key, see [`TokenBucket::take`].
    pub fn take(&mut self, key: &str, now: Duration) -> bool {
        let rate = self.rate;
        if let Some(bucket) = self.buckets.get_mut(key) {
            return bucket.take(rate, 0, now);
        }
        // The memory is bounded by the number of keys that were used recently.
        self.buckets.retain(|_, bucket| bucket.missing_at(rate, now) > 0);
        self.buckets.entry(key.to_owned()).or_default().take(rate, 0, now)
    }
}

impl TokenBucket {
    /// Takes a token, unless fewer than `reserve` tokens would be left. `now` is the time since a fixed moment. A clock
    /// that goes back is treated as stopped.
    pub fn take(&mut self, rate: Rate, reserve: u32, now: Duration) -> bool {
        let missing = self.missing_at(rate, now) + TOKEN;
        let may = missing + TOKEN * u128::from(reserve) <= TOKEN * u128::from(rate.burst);
        if may {
            self.missing = missing;
        }
        may
    }

    fn missing_at(&mut self, rate: Rate, now: Duration) -> u128 {
        let added = now.saturating_sub(self.at).as_nanos() * u128::from(rate.per_second);
        self.missing = self.missing.saturating_sub(added);
        self.at = self.at.max(now);
        self.missing
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::EVENT_RATE;

    #[test]
    fn a_namespace_has_a_limited_rate_of_events() {
        let (mut limiter, interval) = (RateLimiter::new(EVENT_RATE), Duration::from_secs(1) / EVENT_RATE.per_second);
        let mut sent = |namespace: &str, intervals: u32| {
            (0..2 * EVENT_RATE.burst).filter(|_| limiter.take(namespace, interval * intervals)).count()
        };
        let most = usize::try_from(EVENT_RATE.burst).unwrap();
        assert_eq!([sent("one", 0), sent("one", 0), sent("two", 0)], [most, 0, most]);
        assert_eq!(sent("one", 3), 3);
        assert_eq!(sent("one", EVENT_RATE.burst + 3), most);
        assert_eq!(sent("one", 3), 0, "the clock went back");
    }

    #[test]
    fn keys_without_recent_use_have_no_memory() {
        let mut limiter = RateLimiter::new(EVENT_RATE);
        for key in 0_u64..100 {
            assert!(limiter.take(&key.to_string(), Duration::from_secs(key)));
        }
        assert_eq!(limiter.buckets.len(), 1);
    }
}
