//! Ioctls for inode flags, which nix lacks.

use std::os::fd::{AsRawFd as _, BorrowedFd};

use nix::errno::Errno;
use nix::libc::c_long;

mod ioctl {
    // The request numbers encode a long, but the kernel reads and writes an int.
    nix::ioctl_read!(fs_ioc_getflags, b'f', 1, super::c_long);
    nix::ioctl_write_ptr!(fs_ioc_setflags, b'f', 2, super::c_long);
}

/// `FS_IMMUTABLE_FL` and `FS_APPEND_FL`, include/uapi/linux/fs.h.
const PROTECTED: c_long = 0x10 | 0x20;

/// Clears the flags that prevent changes and removal of an open file or directory. Returns whether one was set.
///
/// `FS_IOC_SETFLAGS`, ioctl_iflags(2); needs `CAP_LINUX_IMMUTABLE`.
pub(crate) fn unprotect(inode: BorrowedFd<'_>) -> Result<bool, Errno> {
    let mut flags: c_long = 0;
    // SAFETY: `inode` is open during the call. The kernel writes an int, the lower half of the zeroed long, through the
    // pointer and does not keep the pointer; every bit pattern of it is valid.
    unsafe { ioctl::fs_ioc_getflags(inode.as_raw_fd(), &raw mut flags) }?;
    if flags & PROTECTED == 0 {
        return Ok(false);
    }
    let wanted = flags & !PROTECTED;
    // SAFETY: `inode` is open during the call. The kernel reads an int, the lower half of the long, through the pointer
    // and does not keep the pointer.
    unsafe { ioctl::fs_ioc_setflags(inode.as_raw_fd(), &raw const wanted) }?;
    Ok(true)
}
