//! Decides how to correct the clock and when to query again. No I/O.

use std::time::Duration;

use crate::Nanoseconds;

/// RFC 5905, section 11.2: larger offsets are stepped, smaller ones slewed.
const FAR: Nanoseconds = 128_000_000;

/// Maximum offset that the kernel slews at once.
const MOST: Nanoseconds = 500_000_000;

/// For offsets up to this, the poll interval increases.
const CLOSE: Nanoseconds = 10_000_000;

/// Limits of the poll interval as powers of two in seconds, RFC 5905, section 7.2.
const SHORTEST: u8 = 6;
const LONGEST: u8 = 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Correction {
    Step(Nanoseconds),
    /// Speed up or slow down the clock until the offset is corrected.
    Slew(Nanoseconds),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Allowed {
    /// Any step: no program depends on the clock yet.
    Any,
    /// Forward steps: no answer has arrived yet, and programs of the node run.
    Forwards,
    /// No steps.
    Slew,
}

impl Correction {
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Poll {
    /// Power of two in seconds.
    exponent: u8,
}

impl Default for Poll {
    fn default() -> Self {
        Self { exponent: SHORTEST }
    }
}

impl Poll {
    pub(crate) const fn after(self, offset: Nanoseconds) -> Self {
        if offset.unsigned_abs() <= CLOSE.unsigned_abs() { self.longer() } else { Self { exponent: SHORTEST } }
    }

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
        fn the_clock_is_stepped_only_if_permitted_and_far_off(offset in any::<i64>(), allowed in allowed()) {
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
        fn the_poll_interval_has_both_limits(offsets in prop::collection::vec(any::<Option<i64>>(), 0..30)) {
            let next = |poll: Poll, offset: Option<i64>| offset.map_or(poll.longer(), |offset| poll.after(offset));
            let time = offsets.into_iter().fold(Poll::default(), next).time();
            prop_assert!((64..=1024).contains(&time.as_secs()));
        }
    }
}
