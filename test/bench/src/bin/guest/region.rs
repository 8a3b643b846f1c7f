//! The measured region, from inside: marks that the tracer sees and that change nothing.

use nix::errno::Errno;
use nix::sys::ptrace;
use nix::sys::signal::{Signal, raise};
use nix::unistd::{Pid, getpgid};

/// Process IDs end at 2^22, so that no process has these.
pub(crate) const BEGIN: i32 = 0x4245_4749;
pub(crate) const END: i32 = 0x454e_4421;

/// Makes `operation` while the parent counts its system calls.
pub(crate) fn measured<T>(operation: impl FnOnce() -> T) -> Result<T, Errno> {
    ptrace::traceme()?;
    // Stops here until the parent has said what it wants to see.
    raise(Signal::SIGSTOP)?;
    mark(BEGIN);
    let result = operation();
    mark(END);
    Ok(result)
}

fn mark(mark: i32) {
    // Answered with `ESRCH`.
    let _ = getpgid(Some(Pid::from_raw(mark)));
}
