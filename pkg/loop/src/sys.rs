//! The ioctls of loop devices and of block devices that nix lacks.

use std::os::fd::{AsRawFd, BorrowedFd};

use nix::errno::Errno;
use nix::libc::c_int;

/// `struct loop_info64`, include/uapi/linux/loop.h.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoopInfo {
    pub(crate) device: u64,
    pub(crate) inode: u64,
    pub(crate) rdevice: u64,
    pub(crate) offset: u64,
    pub(crate) sizelimit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    pub(crate) flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}
const _: () = assert!(size_of::<LoopInfo>() == 232);

impl LoopInfo {
    const EMPTY: Self = Self {
        device: 0,
        inode: 0,
        rdevice: 0,
        offset: 0,
        sizelimit: 0,
        number: 0,
        encrypt_type: 0,
        encrypt_key_size: 0,
        flags: 0,
        file_name: [0; 64],
        crypt_name: [0; 64],
        encrypt_key: [0; 32],
        init: [0; 2],
    };

    /// Configuration of a new device.
    pub(crate) fn wanted(offset: u64, sizelimit: u64, flags: u32) -> Self {
        Self { offset, sizelimit, flags, ..Self::EMPTY }
    }
}

/// `struct loop_config`, include/uapi/linux/loop.h.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct LoopConfig {
    fd: c_int,
    block_size: u32,
    info: LoopInfo,
    reserved: [u64; 8],
}
const _: () = assert!(size_of::<LoopConfig>() == 304);

/// `LO_FLAGS_READ_ONLY`.
pub(crate) const READ_ONLY: u32 = 1;
/// `LO_FLAGS_AUTOCLEAR`.
pub(crate) const AUTOCLEAR: u32 = 4;
/// `LO_FLAGS_PARTSCAN`.
pub(crate) const PARTSCAN: u32 = 8;
/// `LO_FLAGS_DIRECT_IO`.
pub(crate) const DIRECT_IO: u32 = 16;

/// `LOOP_MAJOR`, include/uapi/linux/major.h: the major number of every whole loop device and, with `max_part`, of
/// partitions.
pub(crate) const MAJOR: u32 = 7;

mod ioctl {
    // BLKGETSIZE64 is declared with the size of a size_t and writes a u64.
    const BLKGETSIZE64: u64 = nix::request_code_read!(0x12, 114, size_of::<usize>()) as u64;

    nix::ioctl_none_bad!(loop_clr_fd, 0x4C01);
    nix::ioctl_write_ptr_bad!(loop_set_status64, 0x4C04, super::LoopInfo);
    nix::ioctl_read_bad!(loop_get_status64, 0x4C05, super::LoopInfo);
    nix::ioctl_none_bad!(loop_set_capacity, 0x4C07);
    nix::ioctl_write_ptr_bad!(loop_configure, 0x4C0A, super::LoopConfig);
    nix::ioctl_write_int_bad!(loop_ctl_add, 0x4C80);
    nix::ioctl_write_int_bad!(loop_ctl_remove, 0x4C81);
    nix::ioctl_none_bad!(loop_ctl_get_free, 0x4C82);
    nix::ioctl_read_bad!(blkgetsize64, BLKGETSIZE64, u64);
    nix::ioctl_read_bad!(blksszget, 0x1268, nix::libc::c_int);
}

/// Number of a device without a backing file. Creates a device if there is none (`LOOP_CTL_GET_FREE`, Linux 3.1).
pub(crate) fn get_free(control: BorrowedFd<'_>) -> Result<c_int, Errno> {
    // SAFETY: `control` is open during the call, which takes no pointer.
    unsafe { ioctl::loop_ctl_get_free(control.as_raw_fd()) }
}

/// Creates the device with this number; `EEXIST` if there is one, `EINVAL` if no device can have the number
/// (`LOOP_CTL_ADD`, Linux 3.1).
pub(crate) fn add(control: BorrowedFd<'_>, number: c_int) -> Result<(), Errno> {
    // SAFETY: `control` is open during the call, which takes no pointer.
    unsafe { ioctl::loop_ctl_add(control.as_raw_fd(), number) }.map(drop)
}

/// Removes the device with this number; `EBUSY` if it is attached or open, `ENODEV` if there is none
/// (`LOOP_CTL_REMOVE`, Linux 3.1).
pub(crate) fn remove(control: BorrowedFd<'_>, number: c_int) -> Result<(), Errno> {
    // SAFETY: `control` is open during the call, which takes no pointer.
    unsafe { ioctl::loop_ctl_remove(control.as_raw_fd(), number) }.map(drop)
}

/// Sets the backing file and the whole configuration of a device in one step (`LOOP_CONFIGURE`, Linux 5.8).
pub(crate) fn configure(
    device: BorrowedFd<'_>,
    backing: BorrowedFd<'_>,
    block_size: u32,
    info: LoopInfo,
) -> Result<(), Errno> {
    let config = LoopConfig { fd: backing.as_raw_fd(), block_size, info, reserved: [0; 8] };
    // SAFETY: both descriptors are open during the call. The kernel reads one `struct loop_config` (size
    // asserted above) from the reference; of `backing` it takes a reference of its own.
    unsafe { ioctl::loop_configure(device.as_raw_fd(), &raw const config) }.map(drop)
}

/// Whether the kernel supports `LOOP_CONFIGURE`. Changes nothing.
pub(crate) fn has_configure(device: BorrowedFd<'_>) -> bool {
    let nothing = LoopConfig { fd: -1, block_size: 0, info: LoopInfo::EMPTY, reserved: [0; 8] };
    // SAFETY: `device` is open during the call. The kernel reads one `struct loop_config` (size asserted
    // above); it looks up the descriptor in it first, and -1 is none: the call ends with `EBADF` where
    // it exists, with `EINVAL` or `ENOTTY` elsewhere.
    let answer = unsafe { ioctl::loop_configure(device.as_raw_fd(), &raw const nothing) };
    answer == Err(Errno::EBADF)
}

/// Status of a device; `ENXIO` if it is not attached (`LOOP_GET_STATUS64`, Linux 2.6).
pub(crate) fn status(device: BorrowedFd<'_>) -> Result<LoopInfo, Errno> {
    let mut found = LoopInfo::EMPTY;
    // SAFETY: `device` is open during the call. The kernel writes one `struct loop_info64` (size asserted
    // above) through the pointer and keeps nothing; every bit pattern of it is valid.
    unsafe { ioctl::loop_get_status64(device.as_raw_fd(), &raw mut found) }?;
    Ok(found)
}

/// Sets the properties that can change while a file is attached: offset, size limit, name and some flags
/// (`LOOP_SET_STATUS64`, Linux 2.6).
pub(crate) fn set_status(device: BorrowedFd<'_>, info: &LoopInfo) -> Result<(), Errno> {
    // SAFETY: `device` is open during the call. The kernel reads one `struct loop_info64` (size asserted
    // above) from the reference and does not keep the pointer.
    unsafe { ioctl::loop_set_status64(device.as_raw_fd(), &raw const *info) }.map(drop)
}

/// Updates the size of the device from the backing file (`LOOP_SET_CAPACITY`, Linux 2.6.30).
pub(crate) fn set_capacity(device: BorrowedFd<'_>) -> Result<(), Errno> {
    // SAFETY: `device` is open during the call, which takes no pointer.
    unsafe { ioctl::loop_set_capacity(device.as_raw_fd()) }.map(drop)
}

/// Detaches the device from its backing file, or marks it for a deferred detach (`LOOP_CLR_FD`).
pub(crate) fn clear(device: BorrowedFd<'_>) -> Result<(), Errno> {
    // SAFETY: `device` is open during the call, which takes no pointer.
    unsafe { ioctl::loop_clr_fd(device.as_raw_fd()) }.map(drop)
}

/// Size of a block device in bytes (`BLKGETSIZE64`).
pub(crate) fn size(device: BorrowedFd<'_>) -> Result<u64, Errno> {
    let mut bytes = 0;
    // SAFETY: `device` is open during the call. The kernel writes a u64 through the pointer and keeps
    // nothing; every bit pattern of it is valid.
    unsafe { ioctl::blkgetsize64(device.as_raw_fd(), &raw mut bytes) }?;
    Ok(bytes)
}

/// Logical block size of a block device in bytes (`BLKSSZGET`).
pub(crate) fn block_size(device: BorrowedFd<'_>) -> Result<u32, Errno> {
    let mut bytes: c_int = 0;
    // SAFETY: `device` is open during the call. The kernel writes an int through the pointer and keeps
    // nothing; every bit pattern of it is valid.
    unsafe { ioctl::blksszget(device.as_raw_fd(), &raw mut bytes) }?;
    u32::try_from(bytes).map_err(|_| Errno::ERANGE)
}
