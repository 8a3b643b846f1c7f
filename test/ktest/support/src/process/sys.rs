//! Forks this process, and sets a seccomp filter.

use std::panic::{AssertUnwindSafe, catch_unwind};

use nix::errno::Errno;
use nix::libc::{self, sock_filter, sock_fprog};
use nix::unistd::{ForkResult, Pid, fork};

/// Exit status of a copy whose work panicked, as of any Rust program.
const PANICKED: i32 = 101;

/// Runs `work` in a copy of this process, which then exits with status 0, or 101 after a panic; fork(2). The copy waits
/// forever if `work` takes a lock that another thread holds now.
pub(super) fn copy(work: impl FnOnce()) -> Result<Pid, Errno> {
    // SAFETY: the copy's memory is its own, and it has this thread alone. The C library's allocator can be used after
    // its fork; a lock that another thread held stays taken, which is a wait and breaks no memory.
    match unsafe { fork() }? {
        ForkResult::Parent { child } => Ok(child),
        ForkResult::Child => {
            let done = catch_unwind(AssertUnwindSafe(work));
            // SAFETY: ends the process without what the program registered for its end, which is for the original to
            // do. It does not return.
            unsafe { libc::_exit(if done.is_ok() { 0 } else { PANICKED }) }
        }
    }
}

/// Sets a filter of the system calls of this thread, and of threads and processes that it starts. seccomp(2).
pub(super) fn set_filter(instructions: &[sock_filter]) -> Result<(), Errno> {
    let len = u16::try_from(instructions.len()).map_err(|_| Errno::EINVAL)?;
    let filter = sock_fprog { len, filter: instructions.as_ptr().cast_mut() };
    // SAFETY: the kernel copies the struct and the `len` instructions that it points to, both of which are valid during
    // the call. It writes to neither and keeps no pointer.
    let result = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const filter) };
    Errno::result(result).map(drop)
}
