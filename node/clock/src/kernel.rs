//! The machine's clock.

use nix::errno::Errno;
use nix::time::{ClockId, clock_gettime};

use crate::packet::Leap;
use crate::{Nanoseconds, sys};

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
}

/// The kernel's, `CLOCK_REALTIME`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Kernel;

impl Clock for Kernel {
    fn now(&self) -> Nanoseconds {
        // EINVAL alone, for clocks that the kernel does not have.
        clock_gettime(ClockId::CLOCK_REALTIME).map_or(0, |now| now.tv_sec() * 1_000_000_000 + now.tv_nsec())
    }

    fn step(&self, by: Nanoseconds) -> Result<(), Errno> {
        sys::step(by)
    }

    fn slew(&self, by: Nanoseconds, poll: u8, leap: Leap) -> Result<(), Errno> {
        sys::slew(by, poll, leap)
    }
}
