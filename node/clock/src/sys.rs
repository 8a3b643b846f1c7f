//! clock_adjtime(2), which nix lacks.

use std::mem::MaybeUninit;

use nix::errno::Errno;
use nix::libc::{self, c_int, c_long, timex};

use crate::Nanoseconds;
use crate::packet::Leap;

const NANOSECONDS: Nanoseconds = 1_000_000_000;

/// Offset of the kernel's PLL time constant, include/linux/timex.h.
const LEAST_POLL: u8 = 4;

/// Sets the clock by an offset. `ADJ_SETOFFSET`, Linux 2.6.39.
pub(crate) fn step(by: Nanoseconds) -> Result<(), Errno> {
    let mut change = empty();
    change.modes = libc::ADJ_SETOFFSET | libc::ADJ_NANO;
    change.time.tv_sec = by.div_euclid(NANOSECONDS);
    // ADJ_NANO: the field contains nanoseconds.
    change.time.tv_usec = by.rem_euclid(NANOSECONDS);
    adjust(&mut change)
}

/// Passes the offset to the kernel's PLL, which slews the clock and adjusts its frequency. Sets the status to
/// synchronized, so that the kernel also sets the RTC.
pub(crate) fn slew(by: Nanoseconds, poll: u8, leap: Leap) -> Result<(), Errno> {
    let mut change = empty();
    change.modes = libc::ADJ_OFFSET
        | libc::ADJ_NANO
        | libc::ADJ_STATUS
        | libc::ADJ_TIMECONST
        | libc::ADJ_MAXERROR
        | libc::ADJ_ESTERROR;
    change.status = libc::STA_PLL
        | match leap {
            Leap::None => 0,
            Leap::Insert => libc::STA_INS,
            Leap::Delete => libc::STA_DEL,
        };
    change.offset = by;
    change.constant = c_long::from(poll.saturating_sub(LEAST_POLL));
    // The kernel increases the maximum error over time, and sets the status to unsynchronized at 16 s.
    (change.maxerror, change.esterror) = (0, 0);
    adjust(&mut change)
}

fn empty() -> timex {
    // SAFETY: `struct timex` consists of numbers and padding, for which every bit pattern is valid, including zeros.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

fn adjust(change: &mut timex) -> Result<(), Errno> {
    // SAFETY: `change` is a whole `struct timex`. The kernel reads and writes it during the call and does not keep the
    // pointer.
    let state: c_int = unsafe { libc::clock_adjtime(libc::CLOCK_REALTIME, change) };
    Errno::result(state).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_adjustment_succeeds() {
        adjust(&mut empty()).unwrap();
    }
}
