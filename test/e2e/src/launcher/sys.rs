//! System calls of a child between fork and exec.

use nix::libc;
use nix::unistd::setsid;
use std::os::unix::process::CommandExt;
use std::process::Command;

nix::ioctl_write_int_bad!(
    /// Makes the terminal the controlling terminal of the session, `TIOCSCTTY` of ioctl_tty(2). The session's processes
    /// get its signals.
    tiocsctty,
    libc::TIOCSCTTY
);

/// Gives the program its own session, whose controlling terminal is its standard input.
pub(crate) fn own_terminal(command: &mut Command) {
    let begin = || {
        setsid()?;
        // SAFETY: descriptor 0 is open, and the call takes a number and no pointer. 0: the terminal has no session yet.
        unsafe { tiocsctty(libc::STDIN_FILENO, 0) }?;
        Ok(())
    };
    // SAFETY: between fork and exec the child makes only these two system calls: no memory is allocated and no lock
    // taken.
    unsafe { command.pre_exec(begin) };
}
