//! The clock of the machine.

use std::fs;

use nix::errno::Errno;
use nix::time::{ClockId, clock_gettime};

use crate::jump::{ClockOffsets, Difference};
use crate::packet::Leap;
use crate::{Nanoseconds, sys};

const SECOND: Nanoseconds = 1_000_000_000;

/// The RTC from which the kernel sets `CLOCK_REALTIME` at boot (`CONFIG_RTC_HCTOSYS_DEVICE`), in whole seconds of UTC.
const RTC: &str = "/sys/class/rtc/rtc0/since_epoch";

pub trait Clock: Send + Sync + 'static {
    fn now(&self) -> Nanoseconds;

    /// Sets the clock forward or back by `by`.
    fn step(&self, by: Nanoseconds) -> Result<(), Errno>;

    /// Slews the clock by at most half a second. The next comparison follows after two to the power of `poll` seconds.
    fn slew(&self, by: Nanoseconds, poll: u8, leap: Leap) -> Result<(), Errno>;

    /// Compares the clocks of the machine. Reading the RTC may take milliseconds.
    fn offsets(&self) -> ClockOffsets {
        ClockOffsets::default()
    }
}

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

    fn offsets(&self) -> ClockOffsets {
        let before = self.now();
        let rtc = rtc();
        let rtc = rtc.map(|seconds| Difference::new([seconds, seconds + SECOND], [before, self.now()]));
        let before = read(ClockId::CLOCK_MONOTONIC);
        let boot = read(ClockId::CLOCK_BOOTTIME);
        let suspended = Difference::new([boot; 2], [before, read(ClockId::CLOCK_MONOTONIC)]);
        ClockOffsets { rtc, suspended }
    }
}

fn read(clock: ClockId) -> Nanoseconds {
    // Only EINVAL for unsupported clocks is possible.
    clock_gettime(clock).map_or(0, |now| now.tv_sec() * SECOND + now.tv_nsec())
}

fn rtc() -> Option<Nanoseconds> {
    let seconds: i64 = fs::read_to_string(RTC).ok()?.trim_end().parse().ok()?;
    seconds.checked_mul(SECOND).filter(|time| *time < Nanoseconds::MAX - SECOND)
}
