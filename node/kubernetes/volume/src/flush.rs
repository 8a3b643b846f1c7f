//! Pauses while a copy of files waits until its source fits its size: between the flushes of the source, and between
//! the passes over the copy, which flush too. Pure.
//!
//! A flush (`syncfs`) writes the data of all volumes, and the tenant of the source decides for how long it exceeds its
//! size.

use std::time::{Duration, Instant};

/// First and longest pause. Each pause is twice as long as the one before it. They begin again with the first if no
/// flush, or no pass, begins within a minute after the end of a pause.
const PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_mins(1)];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Flush {
    next: Instant,
    pause: Duration,
}

impl Flush {
    /// The pause after a flush, or a pass, from `begin` to `end`. A pass over millions of files takes minutes.
    pub(crate) fn after(former: Option<Self>, begin: Instant, end: Instant) -> Self {
        let recent = former.filter(|former| begin < former.next + PAUSES[1]);
        let pause = recent.map_or(PAUSES[0], |former| PAUSES[1].min(former.pause * 2));
        Self { next: end + pause, pause }
    }

    pub(crate) fn is_due(former: Option<Self>, now: Instant) -> bool {
        former.is_none_or(|former| former.next <= now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: while a tenant exceeded its size, the data of all volumes was written twice a second.
    #[test]
    fn flushes_of_a_source_that_exceeds_its_size_become_rare() {
        let begin = Instant::now();
        let (mut flush, mut now, mut count) = (None, begin, 0);
        while now < begin + 60 * PAUSES[1] {
            if Flush::is_due(flush, now) {
                flush = Some(Flush::after(flush, now, now));
                count += 1;
            }
            now += Duration::from_millis(500);
        }
        assert!((60..=70).contains(&count), "{count}");
        let [first, rare] = [None, flush].map(|former| Flush::after(former, now, now));
        assert_eq!((first.pause, rare.pause), (PAUSES[0], PAUSES[1]));
        assert!(!Flush::is_due(Some(first), now));
        let later = now + 3 * PAUSES[1];
        assert_eq!(Flush::after(Some(rare), later, later).pause, PAUSES[0]);
    }

    /// Regression: after a pass of more than a minute, the next one began a second later.
    #[test]
    fn passes_that_take_minutes_become_rare() {
        let (mut flush, mut now) = (None, Instant::now());
        for _ in 0..8 {
            let begin = now;
            now += 3 * PAUSES[1];
            let next = Flush::after(flush, begin, now);
            (flush, now) = (Some(next), next.next);
        }
        assert_eq!(flush.map(|flush| flush.pause), Some(PAUSES[1]));
    }
}
