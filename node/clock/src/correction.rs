//! What is done about a clock that is off, and when to ask again. Pure.

use std::time::Duration;

use crate::Nanoseconds;

/// RFC 5905, section 11.2: a clock that is off by more is set, by less is slewed.
const FAR: Nanoseconds = 128_000_000;

/// More than this the kernel does not slew in one go.
const MOST: Nanoseconds = 500_000_000;

/// A clock that is off by no more is left to itself for longer and longer.
const CLOSE: Nanoseconds = 10_000_000;

/// As powers of two, in seconds: RFC 5905, section 7.2.
const SHORTEST: u8 = 6;
const LONGEST: u8 = 10;

/// How a clock is corrected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Correction {
    /// It is set, by so much.
    Step(Nanoseconds),
    /// It goes faster or slower until it has made up for so much.
    Slew(Nanoseconds),
}

/// What may be done to a clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Allowed {
    /// It may be set to any time: nobody relies on it yet.
    Any,
    /// It may be set, but not back: no answer has come yet, and the node's programs run.
    Forwards,
    /// It is only slewed.
    Slew,
}

impl Correction {
    /// For a clock that is off by `offset`.
    pub(crate) const fn of(offset: Nanoseconds, allowed: Allowed) -> Self {
        let may_step = match allowed {
            Allowed::Any => true,
            Allowed::Forwards => offset > 0,
            Allowed::Slew => false,
        };
        if may_step && offset.unsigned_abs() > FAR.unsigned_abs() {
            Self::Step(offset)
        } else if offset > MOST {
            Self::Slew(MOST)
        } else if offset < -MOST {
            Self::Slew(-MOST)
        } else {
            Self::Slew(offset)
        }
    }
}

/// How long to wait for the next question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Poll {
    /// In powers of two of a second.
    exponent: u8,
}

impl Default for Poll {
    fn default() -> Self {
        Self { exponent: SHORTEST }
    }
}

impl Poll {
    /// After an answer.
    pub(crate) const fn after(self, offset: Nanoseconds) -> Self {
        if offset.unsigned_abs() <= CLOSE.unsigned_abs() { self.longer() } else { Self { exponent: SHORTEST } }
    }

    /// After none.
    pub(crate) const fn longer(self) -> Self {
        Self { exponent: if self.exponent < LONGEST { self.exponent + 1 } else { LONGEST } }
    }

    pub(crate) const fn exponent(self) -> u8 {
        self.exponent
    }

    pub(crate) const fn time(self) -> Duration {
        Duration::from_secs(1 << self.exponent)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn allowed() -> impl Strategy<Value = Allowed> {
        prop_oneof![Just(Allowed::Any), Just(Allowed::Forwards), Just(Allowed::Slew)]
    }

    proptest! {
        #[test]
        fn a_clock_is_set_only_if_it_may_be_and_is_far_off(offset in any::<i64>(), allowed in allowed()) {
            match Correction::of(offset, allowed) {
                Correction::Step(by) => {
                    prop_assert!(by == offset && offset.unsigned_abs() > FAR as u64);
                    prop_assert!(allowed == Allowed::Any || allowed == Allowed::Forwards && by > 0);
                }
                Correction::Slew(by) => {
                    prop_assert!(by.abs() <= MOST && by.signum() == offset.signum());
                    prop_assert!(by == offset || allowed != Allowed::Any);
                }
            }
        }

        #[test]
        fn nobody_is_asked_more_than_once_a_minute_or_left_alone_for_long(offsets in prop::collection::vec(any::<Option<i64>>(), 0..30)) {
            let next = |poll: Poll, offset: Option<i64>| offset.map_or(poll.longer(), |offset| poll.after(offset));
            let time = offsets.into_iter().fold(Poll::default(), next).time();
            prop_assert!((64..=1024).contains(&time.as_secs()));
        }
    }
}
