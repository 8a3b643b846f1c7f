//! How much one may say. Pure: the caller has the clock.

use std::collections::BTreeMap;
use std::time::Duration;

/// How much of one kind is let through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Lines at once.
    pub burst: u32,
    /// Lines in a second, on average.
    pub per_second: u32,
    /// How long after a line was left out it is told how many were.
    pub window: Duration,
}

impl Default for Rate {
    /// A start of the node may say much at once: the kernel a thousand lines. What goes on for long fills the disk's
    /// part for the log, of 40 MiB on a disk of 8 GiB, in some hours, and pushes out what was said before.
    fn default() -> Self {
        Self { burst: 2000, per_second: 20, window: Duration::from_secs(10) }
    }
}

/// A token bucket. Its last quarter is for warnings and errors: information does not push them out.
#[derive(Clone, Debug)]
pub struct Bucket {
    /// Thousandths of a line that may be said now.
    left: u64,
    /// Until when they were counted.
    at: Duration,
    /// Lines left out, and since when, until that is told.
    suppressed: Option<(u64, Duration)>,
}

/// Of a line, in a bucket.
const LINE: u64 = 1000;

impl Bucket {
    /// A full one. `now` is the time since any moment that stays the same.
    pub fn full(rate: Rate, now: Duration) -> Self {
        Self { left: LINE * u64::from(rate.burst), at: now, suppressed: None }
    }

    /// Whether a line may be said now. A clock that goes back stands still.
    pub fn take(&mut self, rate: Rate, now: Duration, is_urgent: bool) -> bool {
        let most = LINE * u64::from(rate.burst);
        let passed = now.saturating_sub(self.at);
        let gained = passed.as_millis().saturating_mul(u128::from(rate.per_second));
        // Less than a thousandth of a line is not lost: the clock waits for it.
        if gained > 0 {
            self.left = self.left.saturating_add(u64::try_from(gained).unwrap_or(most)).min(most);
            self.at = self.at.max(now);
        }
        let needed = if is_urgent { LINE } else { LINE + most / 4 };
        if self.left >= needed {
            self.left -= LINE;
            return true;
        }
        let (count, _) = self.suppressed.get_or_insert((0, now));
        *count += 1;
        false
    }

    /// How many lines were left out, when it is time to tell.
    pub fn report(&mut self, rate: Rate, now: Duration) -> Option<u64> {
        let (_, since) = self.suppressed?;
        let is_over = now.saturating_sub(since) >= rate.window;
        if is_over { self.suppressed.take().map(|(count, _)| count) } else { None }
    }
}

/// Buckets by name.
#[derive(Debug)]
pub(crate) struct Limiter {
    rate: Rate,
    buckets: BTreeMap<String, Bucket>,
}

/// Names come from the node's own program. This many are a mistake of ours, and share a bucket.
const MOST: usize = 200;
const OTHERS: &str = "others";

impl Limiter {
    pub(crate) fn new(rate: Rate) -> Self {
        Self { rate, buckets: BTreeMap::new() }
    }

    pub(crate) fn take(&mut self, name: &str, now: Duration, is_urgent: bool) -> bool {
        if let Some(bucket) = self.buckets.get_mut(name) {
            return bucket.take(self.rate, now, is_urgent);
        }
        let name = if self.buckets.len() < MOST { name } else { OTHERS };
        let bucket = self.buckets.entry(name.to_owned()).or_insert_with(|| Bucket::full(self.rate, now));
        bucket.take(self.rate, now, is_urgent)
    }

    /// Who was cut off, and how many lines.
    pub(crate) fn report(&mut self, now: Duration) -> Vec<(String, u64)> {
        let told = |(name, bucket): (&String, &mut Bucket)| Some((name.clone(), bucket.report(self.rate, now)?));
        self.buckets.iter_mut().filter_map(told).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RATE: Rate = Rate { burst: 8, per_second: 2, window: Duration::from_secs(10) };

    fn said(bucket: &mut Bucket, lines: usize, at: Duration, is_urgent: bool) -> usize {
        (0..lines).filter(|_| bucket.take(RATE, at, is_urgent)).count()
    }

    #[test]
    fn the_last_quarter_is_for_what_is_urgent() {
        let mut bucket = Bucket::full(RATE, Duration::ZERO);
        assert_eq!(said(&mut bucket, 20, Duration::ZERO, false), 6);
        assert_eq!(said(&mut bucket, 20, Duration::ZERO, true), 2);
        assert_eq!(said(&mut bucket, 20, Duration::from_secs(1), true), 2);
    }

    #[test]
    fn what_was_left_out_is_told_once_when_the_window_is_over() {
        let mut bucket = Bucket::full(RATE, Duration::ZERO);
        said(&mut bucket, 20, Duration::ZERO, true);
        assert_eq!(bucket.report(RATE, Duration::from_secs(9)), None);
        assert_eq!(bucket.report(RATE, Duration::from_secs(10)), Some(12));
        assert_eq!(bucket.report(RATE, Duration::from_secs(99)), None);
    }

    #[test]
    fn one_does_not_push_out_another() {
        let mut limiter = Limiter::new(RATE);
        assert_eq!((0..99).filter(|_| limiter.take("kubelet", Duration::ZERO, true)).count(), 8);
        assert!(limiter.take("etcd", Duration::ZERO, true));
        assert_eq!(limiter.report(RATE.window), [("kubelet".to_owned(), 91)]);
    }

    #[test]
    fn names_without_end_take_no_memory_without_end() {
        let mut limiter = Limiter::new(RATE);
        for name in 0..10_000 {
            limiter.take(&name.to_string(), Duration::ZERO, true);
        }
        assert!(limiter.buckets.len() <= MOST + 1);
    }

    proptest! {
        #[test]
        fn no_more_than_the_rate_and_the_burst_is_let_through(
            steps in prop::collection::vec((0_u64..3000, 0_usize..12, any::<bool>()), 1..60),
        ) {
            let mut bucket = Bucket::full(RATE, Duration::ZERO);
            let (mut now, mut passed, mut asked, mut told) = (Duration::ZERO, 0, 0, 0);
            for (wait, lines, is_urgent) in steps {
                now += Duration::from_millis(wait);
                asked += lines as u64;
                passed += said(&mut bucket, lines, now, is_urgent) as u64;
                told += bucket.report(RATE, now).unwrap_or(0);
                let most = u64::from(RATE.burst) + u64::from(RATE.per_second) * now.as_millis() as u64 / 1000;
                prop_assert!(passed <= most, "{passed} > {most}");
            }
            told += bucket.report(RATE, now + RATE.window).unwrap_or(0);
            prop_assert_eq!(passed + told, asked);
        }

        #[test]
        fn no_clock_makes_it_panic(times in prop::collection::vec(any::<u64>(), 1..20), rate in any::<(u32, u32)>()) {
            let rate = Rate { burst: rate.0, per_second: rate.1, ..RATE };
            let mut bucket = Bucket::full(rate, Duration::ZERO);
            for at in times {
                bucket.take(rate, Duration::from_millis(at), true);
                bucket.report(rate, Duration::from_secs(at));
            }
        }
    }
}
