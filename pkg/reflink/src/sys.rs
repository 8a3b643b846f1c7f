//! The ioctls of shared blocks that nix lacks.

use std::os::fd::{AsRawFd as _, BorrowedFd};

use nix::errno::Errno;

/// Maximum number of extents that one call returns.
const BATCH: u32 = 64;

/// `FIEMAP_FLAG_SYNC`: write dirty pages first, which get their blocks only then.
const SYNC: u32 = 1;

/// `FIEMAP_EXTENT_SHARED`.
pub(crate) const SHARED: u32 = 0x2000;

/// `struct file_clone_range`, include/uapi/linux/fs.h.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Range {
    source: i64,
    start: u64,
    length: u64,
    at: u64,
}
const _: () = assert!(size_of::<Range>() == 32);

/// `struct fiemap_extent`, include/uapi/linux/fiemap.h.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct KernelExtent {
    pub(crate) logical: u64,
    physical: u64,
    pub(crate) length: u64,
    reserved64: [u64; 2],
    pub(crate) flags: u32,
    reserved: [u32; 3],
}
const _: () = assert!(size_of::<KernelExtent>() == 56);

/// `struct fiemap` with its array.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Map {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    count: u32,
    reserved: u32,
    extents: [KernelExtent; BATCH as usize],
}
/// Size of the structure without its array, as encoded in the request number.
const HEADER: usize = 32;
const _: () = assert!(size_of::<Map>() == HEADER + BATCH as usize * size_of::<KernelExtent>());

impl Map {
    /// The extents that the kernel wrote.
    pub(crate) fn mapped(&self) -> impl Iterator<Item = &KernelExtent> {
        self.extents.iter().take(self.mapped as usize)
    }
}

mod ioctl {
    nix::ioctl_write_int!(ficlone, 0x94, 9);
    nix::ioctl_write_ptr!(ficlonerange, 0x94, 13, super::Range);
    nix::ioctl_readwrite_bad!(fiemap, nix::request_code_readwrite!(b'f', 11, super::HEADER), super::Map);
}

/// `FICLONE`, ioctl_ficlone(2).
pub(crate) fn clone_file(from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> Result<(), Errno> {
    let source = u64::try_from(from.as_raw_fd()).map_err(|_| Errno::EBADF)?;
    // SAFETY: both descriptors are open during the call. The argument is a number: the kernel reads and writes no
    // memory of the process.
    unsafe { ioctl::ficlone(to.as_raw_fd(), source) }?;
    Ok(())
}

/// `FICLONERANGE`, ioctl_ficlonerange(2).
pub(crate) fn clone_range(
    from: BorrowedFd<'_>,
    start: u64,
    length: u64,
    to: BorrowedFd<'_>,
    at: u64,
) -> Result<(), Errno> {
    let range = Range { source: from.as_raw_fd().into(), start, length, at };
    // SAFETY: both descriptors are open during the call, in which the kernel reads one `struct file_clone_range` (size
    // asserted above) from the pointer; it does not keep the pointer.
    unsafe { ioctl::ficlonerange(to.as_raw_fd(), &raw const range) }?;
    Ok(())
}

/// `FS_IOC_FIEMAP`, from an offset to the end of the file.
pub(crate) fn extents(file: BorrowedFd<'_>, start: u64) -> Result<Map, Errno> {
    let mut map = Map {
        start,
        length: u64::MAX - start,
        flags: SYNC,
        mapped: 0,
        count: BATCH,
        reserved: 0,
        extents: [KernelExtent::default(); BATCH as usize],
    };
    // SAFETY: `file` is open during the call. The kernel reads the header and writes the header and at most `count`
    // extents, for which `extents` has space; it does not keep the pointer, and every bit pattern of these numbers is
    // valid.
    unsafe { ioctl::fiemap(file.as_raw_fd(), &raw mut map) }?;
    Ok(map)
}
