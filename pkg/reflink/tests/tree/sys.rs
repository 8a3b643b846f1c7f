//! Leases on files, for which nix has no wrapper.

use std::fs::File;
use std::os::fd::AsRawFd as _;

use nix::errno::Errno;
use nix::libc::{F_RDLCK, F_SETLEASE, SIGURG, c_int, fcntl};

/// include/uapi/asm-generic/fcntl.h.
const F_SETSIG: c_int = 10;

/// Sets a lease on a file that is open for reading. An open for writing waits until this file is closed, at most for
/// the seconds in `/proc/sys/fs/lease-break-time`. The kernel announces it with `SIGURG`, which is ignored. fcntl(2).
pub fn lease(file: &File) {
    for (command, argument) in [(F_SETSIG, SIGURG), (F_SETLEASE, F_RDLCK)] {
        // SAFETY: `file` is open during the call. Both commands have a number as their argument.
        let result = unsafe { fcntl(file.as_raw_fd(), command, argument) };
        Errno::result(result).unwrap();
    }
}
