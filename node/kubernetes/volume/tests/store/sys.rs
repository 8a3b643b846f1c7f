//! System calls of an owner of files for which nix has no safe wrapper.

use std::fs::File;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd as _};

use nix::errno::Errno;
use nix::libc::{c_long, syscall};
use nix::sys::mman::{MapFlags, MsFlags, ProtFlags, mmap, msync, munmap};

/// `struct fsxattr`, include/uapi/linux/fs.h.
#[repr(C)]
#[derive(Default)]
struct FsXattr {
    xflags: u32,
    extsize: u32,
    nextents: u32,
    projid: u32,
    cowextsize: u32,
    pad: [u8; 8],
}
const _: () = assert!(size_of::<FsXattr>() == 28);
nix::ioctl_read!(fs_ioc_fsgetxattr, b'X', 31, FsXattr);
nix::ioctl_write_ptr!(fs_ioc_fssetxattr, b'X', 32, FsXattr);

/// `__NR_cachestat`, the same number on all architectures.
const CACHESTAT: c_long = 451;

/// `struct cachestat_range`, include/uapi/linux/mman.h.
#[repr(C)]
struct CacheRange {
    offset: u64,
    length: u64,
}

/// `struct cachestat`, include/uapi/linux/mman.h.
#[repr(C)]
#[derive(Default)]
struct CacheStat {
    cached: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}
const _: () = assert!(size_of::<CacheStat>() == 40);

/// Pages of the file that are not on the disk yet: cachestat(2), Linux 6.5.
pub fn unwritten_pages(file: impl AsFd) -> u64 {
    // A length of 0 is the rest of the file.
    let (range, mut found) = (CacheRange { offset: 0, length: 0 }, CacheStat::default());
    let file = file.as_fd();
    // SAFETY: `file` is open during the call, in which the kernel reads one `struct cachestat_range` and writes one
    // `struct cachestat` (size asserted above) through the pointers; it keeps neither, and all bit patterns are valid.
    let result = unsafe { syscall(CACHESTAT, file.as_raw_fd(), &raw const range, &raw mut found, 0) };
    Errno::result(result).unwrap();
    found.dirty + found.writeback
}

/// Overwrites the file through a shared mapping, and waits until it is on the disk. If a page gets no blocks, `SIGBUS`
/// ends the process.
pub fn overwrite_mapped(file: &File, byte: u8) {
    let size = NonZeroUsize::new(file.metadata().unwrap().len() as usize).expect("a file with content");
    let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: new memory, at an address that the kernel chooses.
    let address = unsafe { mmap(None, size, access, MapFlags::MAP_SHARED, file, 0) }.unwrap();
    // SAFETY: the whole mapping, which is writable. No reference to it exists.
    unsafe { address.cast::<u8>().write_bytes(byte, size.get()) };
    // SAFETY: the whole mapping, which the call reads.
    unsafe { msync(address, size.get(), MsFlags::MS_SYNC) }.unwrap();
    // SAFETY: the whole mapping, which is not used after the call.
    unsafe { munmap(address, size.get()) }.unwrap();
}

pub fn set_project(inode: impl AsFd, project: u32) -> Result<(), Errno> {
    change(inode, |attributes| attributes.projid = project)
}

/// Sets a flag of the inode (`FS_XFLAG_…`).
pub fn add_flag(inode: impl AsFd, flag: u32) -> Result<(), Errno> {
    change(inode, |attributes| attributes.xflags |= flag)
}

/// Allocation size of XFS for writes to shared blocks of the file; 0 is its default.
pub fn cow_extent_size(file: impl AsFd) -> u32 {
    let mut found = 0;
    change(file, |attributes| found = attributes.cowextsize).unwrap();
    found
}

fn change(inode: impl AsFd, change: impl FnOnce(&mut FsXattr)) -> Result<(), Errno> {
    let inode = inode.as_fd();
    let mut attributes = FsXattr::default();
    // SAFETY: `inode` is open during the call. The kernel writes one `struct fsxattr` (size asserted above) through the
    // pointer and keeps nothing; every bit pattern of it is valid.
    unsafe { fs_ioc_fsgetxattr(inode.as_raw_fd(), &raw mut attributes) }?;
    change(&mut attributes);
    // SAFETY: `inode` is open during the call, in which the kernel reads one `struct fsxattr` from the pointer; it
    // keeps nothing.
    unsafe { fs_ioc_fssetxattr(inode.as_raw_fd(), &raw const attributes) }?;
    Ok(())
}
