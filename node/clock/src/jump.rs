//! Detects a clock jump: time that passed unseen by the clock or by timers. Pure.
//!
//! | | `CLOCK_REALTIME` | RTC | `CLOCK_MONOTONIC` | `CLOCK_BOOTTIME` |
//! |---|---|---|---|---|
//! | VM stopped: restored from a saved state, migrated, paused, host asleep | stops | goes on | stops | stops |
//! | kernel suspended | set at the resume | goes on | stops | goes on |
//!
//! Only changes from one look to the next count, not differences: an RTC that runs fast, or in a time zone, is no jump.
//! Only a forward change of the RTC counts. Whether a clock is ahead, time servers decide.
//!
//! Linux 6.12 reseeds its random numbers when the generation ID of a VM changes (vmgenid), but sends no uevent. A VM that
//! was restored shows in its RTC.

use crate::Nanoseconds;

const SECOND: Nanoseconds = 1_000_000_000;

/// A jump by less is ignored. Nothing depends on it: the shortest lease in a cluster is renewed every 10 s, signers backdate
/// certificates by minutes, and the time servers' next answer corrects the clock. A live migration stops a VM for less.
///
/// The RTC counts whole seconds, so that a change of it is certain only from 2 s on: every jump by 3 s or more is found.
const LEAST: Nanoseconds = SECOND;

/// A difference of two clocks. They are read one after the other, so that it is known only to lie between two bounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Difference {
    least: Nanoseconds,
    most: Nanoseconds,
}

impl Difference {
    /// Of a clock that said at least `least` and at most `most`, to another one that was read before and after it.
    #[must_use]
    pub const fn new([least, most]: [Nanoseconds; 2], [before, after]: [Nanoseconds; 2]) -> Self {
        Self { least: least.saturating_sub(after), most: most.saturating_sub(before) }
    }

    /// Whether the clocks may have said the same.
    const fn may_be_zero(self) -> bool {
        self.least <= LEAST && self.most >= -LEAST
    }

    /// How much it grew since `before`, if it did for certain.
    fn growth(self, before: Self) -> Option<Nanoseconds> {
        let (least, most) = (self.least.saturating_sub(before.most), self.most.saturating_sub(before.least));
        (least > LEAST).then(|| least.midpoint(most))
    }
}

/// The machine's clocks, compared at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// What the RTC is ahead of `CLOCK_REALTIME`. `None` if it cannot be read.
    pub rtc: Option<Difference>,
    /// What `CLOCK_BOOTTIME` is ahead of `CLOCK_MONOTONIC`: how long the kernel was suspended since it started.
    pub suspended: Difference,
}

/// Time that passed unseen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Jump {
    /// What `CLOCK_REALTIME` lacks, by the RTC.
    pub(crate) behind: Option<Nanoseconds>,
    /// How long the kernel was suspended. It has set `CLOCK_REALTIME` since.
    pub(crate) suspended: Option<Nanoseconds>,
}

impl Jump {
    /// What happened between two looks.
    pub(crate) fn between(before: Look, now: Look) -> Option<Self> {
        // The kernel sets the RTC by a clock that is kept by time servers; then the two say the same.
        let rtc = now.rtc.filter(|rtc| !rtc.may_be_zero());
        let behind = rtc.zip(before.rtc).and_then(|(rtc, before)| rtc.growth(before));
        let suspended = now.suspended.growth(before.suspended);
        (behind.is_some() || suspended.is_some()).then_some(Self { behind, suspended })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HOUR: Nanoseconds = 3600 * SECOND;

    /// Longer than a machine without time for its VM keeps it from reading the next clock, mostly.
    const DELAY: Nanoseconds = 10 * SECOND;

    /// Looks at a machine whose clock reads `clock` at first, with its RTC ahead by `rtc`.
    fn look(clock: Nanoseconds, rtc: Nanoseconds, suspended: Nanoseconds, delays: [Nanoseconds; 2]) -> Look {
        let seconds = (clock + rtc + delays[0]).div_euclid(SECOND) * SECOND;
        let [before, after] = [clock, clock + delays[0] + delays[1]];
        Look {
            rtc: Some(Difference::new([seconds, seconds + SECOND], [before, after])),
            suspended: Difference::new([before + delays[0] + suspended; 2], [before, after]),
        }
    }

    fn delays() -> impl Strategy<Value = [Nanoseconds; 2]> {
        [0..DELAY, 0..DELAY]
    }

    /// Of a machine that reads its clocks at once.
    const PROMPT: [Nanoseconds; 2] = [20_000, 20_000];

    #[test]
    fn a_restored_vm_lacks_the_time_since_it_was_saved() {
        let [saved, restored] = [look(0, 0, 0, PROMPT), look(SECOND, HOUR, 0, PROMPT)];
        let jump = Jump::between(saved, restored).unwrap();
        assert_eq!(jump.suspended, None);
        assert!((jump.behind.unwrap() - HOUR).abs() <= SECOND, "{jump:?}");
    }

    #[test]
    fn a_kernel_that_was_suspended_has_set_its_clock() {
        let [before, after] = [look(0, 0, 0, PROMPT), look(HOUR, 0, HOUR, PROMPT)];
        let jump = Jump::between(before, after).unwrap();
        assert_eq!(jump.behind, None);
        assert!((jump.suspended.unwrap() - HOUR).abs() < SECOND, "{jump:?}");
    }

    #[test]
    fn an_rtc_that_cannot_be_read_is_no_jump() {
        let [with, without] = [look(0, HOUR, 0, PROMPT), Look::default()];
        assert_eq!(Jump::between(with, without), None);
        assert_eq!(Jump::between(without, with), None);
    }

    proptest! {
        #[test]
        fn every_jump_by_three_seconds_is_found(
            clock in 0..1000 * HOUR, rtc in -HOUR..HOUR, jump in 3 * SECOND..1000 * HOUR, passed in 0..SECOND,
        ) {
            let [before, after] = [look(clock, rtc, 0, PROMPT), look(clock + passed, rtc + jump, 0, PROMPT)];
            // Otherwise it cannot be told from an RTC that the kernel has set.
            prop_assume!((rtc + jump).abs() > 3 * SECOND);
            let found = Jump::between(before, after).and_then(|jump| jump.behind);
            prop_assert!(found.is_some_and(|found| (found - jump).abs() <= SECOND + DELAY / 1000), "{found:?}");
        }

        #[test]
        fn a_machine_that_is_slow_to_look_has_not_jumped(
            clock in 0..1000 * HOUR, rtc in -HOUR..HOUR, suspended in 0..HOUR, passed in 0..HOUR,
            before in delays(), after in delays(), drift in -SECOND / 2..SECOND / 2,
        ) {
            let before = look(clock, rtc, suspended, before);
            prop_assert_eq!(Jump::between(before, look(clock + passed, rtc + drift, suspended, after)), None);
        }

        #[test]
        fn an_rtc_that_goes_back_or_is_set_by_the_kernel_is_no_jump(
            clock in 0..1000 * HOUR, rtc in -1000 * HOUR..HOUR, back in 0..1000 * HOUR,
        ) {
            let before = look(clock, rtc, 0, PROMPT);
            prop_assert_eq!(Jump::between(before, look(clock + SECOND, rtc - back, 0, PROMPT)), None);
            prop_assert_eq!(Jump::between(before, look(clock + SECOND, 0, 0, PROMPT)), None);
        }

        #[test]
        fn no_times_make_it_panic(times in prop::array::uniform8(any::<i64>())) {
            let [a, b, c, d, e, f, g, h] = times;
            let one = Look { rtc: Some(Difference::new([a, b], [c, d])), suspended: Difference::new([e, f], [g, h]) };
            let other = Look { rtc: Some(Difference::new([h, g], [f, e])), suspended: Difference::new([d, c], [b, a]) };
            let _ = Jump::between(one, other);
        }
    }
}
