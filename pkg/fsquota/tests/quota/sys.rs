//! Inode attributes as other programs can set them, including invalid ones.

use std::os::fd::{AsFd, AsRawFd as _};

use nix::errno::Errno;

/// `struct fsxattr`, include/uapi/linux/fs.h.
#[repr(C)]
#[derive(Default)]
pub struct FsXattr {
    pub xflags: u32,
    pub extsize: u32,
    pub nextents: u32,
    pub projid: u32,
    pub cowextsize: u32,
    pub pad: [u8; 8],
}
const _: () = assert!(size_of::<FsXattr>() == 28);
nix::ioctl_write_ptr!(fs_ioc_fssetxattr, b'X', 32, FsXattr);

pub fn set_xattr(file: impl AsFd, wanted: &FsXattr) -> Result<(), Errno> {
    // SAFETY: `file` is open during the call. The kernel reads one `struct fsxattr` (size asserted above) through the
    // pointer and does not keep the pointer.
    unsafe { fs_ioc_fssetxattr(file.as_fd().as_raw_fd(), wanted) }.map(drop)
}
