//! clock_adjtime(2), which nix lacks.

use std::mem::MaybeUninit;

use nix::errno::Errno;
use nix::libc::{self, c_int, c_long, timex};

use crate::Nanoseconds;
use crate::packet::Leap;

const NANOSECONDS: Nanoseconds = 1_000_000_000;

/// Linux counts the time constant of its loop from here on, include/linux/timex.h.
const LEAST_POLL: u8 = 4;

/// Sets the clock by so much, at one moment. `ADJ_SETOFFSET`, Linux 2.6.39.
pub(crate) fn step(by: Nanoseconds) -> Result<(), Errno> {
    let mut change = empty();
    change.modes = libc::ADJ_SETOFFSET | libc::ADJ_NANO;
    change.time.tv_sec = by.div_euclid(NANOSECONDS);
    // Nanoseconds, as ADJ_NANO says.
    change.time.tv_usec = by.rem_euclid(NANOSECONDS);
    adjust(&mut change)
}

/// Gives the offset to the kernel's loop (PLL), which slews the clock and learns how fast it goes by itself; says to the
/// kernel that the clock is right, so that it keeps the one in hardware too.
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
    // The kernel lets the largest error grow until the next time, and from 16 s on says that nobody keeps the clock.
    (change.maxerror, change.esterror) = (0, 0);
    adjust(&mut change)
}

/// Whether somebody keeps the clock.
#[cfg(test)]
fn is_kept() -> Result<bool, Errno> {
    let mut found = empty();
    adjust(&mut found)?;
    Ok(found.status & libc::STA_UNSYNC == 0)
}

fn empty() -> timex {
    // SAFETY: `struct timex` is numbers and padding, of which every bit pattern, zeros too, is valid.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

fn adjust(change: &mut timex) -> Result<(), Errno> {
    // SAFETY: `change` is a whole `struct timex`. The kernel reads it and writes it during the call, and keeps nothing.
    let state: c_int = unsafe { libc::clock_adjtime(libc::CLOCK_REALTIME, change) };
    Errno::result(state).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_takes_a_question_that_changes_nothing() {
        is_kept().unwrap();
    }
}
