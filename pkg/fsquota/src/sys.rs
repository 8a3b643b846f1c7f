//! System calls that nix lacks: attributes of an inode, `quotactl_fd`, and `getdents64` without a stream.

use std::mem::offset_of;

use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::from_mut;

use nix::errno::Errno;
use nix::libc;

/// `struct fsxattr`, include/uapi/linux/fs.h.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FsXattr {
    pub(crate) xflags: u32,
    extsize: u32,
    nextents: u32,
    pub(crate) projid: u32,
    cowextsize: u32,
    pad: [u8; 8],
}
const _: () = assert!(size_of::<FsXattr>() == 28);

/// `FS_XFLAG_PROJINHERIT`: new files in this directory inherit its project.
pub(crate) const PROJINHERIT: u32 = 0x200;

/// `FS_XFLAG_COWEXTSIZE`: writes to shared blocks allocate `cowextsize` bytes.
const COWEXTSIZE: u32 = 0x0001_0000;

impl FsXattr {
    /// Sets the size; zero removes it.
    pub(crate) const fn with_cow_extent_size(self, cowextsize: u32) -> Self {
        let xflags = match cowextsize {
            0 => self.xflags & !COWEXTSIZE,
            _ => self.xflags | COWEXTSIZE,
        };
        Self { xflags, cowextsize, ..self }
    }
}

/// `struct fs_disk_quota`, include/uapi/linux/dqblk_xfs.h.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DiskQuota {
    version: i8,
    flags: i8,
    pub(crate) fieldmask: u16,
    pub(crate) id: u32,
    pub(crate) blk_hardlimit: u64,
    pub(crate) blk_softlimit: u64,
    pub(crate) ino_hardlimit: u64,
    pub(crate) ino_softlimit: u64,
    pub(crate) bcount: u64,
    pub(crate) icount: u64,
    itimer: i32,
    btimer: i32,
    iwarns: u16,
    bwarns: u16,
    itimer_hi: i8,
    btimer_hi: i8,
    rtbtimer_hi: i8,
    padding2: i8,
    rtb_hardlimit: u64,
    rtb_softlimit: u64,
    rtbcount: u64,
    rtbtimer: i32,
    rtbwarns: u16,
    padding3: i16,
    padding4: [i8; 8],
}
const _: () = assert!(size_of::<DiskQuota>() == 112);

impl DiskQuota {
    /// A request for a project with all values 0.
    pub(crate) fn of(id: u32) -> Self {
        Self { version: VERSION, flags: PROJECT_FLAG, id, ..Self::default() }
    }

    /// A request for a grace time of 68 years, for each project whose usage exceeds its soft limit of space later. The
    /// record of ID 0 has this time.
    pub(crate) fn longest_grace() -> Self {
        Self { fieldmask: BLOCK_TIMER, btimer: i32::MAX, ..Self::of(0) }
    }

    /// Moves the end of the grace time to 2106, the last second that all formats of XFS can store. The kernel clears
    /// the end if the usage does not exceed the soft limit.
    pub(crate) fn extend_grace(&mut self) {
        self.fieldmask |= BLOCK_TIMER | BIG_TIMES;
        self.btimer = u32::MAX.cast_signed();
    }
}

/// `FS_DQ_ISOFT | FS_DQ_IHARD`: the kernel uses the inode limits of a [`DiskQuota`].
pub(crate) const INODE_LIMITS: u16 = 1 << 0 | 1 << 1;
/// `FS_DQ_BSOFT | FS_DQ_BHARD`: the kernel uses the block limits of a [`DiskQuota`].
pub(crate) const BLOCK_LIMITS: u16 = 1 << 2 | 1 << 3;
/// `FS_DQ_BTIMER`: the kernel uses `btimer` of a [`DiskQuota`].
const BLOCK_TIMER: u16 = 1 << 6;
/// `FS_DQ_BIGTIME`, Linux 5.10: the times have 40 bits, the upper ones in `btimer_hi`.
const BIG_TIMES: u16 = 1 << 15;

/// `struct fs_qfilestatv`, include/uapi/linux/dqblk_xfs.h.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct QuotaFile {
    ino: u64,
    nblks: u64,
    nextents: u32,
    pad: u32,
}

/// `struct fs_quota_statv`, include/uapi/linux/dqblk_xfs.h.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct QuotaState {
    version: i8,
    pad1: u8,
    flags: u16,
    incoredqs: u32,
    files: [QuotaFile; 3],
    timelimits: [i32; 3],
    warnlimits: [u16; 3],
    pad3: u16,
    pad4: u32,
    pad2: [u64; 7],
}
const _: () = assert!(size_of::<QuotaState>() == 160);

/// `FS_DQUOT_VERSION` and `FS_QSTATV_VERSION1`.
const VERSION: i8 = 1;
/// `FS_PROJ_QUOTA`.
const PROJECT_FLAG: i8 = 1 << 1;
/// `PRJQUOTA`, include/linux/quota.h.
const PROJECT_TYPE: u32 = 2;
/// `FS_QUOTA_PDQ_ACCT` and `FS_QUOTA_PDQ_ENFD`.
const ACCOUNTED: u16 = 1 << 4;
const ENFORCED: u16 = 1 << 5;

const Q_XGETQUOTA: u32 = 0x5803;
const Q_XSETQLIM: u32 = 0x5804;
const Q_XGETQSTATV: u32 = 0x5808;
const Q_XGETNEXTQUOTA: u32 = 0x5809;

mod ioctl {
    nix::ioctl_read!(fs_ioc_fsgetxattr, b'X', 31, super::FsXattr);
    nix::ioctl_write_ptr!(fs_ioc_fssetxattr, b'X', 32, super::FsXattr);
    nix::ioctl_readwrite!(xfs_ioc_ag_geometry, b'X', 61, super::GroupGeometry);
    nix::ioctl_read!(xfs_ioc_fsgeometry, b'X', 126, super::Geometry);
    nix::ioctl_read!(xfs_ioc_free_eofblocks, b'X', 58, super::FreeBlocks);
    // The request number encodes the size of the request without the records that follow it.
    nix::ioctl_read_bad!(xfs_ioc_bulkstat, nix::request_code_read!(b'X', 127, 64), super::BulkRequest<0>);
}

/// `struct xfs_fsop_geom`, fs/xfs/libxfs/xfs_fs.h.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Geometry {
    block_size: u32,
    rt_extent_size: u32,
    group_blocks: u32,
    pub(crate) groups: u32,
    log_blocks: u32,
    sector_size: u32,
    inode_size: u32,
    inode_percent: u32,
    sizes: [u64; 4],
    uuid: [u8; 16],
    stripe: [u32; 2],
    version: i32,
    flags: u32,
    log_and_directory: [u32; 4],
    /// `XFS_FSOP_GEOM_SICK_*`.
    pub(crate) sick: u32,
    checked: u32,
    reserved: [u64; 17],
}
const _: () = assert!(offset_of!(Geometry, sick) == 112 && size_of::<Geometry>() == 256);

/// `struct xfs_ag_geometry`, fs/xfs/libxfs/xfs_fs.h.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct GroupGeometry {
    number: u32,
    length: u32,
    free_blocks: u32,
    inodes: u32,
    free_inodes: u32,
    /// `XFS_AG_GEOM_SICK_*`.
    pub(crate) sick: u32,
    checked: u32,
    flags: u32,
    reserved: [u64; 12],
}
const _: () = assert!(offset_of!(GroupGeometry, sick) == 20 && size_of::<GroupGeometry>() == 128);

/// `struct xfs_fs_eofblocks`, fs/xfs/libxfs/xfs_fs.h.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct FreeBlocks {
    version: u32,
    flags: u32,
    uid: u32,
    gid: u32,
    prid: u32,
    pad32: u32,
    min_file_size: u64,
    pad64: [u64; 12],
}
const _: () = assert!(size_of::<FreeBlocks>() == 128);

/// `struct xfs_bulkstat`, fs/xfs/libxfs/xfs_fs.h: attributes of an inode.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Inode {
    pub(crate) number: u64,
    size: u64,
    blocks: u64,
    xflags: u64,
    times: [i64; 4],
    generation: u32,
    uid: u32,
    gid: u32,
    pub(crate) project: u32,
    nanoseconds: [u32; 4],
    block_size: u32,
    device: u32,
    cow_extent_size: u32,
    extent_size: u32,
    links: u32,
    extents: u32,
    attribute_extents: u32,
    version: u16,
    fork_offset: u16,
    sick: u16,
    checked: u16,
    mode: u16,
    pad2: u16,
    extents64: u64,
    pad: [u64; 6],
}
const _: () = assert!(size_of::<Inode>() == 192);

impl Inode {
    pub(crate) fn is_directory(&self) -> bool {
        u32::from(self.mode) & libc::S_IFMT == libc::S_IFDIR
    }

    /// Whether the inode has a name. Deleted files that a process has open have none.
    pub(crate) fn is_linked(&self) -> bool {
        self.links > 0
    }

    pub(crate) fn inherits(&self) -> bool {
        self.xflags & u64::from(PROJINHERIT) != 0
    }
}

/// `struct xfs_bulk_ireq` with space for some records.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct BulkRequest<const RECORDS: usize> {
    first: u64,
    flags: u32,
    wanted: u32,
    found: u32,
    group: u32,
    reserved: [u64; 5],
    inodes: [Inode; RECORDS],
}
const _: () = assert!(offset_of!(BulkRequest<1>, inodes) == 64 && size_of::<BulkRequest<1>>() == 256);
const _: () = assert!(size_of::<BulkRequest<MANY>>() == 64 + 192 * MANY);

/// Number of inodes that [`inodes_from`] reads with one call.
const MANY: usize = 64;

impl<const RECORDS: usize> BulkRequest<RECORDS> {
    fn from(first: u64) -> Self {
        let inodes = [Inode::default(); RECORDS];
        Self { first, flags: 0, wanted: RECORDS as u32, found: 0, group: 0, reserved: [0; 5], inodes }
    }
}

/// `XFS_EOFBLOCKS_VERSION`.
const FREE_BLOCKS_VERSION: u32 = 1;
/// `XFS_EOF_FLAGS_PRID`.
const OF_PROJECT: u32 = 1 << 3;
/// `XFS_EOF_FLAGS_SYNC`. Without it, XFS skips files with dirty pages, files that a process reads or writes at this
/// moment and, since Linux 6.12, shared blocks of files that are open for writing.
const SYNC: u32 = 1 << 0;

/// Files whose preallocated blocks [`free_deferred`] frees.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Files {
    /// Retries files that a process reads or writes at this moment, without a limit: a process that always reads such a
    /// file delays the call for as long.
    All,
    /// Skips files in use. Waits for no process.
    Idle,
}

/// Reads the attributes of an open inode (`FS_IOC_FSGETXATTR`, Linux 4.5).
pub(crate) fn fsxattr(inode: BorrowedFd<'_>) -> Result<FsXattr, Errno> {
    let mut found = FsXattr::default();
    // SAFETY: `inode` is open during the call. The kernel writes one `struct fsxattr` (size asserted
    // above) through the pointer and does not keep the pointer; every bit pattern of it is valid.
    unsafe { ioctl::fs_ioc_fsgetxattr(inode.as_raw_fd(), &raw mut found) }?;
    Ok(found)
}

/// Sets the attributes of an open inode (`FS_IOC_FSSETXATTR`, Linux 4.5) in one transaction.
pub(crate) fn set_fsxattr(inode: BorrowedFd<'_>, wanted: &FsXattr) -> Result<(), Errno> {
    // SAFETY: `inode` is open during the call. The kernel reads one `struct fsxattr` (size asserted
    // above) from the reference and does not keep it.
    unsafe { ioctl::fs_ioc_fssetxattr(inode.as_raw_fd(), wanted) }?;
    Ok(())
}

/// Reads the geometry of the file system, and which of its metadata XFS has found damaged (`XFS_IOC_FSGEOMETRY`, with
/// health since Linux 5.2).
pub(crate) fn geometry(fs: BorrowedFd<'_>) -> Result<Geometry, Errno> {
    let mut found = Geometry::default();
    // SAFETY: `fs` is open during the call. The kernel writes one `struct xfs_fsop_geom` (size asserted above) through
    // the pointer and does not keep the pointer; every bit pattern of it is valid.
    unsafe { ioctl::xfs_ioc_fsgeometry(fs.as_raw_fd(), &raw mut found) }?;
    Ok(found)
}

/// Reads the geometry of an allocation group, and its damage. The call reads the headers of the group
/// (`XFS_IOC_AG_GEOMETRY`, Linux 5.2).
pub(crate) fn group_geometry(fs: BorrowedFd<'_>, number: u32) -> Result<GroupGeometry, Errno> {
    let mut found = GroupGeometry { number, ..GroupGeometry::default() };
    // SAFETY: `fs` is open during the call. The kernel reads and writes one `struct xfs_ag_geometry` (size asserted
    // above) through the pointer and does not keep the pointer; every bit pattern of it is valid.
    unsafe { ioctl::xfs_ioc_ag_geometry(fs.as_raw_fd(), &raw mut found) }?;
    Ok(found)
}

/// Frees preallocated blocks of a project, behind the ends of its files and for writes to shared blocks, and then
/// deleted inodes of the whole file system (`XFS_IOC_FREE_EOFBLOCKS`, Linux 3.8; shared blocks since 4.10, inodes since
/// 5.15).
pub(crate) fn free_deferred(fs: BorrowedFd<'_>, project: u32, files: Files) -> Result<(), Errno> {
    let flags = match files {
        Files::All => OF_PROJECT | SYNC,
        Files::Idle => OF_PROJECT,
    };
    let mut what = FreeBlocks { version: FREE_BLOCKS_VERSION, flags, prid: project, ..FreeBlocks::default() };
    // SAFETY: `fs` is open during the call. The kernel reads one `struct xfs_fs_eofblocks` (size
    // asserted above) through the pointer and does not keep the pointer.
    unsafe { ioctl::xfs_ioc_free_eofblocks(fs.as_raw_fd(), &raw mut what) }?;
    Ok(())
}

/// Reads an inode by its number without opening it; `None` if it does not exist.
///
/// `XFS_IOC_BULKSTAT`, Linux 5.4.
pub(crate) fn inode(fs: BorrowedFd<'_>, number: u64) -> Result<Option<Inode>, Errno> {
    let mut request = BulkRequest::<1>::from(number);
    bulkstat(fs, &mut request)?;
    // If the inode does not exist, the call returns the next one.
    let [inode] = request.inodes;
    Ok((request.found == 1 && inode.number == number).then_some(inode))
}

/// Reads the next inodes at or after `number`, in order; none at the end. Also returns the number to continue at.
///
/// `XFS_IOC_BULKSTAT`, Linux 5.4.
pub(crate) fn inodes_from(fs: BorrowedFd<'_>, number: u64) -> Result<(Vec<Inode>, u64), Errno> {
    let mut request = BulkRequest::<MANY>::from(number);
    bulkstat(fs, &mut request)?;
    Ok((request.inodes.into_iter().take(request.found as usize).collect(), request.first))
}

fn bulkstat<const RECORDS: usize>(fs: BorrowedFd<'_>, request: &mut BulkRequest<RECORDS>) -> Result<(), Errno> {
    // SAFETY: `fs` is open during the call. The kernel reads and writes one `struct xfs_bulk_ireq` followed by at most
    // `wanted` records of `struct xfs_bulkstat`, which is their number here (sizes asserted above), through the pointer
    // and does not keep the pointer; every bit pattern of them is valid.
    unsafe { ioctl::xfs_ioc_bulkstat(fs.as_raw_fd(), from_mut(request).cast()) }.map(drop)
}

/// Reads the next entries of a directory as a sequence of `struct linux_dirent64`; returns their length in bytes, 0 at
/// the end (`getdents64(2)`, Linux 2.4).
pub(crate) fn entries(dir: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<usize, Errno> {
    // SAFETY: `dir` is open during the call. The kernel writes at most the length of `buffer` through
    // the pointer and does not keep the pointer.
    let length = unsafe { libc::syscall(libc::SYS_getdents64, dir.as_raw_fd(), buffer.as_mut_ptr(), buffer.len()) };
    Errno::result(length).map(i64::cast_unsigned).map(|length| length as usize)
}

/// Reads limits and usage of a project; `ENOENT` if the kernel has no record of it.
pub(crate) fn quota(fs: BorrowedFd<'_>, id: u32) -> Result<DiskQuota, Errno> {
    let mut found = DiskQuota::default();
    quotactl(fs, Q_XGETQUOTA, id, &mut found)?;
    Ok(found)
}

/// Reads the first project at or after `id` with limits or usage; `ENOENT` if there is none.
///
/// `Q_XGETNEXTQUOTA`, Linux 4.6.
pub(crate) fn next_quota(fs: BorrowedFd<'_>, id: u32) -> Result<DiskQuota, Errno> {
    let mut found = DiskQuota::default();
    quotactl(fs, Q_XGETNEXTQUOTA, id, &mut found)?;
    Ok(found)
}

/// Sets the limits and times of a project that `fieldmask` selects.
pub(crate) fn set_limits(fs: BorrowedFd<'_>, wanted: &DiskQuota) -> Result<(), Errno> {
    let mut wanted = *wanted;
    quotactl(fs, Q_XSETQLIM, wanted.id, &mut wanted)
}

/// State of project quotas of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProjectQuota {
    Off,
    Counted,
    Enforced,
}

/// Reads the state of project quotas. `ENOSYS` if no kind of quota is on, or if the kernel lacks the call.
pub(crate) fn project_quota(fs: BorrowedFd<'_>) -> Result<ProjectQuota, Errno> {
    let mut found = QuotaState { version: VERSION, ..QuotaState::default() };
    quotactl(fs, Q_XGETQSTATV, 0, &mut found)?;
    Ok(match (found.flags & ACCOUNTED != 0, found.flags & ENFORCED != 0) {
        (false, _) => ProjectQuota::Off,
        (true, false) => ProjectQuota::Counted,
        (true, true) => ProjectQuota::Enforced,
    })
}

/// Whether the kernel has `quotactl_fd` (Linux 5.14).
pub(crate) fn has_quotactl_fd() -> bool {
    // SAFETY: the call gets no valid descriptor and no pointer, so it ends with `EBADF` if it exists.
    let result = unsafe { libc::syscall(libc::SYS_quotactl_fd, -1, 0, 0, 0) };
    Errno::result(result) != Err(Errno::ENOSYS)
}

/// Argument of a `quotactl_fd` command.
trait Argument: Copy {}
impl Argument for DiskQuota {}
impl Argument for QuotaState {}

/// `quotactl_fd(2)` for project quotas of the file system of `fs`, Linux 5.14.
fn quotactl<T: Argument>(fs: BorrowedFd<'_>, command: u32, id: u32, argument: &mut T) -> Result<(), Errno> {
    let command = command << 8 | PROJECT_TYPE;
    // SAFETY: `fs` is open during the call. The kernel reads or writes one structure of the command
    // (the callers pair them; sizes asserted above) through the pointer and does not keep the pointer; every bit
    // pattern of these structures is valid.
    let result = unsafe { libc::syscall(libc::SYS_quotactl_fd, fs.as_raw_fd(), command, id, from_mut(argument)) };
    Errno::result(result).map(drop)
}
