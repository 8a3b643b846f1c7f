//! System calls that nix lacks. All use descriptors with an empty path.

use std::ffi::CStr;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use nix::errno::Errno;
use nix::libc::{self, c_int, c_uint};

use crate::Attributes;

const EMPTY: &CStr = c"";
const _: () = assert!(size_of::<libc::mount_attr>() == libc::MOUNT_ATTR_SIZE_VER0 as usize);
const _: () = assert!(size_of::<libc::statx>() == 256);

/// Copies the mount of `source` without attaching it (`open_tree`, Linux 5.2).
pub(crate) fn open_tree_clone(source: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let flags = libc::OPEN_TREE_CLONE | libc::OPEN_TREE_CLOEXEC | libc::AT_EMPTY_PATH as c_uint;
    // SAFETY: `source` is open during the call. The kernel reads a NUL-terminated string of static lifetime and writes
    // nothing to our memory.
    let answer = unsafe { libc::syscall(libc::SYS_open_tree, source.as_raw_fd(), EMPTY.as_ptr(), flags) };
    let descriptor = RawFd::try_from(Errno::result(answer)?).map_err(|_| Errno::EBADF)?;
    // SAFETY: the kernel just created this descriptor, and no other code has it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// Sets exactly these attributes and makes the mount private (`mount_setattr`, Linux 5.12).
pub(crate) fn mount_setattr(mount: BorrowedFd<'_>, attributes: Attributes) -> Result<(), Errno> {
    let (attr_set, attr_clr) = attributes.bits();
    let change = libc::mount_attr { attr_set, attr_clr, propagation: libc::MS_PRIVATE, userns_fd: 0 };
    // SAFETY: `mount` is open during the call. The kernel reads a static string and one `struct mount_attr` (size
    // asserted above), keeps neither pointer and writes nothing.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            EMPTY.as_ptr(),
            libc::AT_EMPTY_PATH as c_uint,
            &raw const change,
            size_of::<libc::mount_attr>(),
        )
    };
    Errno::result(answer).map(drop)
}

/// Attaches a detached mount to `target` (`move_mount`, Linux 5.2).
pub(crate) fn move_mount(mount: BorrowedFd<'_>, target: BorrowedFd<'_>) -> Result<(), Errno> {
    attach(mount, target, EMPTY, libc::MOVE_MOUNT_T_EMPTY_PATH)
}

/// Attaches a detached mount to the entry `name` of a directory. Does not follow a symbolic link.
pub(crate) fn move_mount_at(mount: BorrowedFd<'_>, directory: BorrowedFd<'_>, name: &CStr) -> Result<(), Errno> {
    attach(mount, directory, name, 0)
}

fn attach(mount: BorrowedFd<'_>, to: BorrowedFd<'_>, name: &CStr, flags: c_uint) -> Result<(), Errno> {
    // SAFETY: both descriptors are open and both strings live during the call; the kernel only reads the strings.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_move_mount,
            mount.as_raw_fd(),
            EMPTY.as_ptr(),
            to.as_raw_fd(),
            name.as_ptr(),
            libc::MOVE_MOUNT_F_EMPTY_PATH | flags,
        )
    };
    Errno::result(answer).map(drop)
}

/// Reads inode, file type, mount ID and mount root flag (`statx`; `STATX_MNT_ID` and `STATX_ATTR_MOUNT_ROOT` since
/// Linux 5.8).
pub(crate) fn statx(file: BorrowedFd<'_>) -> Result<libc::statx, Errno> {
    let flags: c_int = libc::AT_EMPTY_PATH | libc::AT_NO_AUTOMOUNT | libc::AT_STATX_SYNC_AS_STAT;
    let mask = libc::STATX_TYPE | libc::STATX_INO | libc::STATX_NLINK | libc::STATX_SIZE | libc::STATX_MNT_ID;
    let mut found = std::mem::MaybeUninit::<libc::statx>::zeroed();
    // SAFETY: `file` is open during the call. The kernel reads a static string and writes one `struct statx` (size
    // asserted above) through the pointer, and does not keep the pointer.
    let answer = unsafe { libc::statx(file.as_raw_fd(), EMPTY.as_ptr(), flags, mask, found.as_mut_ptr()) };
    Errno::result(answer)?;
    // SAFETY: the structure was zeroed and then filled by the kernel; every bit pattern of its integers is valid.
    Ok(unsafe { found.assume_init() })
}
