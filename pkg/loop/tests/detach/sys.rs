//! Grows a mounted XFS to the whole device.

use std::os::fd::{AsFd, AsRawFd as _};

use nix::errno::Errno;

/// `struct xfs_growfs_data`, fs/xfs/libxfs/xfs_fs.h.
#[repr(C)]
struct Grow {
    blocks: u64,
    inode_percentage: u32,
}
const _: () = assert!(size_of::<Grow>() == 16);
nix::ioctl_write_ptr!(xfs_ioc_fsgrowfsdata, b'X', 110, Grow);

/// Grows the file system to `blocks` blocks. `root` is any open file of the file system.
pub fn grow(root: impl AsFd, blocks: u64) -> Result<(), Errno> {
    let grow = Grow { blocks, inode_percentage: 25 };
    // SAFETY: `root` is open during the call. The kernel reads one `struct xfs_growfs_data` (size asserted above) from
    // the pointer and keeps nothing.
    unsafe { xfs_ioc_fsgrowfsdata(root.as_fd().as_raw_fd(), &raw const grow) }.map(drop)
}
