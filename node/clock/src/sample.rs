//! Clock offset from one answer. No I/O.

use crate::packet::{Answer, Leap};

/// Nanoseconds since 1970 or between two times. Overflows in 2262.
pub type Nanoseconds = i64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Correction for the clock: positive if it is behind. Accurate to half of `delay`.
    pub offset: Nanoseconds,
    pub delay: Nanoseconds,
    pub leap: Leap,
}

impl Sample {
    /// Sample from a request at the time `asked` that was answered after `took`. RFC 4330, section 5.
    pub(crate) fn new(asked: Nanoseconds, took: Nanoseconds, answer: &Answer) -> Self {
        let [asked, took, received, sent] = [asked, took, answer.received, answer.sent].map(i128::from);
        let there = received - asked;
        let back = sent - (asked + took);
        let at_server = (sent - received).max(0);
        let narrow = |value: i128| value.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64;
        Self { offset: narrow((there + back) / 2), delay: narrow((took - at_server).max(0)), leap: answer.leap }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: i64 = 1_000_000_000;

    proptest! {
        #[test]
        fn the_offset_is_accurate_to_half_of_the_delay(
            asked in 0..100 * 365 * 86_400 * SECOND,
            offset in -50 * 365 * 86_400 * SECOND..50 * 365 * 86_400 * SECOND,
            there in 0..5 * SECOND,
            at_server in 0..SECOND,
            back in 0..5 * SECOND,
        ) {
            let received = asked + offset + there;
            let answer = Answer { received, sent: received + at_server, leap: Leap::None };
            let sample = Sample::new(asked, there + at_server + back, &answer);
            prop_assert_eq!(sample.delay, there + back);
            prop_assert!((sample.offset - offset).abs() <= sample.delay / 2 + 1);
        }

        #[test]
        fn computation_never_panics(asked in any::<i64>(), took in any::<i64>(), received in any::<i64>(), sent in any::<i64>()) {
            let sample = Sample::new(asked, took, &Answer { received, sent, leap: Leap::None });
            prop_assert!(sample.delay >= 0);
        }
    }
}
