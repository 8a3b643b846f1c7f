//! Detects clock jumps: time during which clocks or timers stopped. No I/O.
//!
//! | | `CLOCK_REALTIME` | RTC | `CLOCK_MONOTONIC` | `CLOCK_BOOTTIME` |
//! |---|---|---|---|---|
//! | VM stopped: restored from a saved state, migrated, paused, host asleep | stops | continues | stops | stops |
//! | kernel suspended | set at resume | continues | stops | continues |
//!
//! Only a change of the difference between two readings counts, not the difference itself: an RTC that runs fast or in
//! a local time zone is not a jump. Only a forward change of the RTC counts; time servers decide whether a clock is
//! ahead.
//!
//! Linux 6.12 reseeds its random number generator when the generation ID of a VM changes (vmgenid), but sends no
//! uevent. Therefore a restored VM is detected by its RTC.

use crate::Nanoseconds;

const SECOND: Nanoseconds = 1_000_000_000;

/// Minimum jump. Smaller jumps have no consequences: the shortest leases in a cluster are renewed every 10 s,
/// certificates are backdated by minutes, and the next answer of a time server corrects the clock. Live migrations stop
/// a VM for a shorter time.
///
/// The RTC counts whole seconds, so a change is certain from 2 s on, and every jump of at least 3 s is detected.
const LEAST: Nanoseconds = SECOND;

/// Bounds of the difference between two clocks, which cannot be read at the same time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Difference {
    least: Nanoseconds,
    most: Nanoseconds,
}

impl Difference {
    /// The difference between a clock that read `[least, most]` and another one that was read before and after it.
    #[must_use]
    pub const fn new([least, most]: [Nanoseconds; 2], [before, after]: [Nanoseconds; 2]) -> Self {
        Self { least: least.saturating_sub(after), most: most.saturating_sub(before) }
    }

    const fn may_be_zero(self) -> bool {
        self.least <= LEAST && self.most >= -LEAST
    }

    /// The certain increase since `before`, if there is one.
    fn growth(self, before: Self) -> Option<Nanoseconds> {
        let (least, most) = (self.least.saturating_sub(before.most), self.most.saturating_sub(before.least));
        (least > LEAST).then(|| least.midpoint(most))
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClockOffsets {
    /// `CLOCK_REALTIME` to RTC. `None` if the RTC cannot be read.
    pub rtc: Option<Difference>,
    /// `CLOCK_MONOTONIC` to `CLOCK_BOOTTIME`: time during which the kernel was suspended.
    pub suspended: Difference,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Jump {
    /// Time that `CLOCK_REALTIME` lacks, by the RTC.
    pub(crate) behind: Option<Nanoseconds>,
    /// Time during which the kernel was suspended; it has already corrected `CLOCK_REALTIME`.
    pub(crate) suspended: Option<Nanoseconds>,
}

impl Jump {
    pub(crate) fn between(before: ClockOffsets, now: ClockOffsets) -> Option<Self> {
        // The kernel sets the RTC from a synchronized clock; then both are equal.
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

    /// Longer than the usual delay between reading two clocks on a busy host.
    const DELAY: Nanoseconds = 10 * SECOND;

    /// Offsets of a machine whose clock reads `clock` first and whose RTC is ahead by `rtc`.
    fn offsets(clock: Nanoseconds, rtc: Nanoseconds, suspended: Nanoseconds, delays: [Nanoseconds; 2]) -> ClockOffsets {
        let seconds = (clock + rtc + delays[0]).div_euclid(SECOND) * SECOND;
        let [before, after] = [clock, clock + delays[0] + delays[1]];
        ClockOffsets {
            rtc: Some(Difference::new([seconds, seconds + SECOND], [before, after])),
            suspended: Difference::new([before + delays[0] + suspended; 2], [before, after]),
        }
    }

    fn delays() -> impl Strategy<Value = [Nanoseconds; 2]> {
        [0..DELAY, 0..DELAY]
    }

    /// Without delays between the readings.
    const PROMPT: [Nanoseconds; 2] = [20_000, 20_000];

    #[test]
    fn a_suspension_is_a_jump_without_missing_time() {
        let [before, after] = [offsets(0, 0, 0, PROMPT), offsets(HOUR, 0, HOUR, PROMPT)];
        let jump = Jump::between(before, after).unwrap();
        assert_eq!(jump.behind, None);
        assert!((jump.suspended.unwrap() - HOUR).abs() < SECOND, "{jump:?}");
    }

    #[test]
    fn an_unreadable_rtc_is_not_a_jump() {
        let [with, without] = [offsets(0, HOUR, 0, PROMPT), ClockOffsets::default()];
        assert_eq!(Jump::between(with, without), None);
        assert_eq!(Jump::between(without, with), None);
    }

    proptest! {
        #[test]
        fn jumps_of_at_least_three_seconds_are_detected(
            clock in 0..1000 * HOUR, rtc in -HOUR..HOUR, jump in 3 * SECOND..1000 * HOUR, passed in 0..SECOND,
        ) {
            let [before, after] = [offsets(clock, rtc, 0, PROMPT), offsets(clock + passed, rtc + jump, 0, PROMPT)];
            // Smaller jumps cannot be distinguished from an RTC that the kernel set.
            prop_assume!((rtc + jump).abs() > 3 * SECOND);
            let found = Jump::between(before, after).filter(|found| found.suspended.is_none());
            let found = found.and_then(|found| found.behind);
            prop_assert!(found.is_some_and(|found| (found - jump).abs() <= SECOND + DELAY / 1000), "{found:?}");
        }

        #[test]
        fn slow_readings_are_not_a_jump(
            clock in 0..1000 * HOUR, rtc in -HOUR..HOUR, suspended in 0..HOUR, passed in 0..HOUR,
            before in delays(), after in delays(), drift in -SECOND / 2..SECOND / 2,
        ) {
            let before = offsets(clock, rtc, suspended, before);
            prop_assert_eq!(Jump::between(before, offsets(clock + passed, rtc + drift, suspended, after)), None);
        }

        #[test]
        fn an_rtc_that_is_set_is_not_a_jump(
            clock in 0..1000 * HOUR, rtc in -1000 * HOUR..HOUR, back in 0..1000 * HOUR,
        ) {
            let before = offsets(clock, rtc, 0, PROMPT);
            prop_assert_eq!(Jump::between(before, offsets(clock + SECOND, rtc - back, 0, PROMPT)), None);
            prop_assert_eq!(Jump::between(before, offsets(clock + SECOND, 0, 0, PROMPT)), None);
        }

        #[test]
        fn detection_never_panics(times in prop::array::uniform8(any::<i64>())) {
            let [a, b, c, d, e, f, g, h] = times;
            let one = ClockOffsets { rtc: Some(Difference::new([a, b], [c, d])), suspended: Difference::new([e, f], [g, h]) };
            let other = ClockOffsets { rtc: Some(Difference::new([h, g], [f, e])), suspended: Difference::new([d, c], [b, a]) };
            let _ = Jump::between(one, other);
        }
    }
}
