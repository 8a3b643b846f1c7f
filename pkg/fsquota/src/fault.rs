//! [`Fault`].

use std::fmt;
use std::num::NonZeroU32;
use std::os::fd::BorrowedFd;

use nix::errno::Errno;

use crate::error::FsError;
use crate::sys;

/// A fault that XFS has detected since the file system was mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// XFS has stopped: all operations fail with `EIO` until the file system is mounted again.
    ShutDown,
    /// Metadata of the whole file system is damaged: its counters or quota records.
    Metadata,
    /// Metadata of allocation groups, or of inodes in them, is damaged or unreadable.
    Groups {
        /// Number of these groups.
        damaged: NonZeroU32,
        /// The first of them.
        first: u32,
    },
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ShutDown => f.write_str("XFS has shut the file system down"),
            Self::Metadata => f.write_str("counters or quota records of the file system are damaged"),
            Self::Groups { damaged, first } => {
                write!(
                    f,
                    "metadata in allocation groups of the file system is damaged: {damaged}, the first is {first}"
                )
            }
        }
    }
}

/// `EFSCORRUPTED` of XFS.
const DAMAGED: Errno = Errno::EUCLEAN;
/// `EFSBADCRC` of XFS.
const BAD_CHECKSUM: Errno = Errno::EBADMSG;

/// Reads the faults from the kernel, at most one of each variant. `fs` must be open for reading.
pub(crate) fn faults(fs: BorrowedFd<'_>) -> Result<Vec<Fault>, FsError> {
    // No inode has this number or a higher one, so the call reads nothing from the disk. After a shutdown, XFS returns
    // EIO.
    let shut_down = match sys::inodes_from(fs, u64::MAX) {
        Ok(_) => false,
        Err(Errno::EIO) => true,
        Err(errno) => return Err(FsError::system("XFS_IOC_BULKSTAT")(errno)),
    };
    let geometry = sys::geometry(fs).map_err(FsError::system("XFS_IOC_FSGEOMETRY"))?;
    let mut damaged = Vec::new();
    for number in 0..geometry.groups {
        match sys::group_geometry(fs, number) {
            Ok(group) if group.sick == 0 => {}
            // After a shutdown, XFS reads nothing from the disk.
            Err(Errno::EIO) if shut_down => {}
            Ok(_) | Err(Errno::EIO | DAMAGED | BAD_CHECKSUM) => damaged.push(number),
            Err(errno) => return Err(FsError::system("XFS_IOC_AG_GEOMETRY")(errno)),
        }
    }
    let first = damaged.first().copied().unwrap_or_default();
    let groups = u32::try_from(damaged.len()).ok().and_then(NonZeroU32::new);
    let whole = [(shut_down, Fault::ShutDown), (geometry.sick != 0, Fault::Metadata)];
    let whole = whole.into_iter().filter_map(|(is, fault)| is.then_some(fault));
    Ok(whole.chain(groups.map(|damaged| Fault::Groups { damaged, first })).collect())
}
