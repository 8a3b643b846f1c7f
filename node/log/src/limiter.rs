//! Rate limits of log sources. No I/O: the caller passes the time.

use std::collections::BTreeMap;
use std::time::Duration;

use cluster::{Rate, TokenBucket};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceLimit {
    /// Lines. The last quarter of the burst is reserved for warnings and errors.
    pub rate: Rate,
    /// Time after which suppressed lines are reported.
    pub window: Duration,
}

impl Default for SourceLimit {
    /// A boot may produce many lines at once: the kernel a thousand. A source that uses the full rate fills the log's
    /// part of the disk (40 MiB on a disk of 8 GiB) in some hours and replaces older lines.
    fn default() -> Self {
        Self { rate: Rate { burst: 2000, per_second: 20 }, window: Duration::from_secs(10) }
    }
}

#[derive(Debug)]
pub(crate) struct Limiter {
    limit: SourceLimit,
    sources: BTreeMap<String, Source>,
}

#[derive(Debug, Default)]
struct Source {
    lines: TokenBucket,
    /// Number of suppressed lines that were not reported yet, and the time of the first.
    suppressed: Option<(u64, Duration)>,
}

/// Maximum number of sources. Names come from this program. More names are a bug, and count as one source.
const MOST: usize = 200;
const OTHERS: &str = "others";

impl Limiter {
    pub(crate) fn new(limit: SourceLimit) -> Self {
        Self { limit, sources: BTreeMap::new() }
    }

    /// Takes a line of the source `name`. `Err` has the source that a suppressed line counts to.
    pub(crate) fn take<'a>(&mut self, name: &'a str, now: Duration, is_urgent: bool) -> Result<(), &'a str> {
        let name = if self.sources.len() < MOST || self.sources.contains_key(name) { name } else { OTHERS };
        // `entry` would allocate the name for each line.
        let source = match self.sources.get_mut(name) {
            Some(source) => source,
            None => self.sources.entry(name.to_owned()).or_default(),
        };
        let reserve = if is_urgent { 0 } else { self.limit.rate.burst / 4 };
        if source.lines.take(self.limit.rate, reserve, now) {
            return Ok(());
        }
        source.suppressed.get_or_insert((0, now)).0 += 1;
        Err(name)
    }

    /// Sources with their numbers of suppressed lines, once the window is over.
    pub(crate) fn report(&mut self, now: Duration) -> Vec<(String, u64)> {
        let window = self.limit.window;
        let reported = |(name, source): (&String, &mut Source)| {
            let (count, _) = source.suppressed.take_if(|(_, since)| now.saturating_sub(*since) >= window)?;
            Some((name.clone(), count))
        };
        self.sources.iter_mut().filter_map(reported).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMIT: SourceLimit = SourceLimit { rate: Rate { burst: 8, per_second: 2 }, window: Duration::from_secs(10) };

    fn said(limiter: &mut Limiter, lines: usize, at: Duration, is_urgent: bool) -> usize {
        (0..lines).filter(|_| limiter.take("kubelet", at, is_urgent).is_ok()).count()
    }

    fn reported(limiter: &mut Limiter, at: Duration) -> Option<u64> {
        limiter.report(at).pop().map(|(_, count)| count)
    }

    #[test]
    fn the_last_quarter_is_reserved_for_urgent_lines() {
        let mut limiter = Limiter::new(LIMIT);
        assert_eq!(said(&mut limiter, 20, Duration::ZERO, false), 6);
        assert_eq!(said(&mut limiter, 20, Duration::ZERO, true), 2);
        assert_eq!(said(&mut limiter, 20, Duration::from_secs(1), true), 2);
    }

    #[test]
    fn suppressed_lines_are_reported_once_after_the_window() {
        let mut limiter = Limiter::new(LIMIT);
        said(&mut limiter, 20, Duration::ZERO, true);
        assert_eq!(reported(&mut limiter, Duration::from_secs(9)), None);
        assert_eq!(reported(&mut limiter, Duration::from_secs(10)), Some(12));
        assert_eq!(reported(&mut limiter, Duration::from_secs(99)), None);
    }

    #[test]
    fn sources_have_separate_limits() {
        let mut limiter = Limiter::new(LIMIT);
        assert_eq!(said(&mut limiter, 99, Duration::ZERO, true), 8);
        assert_eq!(limiter.take("etcd", Duration::ZERO, true), Ok(()));
        assert_eq!(limiter.report(LIMIT.window), [("kubelet".to_owned(), 91)]);
    }

    #[test]
    fn sources_above_the_maximum_share_a_limit_and_a_name() {
        let mut limiter = Limiter::new(LIMIT);
        let names: Vec<String> = (0..10_000).map(|name| name.to_string()).collect();
        let suppressed: Vec<_> =
            names.iter().filter_map(|name| limiter.take(name, Duration::ZERO, true).err()).collect();
        assert_eq!(suppressed, vec![OTHERS; names.len() - MOST - 8]);
        assert_eq!(limiter.sources.len(), MOST + 1);
        let earlier = (0..8).find_map(|_| limiter.take("0", Duration::ZERO, true).err());
        assert_eq!(earlier, Some("0"));
    }

    proptest! {
        #[test]
        fn the_rate_and_the_burst_are_never_exceeded(
            steps in prop::collection::vec((0_u64..3000, 0_usize..12, any::<bool>()), 1..60),
        ) {
            let mut limiter = Limiter::new(LIMIT);
            let (mut now, mut passed, mut asked, mut suppressed) = (Duration::ZERO, 0, 0, 0);
            for (wait, lines, is_urgent) in steps {
                now += Duration::from_millis(wait);
                asked += lines as u64;
                passed += said(&mut limiter, lines, now, is_urgent) as u64;
                suppressed += reported(&mut limiter, now).unwrap_or(0);
                let Rate { burst, per_second } = LIMIT.rate;
                let most = u64::from(burst) + u64::from(per_second) * now.as_millis() as u64 / 1000;
                prop_assert!(passed <= most, "{passed} > {most}");
            }
            suppressed += reported(&mut limiter, now + LIMIT.window).unwrap_or(0);
            prop_assert_eq!(passed + suppressed, asked);
        }

        #[test]
        fn any_clock_is_accepted(times in prop::collection::vec(any::<u64>(), 1..20), rate in any::<(u32, u32)>()) {
            let mut limiter = Limiter::new(SourceLimit { rate: Rate { burst: rate.0, per_second: rate.1 }, ..LIMIT });
            for at in times {
                said(&mut limiter, 1, Duration::from_millis(at), true);
                reported(&mut limiter, Duration::from_secs(at));
            }
        }
    }
}
