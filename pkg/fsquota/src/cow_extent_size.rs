//! [`set_cow_extent_size`].

use std::os::fd::AsFd;

use nix::errno::Errno;
use units::Bytes;

use crate::directory_state::{attributes, set_attributes};
use crate::error::FsError;

/// Sets how many bytes XFS allocates at once when shared blocks of a file are overwritten, a multiple of its block
/// size. Zero is the default of XFS, 128 KiB. The parts of a file that is overwritten in any order are then extents of
/// this size, and not one extent for each write. New files in a directory inherit its size. A quota counts the blocks
/// that no write has used until XFS frees them, by default half an hour later, or in
/// [`Quotas::settled`](crate::Quotas::settled).
///
/// `FICLONE` copies the size to a file that has none. Project, flags and other attributes of the file stay. The call
/// reads all of them and writes all of them in one transaction, so no other process may change them meanwhile, for
/// example by [`set`](crate::set). A file that has the size is not written. An fsync of the file makes the size
/// durable.
///
/// `file` must be open for reading or writing; `O_PATH` is not sufficient. Quotas are not necessary.
///
/// # Errors
/// [`FsError::System`]; the size is unchanged. `EINVAL`: the file system has no reflinks, or the size is not a multiple
/// of its blocks, exceeds half an allocation group, or does not fit into 32 bits. `EPERM`: the caller is not the owner
/// and lacks `CAP_FOWNER`, or the file is immutable. `ENOTTY` or `EOPNOTSUPP`: the file system has no such attributes.
/// `EROFS`: it is mounted read-only.
///
/// `FS_XFLAG_COWEXTSIZE`, ioctl_xfs_fsgetxattr(2), Linux 4.9.
pub fn set_cow_extent_size(file: impl AsFd, size: Bytes) -> Result<(), FsError> {
    let size = u32::try_from(size.get()).map_err(|_| FsError::system("FS_IOC_FSSETXATTR")(Errno::EINVAL))?;
    let former = attributes(file.as_fd())?;
    let wanted = former.with_cow_extent_size(size);
    if wanted == former { Ok(()) } else { set_attributes(file.as_fd(), &wanted) }
}
