//! Rate limits of log sources. No I/O: the caller passes the time.

use std::collections::BTreeMap;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    pub burst: u32,
    pub per_second: u32,
    /// Time after which suppressed lines are reported.
    pub window: Duration,
}

impl Default for Rate {
    /// A boot may produce many lines at once: the kernel a thousand. A source that uses the full rate fills the log's
    /// part of the disk (40 MiB on a disk of 8 GiB) in some hours and replaces older lines.
    fn default() -> Self {
        Self { burst: 2000, per_second: 20, window: Duration::from_secs(10) }
    }
}

/// A token bucket. The last quarter is reserved for warnings and errors.
#[derive(Clone, Debug)]
struct Bucket {
    /// Available tokens in thousandths of a line.
    left: u64,
    at: Duration,
    /// Number of suppressed lines that were not reported yet, and the time of the first.
    suppressed: Option<(u64, Duration)>,
}

const LINE: u64 = 1000;

impl Bucket {
    /// A full bucket. `now` is the time since a fixed moment.
    fn full(rate: Rate, now: Duration) -> Self {
        Self { left: LINE * u64::from(rate.burst), at: now, suppressed: None }
    }

    /// Whether a line is within the limit. A clock that goes back is treated as stopped.
    fn take(&mut self, rate: Rate, now: Duration, is_urgent: bool) -> bool {
        let most = LINE * u64::from(rate.burst);
        let passed = now.saturating_sub(self.at);
        let gained = passed.as_millis().saturating_mul(u128::from(rate.per_second));
        // Tokens below a thousandth of a line are not lost: `at` only advances by whole tokens.
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

    /// The number of suppressed lines, once the window is over.
    fn report(&mut self, rate: Rate, now: Duration) -> Option<u64> {
        let (_, since) = self.suppressed?;
        let is_over = now.saturating_sub(since) >= rate.window;
        if is_over { self.suppressed.take().map(|(count, _)| count) } else { None }
    }
}

#[derive(Debug)]
pub(crate) struct Limiter {
    rate: Rate,
    buckets: BTreeMap<String, Bucket>,
}

/// Maximum number of sources. Names come from this program. More names are a bug, and share a bucket.
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

    /// Sources with their numbers of suppressed lines.
    pub(crate) fn report(&mut self, now: Duration) -> Vec<(String, u64)> {
        let reported = |(name, bucket): (&String, &mut Bucket)| Some((name.clone(), bucket.report(self.rate, now)?));
        self.buckets.iter_mut().filter_map(reported).collect()
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
    fn the_last_quarter_is_reserved_for_urgent_lines() {
        let mut bucket = Bucket::full(RATE, Duration::ZERO);
        assert_eq!(said(&mut bucket, 20, Duration::ZERO, false), 6);
        assert_eq!(said(&mut bucket, 20, Duration::ZERO, true), 2);
        assert_eq!(said(&mut bucket, 20, Duration::from_secs(1), true), 2);
    }

    #[test]
    fn suppressed_lines_are_reported_once_after_the_window() {
        let mut bucket = Bucket::full(RATE, Duration::ZERO);
        said(&mut bucket, 20, Duration::ZERO, true);
        assert_eq!(bucket.report(RATE, Duration::from_secs(9)), None);
        assert_eq!(bucket.report(RATE, Duration::from_secs(10)), Some(12));
        assert_eq!(bucket.report(RATE, Duration::from_secs(99)), None);
    }

    #[test]
    fn sources_have_separate_limits() {
        let mut limiter = Limiter::new(RATE);
        assert_eq!((0..99).filter(|_| limiter.take("kubelet", Duration::ZERO, true)).count(), 8);
        assert!(limiter.take("etcd", Duration::ZERO, true));
        assert_eq!(limiter.report(RATE.window), [("kubelet".to_owned(), 91)]);
    }

    #[test]
    fn the_number_of_buckets_is_limited() {
        let mut limiter = Limiter::new(RATE);
        for name in 0..10_000 {
            limiter.take(&name.to_string(), Duration::ZERO, true);
        }
        assert!(limiter.buckets.len() <= MOST + 1);
    }

    proptest! {
        #[test]
        fn the_rate_and_the_burst_are_never_exceeded(
            steps in prop::collection::vec((0_u64..3000, 0_usize..12, any::<bool>()), 1..60),
        ) {
            let mut bucket = Bucket::full(RATE, Duration::ZERO);
            let (mut now, mut passed, mut asked, mut reported) = (Duration::ZERO, 0, 0, 0);
            for (wait, lines, is_urgent) in steps {
                now += Duration::from_millis(wait);
                asked += lines as u64;
                passed += said(&mut bucket, lines, now, is_urgent) as u64;
                reported += bucket.report(RATE, now).unwrap_or(0);
                let most = u64::from(RATE.burst) + u64::from(RATE.per_second) * now.as_millis() as u64 / 1000;
                prop_assert!(passed <= most, "{passed} > {most}");
            }
            reported += bucket.report(RATE, now + RATE.window).unwrap_or(0);
            prop_assert_eq!(passed + reported, asked);
        }

        #[test]
        fn any_clock_is_accepted(times in prop::collection::vec(any::<u64>(), 1..20), rate in any::<(u32, u32)>()) {
            let rate = Rate { burst: rate.0, per_second: rate.1, ..RATE };
            let mut bucket = Bucket::full(rate, Duration::ZERO);
            for at in times {
                bucket.take(rate, Duration::from_millis(at), true);
                bucket.report(rate, Duration::from_secs(at));
            }
        }
    }
}
