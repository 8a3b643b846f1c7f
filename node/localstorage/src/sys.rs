//! The ioctl that nix lacks: growing a mounted XFS.

use std::os::fd::{AsRawFd, BorrowedFd};

use nix::errno::Errno;

/// `struct xfs_growfs_data`, fs/xfs/libxfs/xfs_fs.h.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct GrowData {
    newblocks: u64,
    imaxpct: u32,
    pad: u32,
}
const _: () = assert!(size_of::<GrowData>() == 16);

mod ioctl {
    nix::ioctl_write_ptr!(xfs_ioc_fsgrowfsdata, b'X', 110, super::GrowData);
}

/// Grows the file system to so many blocks, while it is in use. The kernel would change the part for
/// inodes too: give the present one.
///
/// `XFS_IOC_FSGROWFSDATA`, xfs(5); needs `CAP_SYS_ADMIN`.
pub(crate) fn grow(fs: BorrowedFd<'_>, blocks: u64, inode_percent: u8) -> Result<(), Errno> {
    let wanted = GrowData { newblocks: blocks, imaxpct: inode_percent.into(), pad: 0 };
    // SAFETY: `fs` is open during the call. The kernel reads one `struct xfs_growfs_data` (size
    // asserted above) from the pointer and keeps nothing.
    unsafe { ioctl::xfs_ioc_fsgrowfsdata(fs.as_raw_fd(), &raw const wanted) }?;
    Ok(())
}
