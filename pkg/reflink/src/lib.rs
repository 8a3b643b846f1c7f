//! Files that share blocks: [`clone_file`] creates one, [`TreeClone`] a whole tree of them, [`extents`] shows what is
//! shared, [`unshare`] ends it.
//!
//! XFS with `reflink=1`, the default of mkfs.xfs since 5.1. Linux 4.9; trees: Linux 5.6; [`for_each_shared`]: Linux
//! 5.17.
#![deny(unsafe_code)]
#![warn(missing_docs)]

mod extent;
#[expect(unsafe_code, reason = "the ioctls of shared blocks and of handles have no wrapper in nix")]
mod sys;
mod tree;

use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};
use units::Bytes;

pub use extent::{Extent, extents};
pub use tree::{CompleteTree, Counts, MAX_DEPTH, Task, TreeClone, TreeError, for_each_shared};

/// Replaces the content of `to` by that of `from`, as it is at one instant. Both files share the blocks until one of
/// them is overwritten. `from` is open for reading, `to` for writing.
///
/// XFS writes the dirty pages of `from` first, and stops its writers for the call. It clones each extent in a
/// transaction of its own, in ascending order, and extends `to` with each: a call that a kill or a power cut
/// interrupted leaves an empty `to` with a part of the content, which is shorter than `from`.
///
/// # Errors
/// `ENOSPC` or `EDQUOT`: the quota of `to`, which is charged in full, or the disk is full. `EOPNOTSUPP`: the file
/// system has no reflinks. `EXDEV`: the files are on two file systems. `EINVAL`: a fatal signal interrupted the call,
/// or one of the files is not a regular file. `EBADF`: wrong access modes. `EPERM`: `to` is immutable. `ETXTBSY`: one
/// is a swap file.
///
/// ioctl_ficlone(2), Linux 4.5.
pub fn clone_file(from: impl AsFd, to: impl AsFd) -> Result<(), Errno> {
    sys::clone_file(from.as_fd(), to.as_fd())
}

/// Replaces `length` bytes of `to` from `at` on by those of `from` from `start` on, as [`clone_file`] does. Offsets and
/// length are multiples of the block size, except for a range up to the end of `from` that is also the end of `to`
/// afterwards.
///
/// # Errors
/// Those of [`clone_file`]. `EINVAL`: the range is empty, is not aligned, or exceeds `from`.
///
/// ioctl_ficlonerange(2), Linux 4.5.
pub fn clone_range(from: impl AsFd, start: Bytes, length: Bytes, to: impl AsFd, at: Bytes) -> Result<(), Errno> {
    // The kernel reads a length of 0 as the rest of the file.
    if length == Bytes::ZERO {
        return Err(Errno::EINVAL);
    }
    sys::clone_range(from.as_fd(), start.get(), length.get(), to.as_fd(), at.get())
}

/// Gives the range blocks of its own, which no other file shares, and writes them to the disk. Holes in the range are
/// allocated.
///
/// XFS reserves quota for the copied blocks and, after that, for the length of the range: choose a range for which the
/// quota of `file` has space.
///
/// As a write does, the call first removes the capability of the file (`security.capability`), without `CAP_FSETID`
/// also set-ID bits, and sets the times of modification and change: `file_modified`, fs/inode.c. The files of
/// [`for_each_shared`] keep them.
///
/// # Errors
/// `ENOSPC` or `EDQUOT`: a part of the range may be unshared. `EINTR`: repeat the call. `EOPNOTSUPP`: the file system
/// has no reflinks. `EINVAL`: the length is 0 or the range exceeds `i64`.
///
/// fallocate(2), `FALLOC_FL_UNSHARE_RANGE`, Linux 4.8.
pub fn unshare(file: impl AsFd, start: Bytes, length: Bytes) -> Result<(), Errno> {
    let [start, length] = [start, length].map(|number| i64::try_from(number.get()));
    let (Ok(start), Ok(length)) = (start, length) else { return Err(Errno::EINVAL) };
    // Without `KEEP_SIZE`, a range that ends behind the file would extend the file.
    let flags = FallocateFlags::FALLOC_FL_UNSHARE_RANGE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    fallocate(file, flags, start, length)
}
