//! The ioctls of shared blocks that nix lacks.

use std::ffi::c_void;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::ptr;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};

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

/// `struct xfs_handle`, fs/xfs/libxfs/xfs_fs.h: the ID of the file system, then length, padding and generation, then
/// the inode number. Only the kernel reads it.
type Handle = [u64; 3];

/// `struct xfs_fsop_handlereq`, fs/xfs/libxfs/xfs_fs.h.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct HandleRequest {
    fd: u32,
    path: *const c_void,
    flags: u32,
    from: *const Handle,
    from_length: u32,
    to: *mut Handle,
    to_length: *mut u32,
}
const _: () = assert!(size_of::<HandleRequest>() == 56);

mod ioctl {
    nix::ioctl_write_int!(ficlone, 0x94, 9);
    nix::ioctl_write_ptr!(ficlonerange, 0x94, 13, super::Range);
    nix::ioctl_readwrite_bad!(fiemap, nix::request_code_readwrite!(b'f', 11, super::HEADER), super::Map);
    nix::ioctl_readwrite!(fd_to_handle, b'X', 106, super::HandleRequest);
    nix::ioctl_readwrite!(open_by_handle, b'X', 107, super::HandleRequest);
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

/// Opens the regular file of a descriptor again, for reading and writing, such that reads and writes change no time of
/// it: `xfs_open_by_handle` (fs/xfs/xfs_handle.c) sets `O_NOATIME` and `FMODE_NOCMTIME`, with which `file_modified`
/// (fs/inode.c) only removes privileges. `dir` is a directory on the same mount.
///
/// `XFS_IOC_FD_TO_HANDLE` and `XFS_IOC_OPEN_BY_HANDLE`, xfsctl(3); needs `CAP_SYS_ADMIN`. The handle is that of the
/// open inode, so no name is resolved. The kernel cannot set `FD_CLOEXEC` in the call: a program that another thread
/// starts before `fcntl` inherits the descriptor, unless its start sets `FD_CLOEXEC` for all (close_range(2)).
pub(crate) fn open_timeless(dir: BorrowedFd<'_>, file: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let (mut handle, mut length) = ([0; 3], 0);
    let mut request = HandleRequest {
        fd: u32::try_from(file.as_raw_fd()).map_err(|_| Errno::EBADF)?,
        path: ptr::null(),
        flags: OFlag::O_RDWR.bits().cast_unsigned(),
        from: ptr::null(),
        from_length: 0,
        to: &raw mut handle,
        to_length: &raw mut length,
    };
    // SAFETY: both descriptors are open during the call. The kernel reads the request (size asserted above), and writes
    // at most one `struct xfs_handle`, for which `handle` has space, and its length, an `int`; it keeps no pointer.
    unsafe { ioctl::fd_to_handle(dir.as_raw_fd(), &raw mut request) }?;
    (request.from, request.from_length) = (&raw const handle, length);
    // SAFETY: `dir` is open during the call. The kernel reads the request and `length` bytes of `handle`, which it has
    // written; it keeps no pointer.
    let opened = unsafe { ioctl::open_by_handle(dir.as_raw_fd(), &raw mut request) }?;
    // SAFETY: the kernel has returned a new descriptor, which has no other owner.
    let opened = unsafe { OwnedFd::from_raw_fd(opened) };
    fcntl(&opened, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
    Ok(opened)
}
