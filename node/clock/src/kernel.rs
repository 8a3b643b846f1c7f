//! The machine's clock.

use std::fs;

use nix::errno::Errno;
use nix::time::{ClockId, clock_gettime};

use crate::jump::{Difference, Look};
use crate::packet::Leap;
use crate::{Nanoseconds, sys};

const SECOND: Nanoseconds = 1_000_000_000;

/// The RTC that the kernel sets `CLOCK_REALTIME` by at its start (`CONFIG_RTC_HCTOSYS_DEVICE`), in whole seconds of UTC.
const RTC: &str = "/sys/class/rtc/rtc0/since_epoch";

/// A clock that can be corrected.
pub trait Clock: Send + Sync + 'static {
    /// What it says.
    fn now(&self) -> Nanoseconds;

    /// Sets it, by so much.
    ///
    /// # Errors
    /// The kernel's refusal.
    fn step(&self, by: Nanoseconds) -> Result<(), Errno>;

    /// Makes up for so much, at most half a second, by and by. The clock will be compared again after two to the power of
    /// `poll` seconds.
    ///
    /// # Errors
    /// The kernel's refusal.
    fn slew(&self, by: Nanoseconds, poll: u8, leap: Leap) -> Result<(), Errno>;

    /// Compares the machine's clocks. May take as long as the RTC takes to be read, milliseconds.
    fn look(&self) -> Look {
        Look::default()
    }
}

/// The kernel's, `CLOCK_REALTIME`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Kernel;

impl Clock for Kernel {
    fn now(&self) -> Nanoseconds {
        read(ClockId::CLOCK_REALTIME)
    }

    fn step(&self, by: Nanoseconds) -> Result<(), Errno> {
        sys::step(by)
    }

    fn slew(&self, by: Nanoseconds, poll: u8, leap: Leap) -> Result<(), Errno> {
        sys::slew(by, poll, leap)
    }

    fn look(&self) -> Look {
        let before = self.now();
        let rtc = rtc();
        let rtc = rtc.map(|seconds| Difference::new([seconds, seconds + SECOND], [before, self.now()]));
        let before = read(ClockId::CLOCK_MONOTONIC);
        let boot = read(ClockId::CLOCK_BOOTTIME);
        let suspended = Difference::new([boot; 2], [before, read(ClockId::CLOCK_MONOTONIC)]);
        Look { rtc, suspended }
    }
}

fn read(clock: ClockId) -> Nanoseconds {
    // EINVAL alone, for clocks that the kernel does not have.
    clock_gettime(clock).map_or(0, |now| now.tv_sec() * SECOND + now.tv_nsec())
}

/// The second that the RTC shows.
fn rtc() -> Option<Nanoseconds> {
    let seconds: i64 = fs::read_to_string(RTC).ok()?.trim_end().parse().ok()?;
    seconds.checked_mul(SECOND).filter(|time| *time < Nanoseconds::MAX - SECOND)
}
