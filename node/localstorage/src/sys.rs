//! ioctls that nix lacks: size, growth and label of a mounted XFS; partitions and SMART log of a disk.

use std::ffi::{c_char, c_int, c_longlong, c_void};
use std::num::NonZeroU32;
use std::os::fd::{AsRawFd, BorrowedFd};

use nix::errno::Errno;
use units::Bytes;

use crate::content::Geometry;

/// `struct xfs_fsop_geom`, fs/xfs/libxfs/xfs_fs.h. Only the first fields are used.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct FsGeometry {
    blocksize: u32,
    /// rtextsize, agblocks, agcount, logblocks, sectsize, inodesize.
    others: [u32; 6],
    imaxpct: u32,
    datablocks: u64,
    rest: [u64; 27],
}
const _: () = assert!(size_of::<FsGeometry>() == 256);

/// `struct xfs_growfs_data`, fs/xfs/libxfs/xfs_fs.h.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct GrowData {
    newblocks: u64,
    imaxpct: u32,
    pad: u32,
}
const _: () = assert!(size_of::<GrowData>() == 16);

/// `struct blkpg_partition`, include/uapi/linux/blkpg.h.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct BlockPartition {
    start: c_longlong,
    length: c_longlong,
    pno: c_int,
    names: [[c_char; 64]; 2],
}
const _: () = assert!(size_of::<BlockPartition>() == 152);

/// `struct blkpg_ioctl_arg`, include/uapi/linux/blkpg.h.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct BlockArgument {
    op: c_int,
    flags: c_int,
    datalen: c_int,
    data: *mut c_void,
}
const _: () = assert!(size_of::<BlockArgument>() == 24);

/// `struct nvme_passthru_cmd`, include/uapi/linux/nvme_ioctl.h.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct NvmeCommand {
    opcode: u8,
    flags: u8,
    reserved: u16,
    namespace: u32,
    words_2_and_3: [u32; 2],
    metadata: u64,
    address: u64,
    metadata_length: u32,
    data_length: u32,
    word_10: u32,
    words_11_to_15: [u32; 5],
    timeout_milliseconds: u32,
    result: u32,
}
const _: () = assert!(size_of::<NvmeCommand>() == 72);

const GET_LOG: u8 = 2;
/// Selects the log of the whole controller.
const ALL_NAMESPACES: u32 = u32::MAX;
const SMART: u32 = 2;
/// Size of the SMART log in bytes.
const LOG_SIZE: usize = 512;

/// The SMART log. `blk_rq_map_user` (block/blk-map.c) lets the controller write to a buffer only if address and size
/// have the alignment for DMA, by default 512 bytes. It replaces another buffer by pages of zeros, and copies these to
/// the buffer.
#[repr(align(4096))]
struct Log([u8; LOG_SIZE]);

const ADD: c_int = 1;
const RESIZE: c_int = 3;

/// `FSLABEL_MAX`, include/uapi/linux/fs.h.
const LABEL_SIZE: usize = 256;

mod ioctl {
    nix::ioctl_write_ptr!(xfs_ioc_fsgrowfsdata, b'X', 110, super::GrowData);
    nix::ioctl_read!(xfs_ioc_fsgeometry, b'X', 126, super::FsGeometry);
    // `_IO(0x12, 105)`: the number does not encode the argument.
    nix::ioctl_write_ptr_bad!(blkpg, nix::request_code_none!(0x12, 105), super::BlockArgument);
    nix::ioctl_readwrite!(nvme_admin, b'N', 0x41, super::NvmeCommand);
    nix::ioctl_write_ptr!(fs_ioc_setfslabel, 0x94, 50, [u8; super::LABEL_SIZE]);
}

/// Geometry of a mounted file system. The superblock on the disk may be older, until the kernel writes back its log.
///
/// `XFS_IOC_FSGEOMETRY`, Linux 5.2.
pub(crate) fn geometry(fs: BorrowedFd<'_>) -> Result<Geometry, Errno> {
    let mut found = FsGeometry::default();
    // SAFETY: `fs` is open during the call. The kernel writes one `struct xfs_fsop_geom` (size asserted
    // above) through the pointer and keeps nothing; every bit pattern of it is valid.
    unsafe { ioctl::xfs_ioc_fsgeometry(fs.as_raw_fd(), &raw mut found) }?;
    // A percentage.
    let inode_percent = u8::try_from(found.imaxpct).map_err(|_| Errno::EOVERFLOW)?;
    Ok(Geometry { block: Bytes::new(found.blocksize.into()), blocks: found.datablocks, inode_percent })
}

/// Grows the file system to `blocks` blocks while it is in use. The call also sets the percentage for inodes: pass the
/// current one.
///
/// `XFS_IOC_FSGROWFSDATA`, xfs(5); needs `CAP_SYS_ADMIN`.
pub(crate) fn grow(fs: BorrowedFd<'_>, blocks: u64, inode_percent: u8) -> Result<(), Errno> {
    let wanted = GrowData { newblocks: blocks, imaxpct: inode_percent.into(), pad: 0 };
    // SAFETY: `fs` is open during the call. The kernel reads one `struct xfs_growfs_data` (size
    // asserted above) from the pointer and keeps nothing.
    unsafe { ioctl::xfs_ioc_fsgrowfsdata(fs.as_raw_fd(), &raw const wanted) }?;
    Ok(())
}

/// Sets the label of a mounted file system, also in the superblock on the disk.
///
/// `FS_IOC_SETFSLABEL`, XFS since Linux 4.18; needs `CAP_SYS_ADMIN`.
pub(crate) fn set_label(fs: BorrowedFd<'_>, label: &str) -> Result<(), Errno> {
    let mut wanted = [0; LABEL_SIZE];
    // The last byte stays zero: the kernel reads up to the first zero.
    let place = wanted[..LABEL_SIZE - 1].get_mut(..label.len()).ok_or(Errno::EINVAL)?;
    place.copy_from_slice(label.as_bytes());
    // SAFETY: `fs` is open during the call. The kernel reads `FSLABEL_MAX` bytes from the pointer, which
    // is the size of the array, and keeps nothing.
    unsafe { ioctl::fs_ioc_setfslabel(fs.as_raw_fd(), &raw const wanted) }?;
    Ok(())
}

/// Adds a partition of a disk in use to the kernel's table.
///
/// `BLKPG`; needs `CAP_SYS_ADMIN`.
pub(crate) fn add_partition(disk: BorrowedFd<'_>, number: NonZeroU32, start: Bytes, size: Bytes) -> Result<(), Errno> {
    change_partition(disk, ADD, number, start, size)
}

/// Changes the size of a partition in the kernel's table, while the partition and its disk are in use.
///
/// `BLKPG`, Linux 3.6; needs `CAP_SYS_ADMIN`.
pub(crate) fn resize_partition(
    disk: BorrowedFd<'_>,
    number: NonZeroU32,
    start: Bytes,
    size: Bytes,
) -> Result<(), Errno> {
    change_partition(disk, RESIZE, number, start, size)
}

fn change_partition(
    disk: BorrowedFd<'_>,
    op: c_int,
    number: NonZeroU32,
    start: Bytes,
    size: Bytes,
) -> Result<(), Errno> {
    let signed = |bytes: Bytes| c_longlong::try_from(bytes.get()).map_err(|_| Errno::EOVERFLOW);
    let pno = c_int::try_from(number.get()).map_err(|_| Errno::EOVERFLOW)?;
    let mut partition = BlockPartition { start: signed(start)?, length: signed(size)?, pno, names: [[0; 64]; 2] };
    let argument = BlockArgument {
        op,
        flags: 0,
        datalen: size_of::<BlockPartition>() as c_int,
        data: (&raw mut partition).cast(),
    };
    // SAFETY: `disk` is open during the call. The kernel reads one `struct blkpg_ioctl_arg` from the pointer,
    // and from the pointer in it one `struct blkpg_partition` (sizes asserted above), which lives until the end
    // of this function; it writes to neither and keeps nothing.
    unsafe { ioctl::blkpg(disk.as_raw_fd(), &raw const argument) }?;
    Ok(())
}

/// The SMART log of an NVMe disk's controller.
///
/// `NVME_IOCTL_ADMIN_CMD`, Linux 3.3.
pub(crate) fn smart_log(disk: BorrowedFd<'_>) -> Result<[u8; LOG_SIZE], Errno> {
    // Zeros would be a log without warnings, also if the controller wrote nothing.
    let mut log = Log([0xff; LOG_SIZE]);
    let mut command = NvmeCommand {
        opcode: GET_LOG,
        namespace: ALL_NAMESPACES,
        address: log.0.as_mut_ptr().expose_provenance() as u64,
        data_length: LOG_SIZE as u32,
        // Number of further words of 4 bytes, and the log identifier.
        word_10: (LOG_SIZE as u32 / 4 - 1) << 16 | SMART,
        timeout_milliseconds: 5000,
        ..NvmeCommand::default()
    };
    // SAFETY: `disk` is open during the call. The kernel reads and writes one `struct nvme_passthru_cmd` (size asserted
    // above) through the pointer, and writes at most `data_length` bytes, the size of `log`, to `address` before it
    // returns. It keeps neither pointer; every bit pattern of both is valid.
    let status = unsafe { ioctl::nvme_admin(disk.as_raw_fd(), &raw mut command) }?;
    // A positive result is a status code of the controller.
    if status == 0 { Ok(log.0) } else { Err(Errno::EIO) }
}
