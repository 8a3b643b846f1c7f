//! [`Fault`].

use std::fmt;
use std::os::fd::BorrowedFd;

use nix::errno::Errno;

use crate::error::FsError;
use crate::sys;

/// A fault that XFS has detected since the file system was mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fault {
    /// XFS has stopped: all operations fail with `EIO` until the file system is mounted again.
    ShutDown,
    /// Metadata of the whole file system is damaged: its counters or quota records.
    Metadata,
    /// Metadata of this allocation group, or of inodes in it, is damaged or unreadable.
    Group(u32),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ShutDown => f.write_str("XFS has shut the file system down"),
            Self::Metadata => f.write_str("counters or quota records of the file system are damaged"),
            Self::Group(number) => write!(f, "metadata in allocation group {number} of the file system is damaged"),
        }
    }
}

/// `EFSCORRUPTED` of XFS.
const DAMAGED: Errno = Errno::EUCLEAN;
/// `EFSBADCRC` of XFS.
const BAD_CHECKSUM: Errno = Errno::EBADMSG;

/// Reads the faults from the kernel. `fs` must be open for reading.
pub(crate) fn faults(fs: BorrowedFd<'_>) -> Result<Vec<Fault>, FsError> {
    // There are no inodes from this number on, so that the call reads nothing from the disk.
    let shut_down = match sys::inodes_from(fs, u64::MAX) {
        Ok(_) => false,
        Err(Errno::EIO) => true,
        Err(errno) => return Err(FsError::system("XFS_IOC_BULKSTAT")(errno)),
    };
    let geometry = sys::geometry(fs).map_err(FsError::system("XFS_IOC_FSGEOMETRY"))?;
    let whole = [(shut_down, Fault::ShutDown), (geometry.sick != 0, Fault::Metadata)];
    let mut found: Vec<Fault> = whole.into_iter().filter_map(|(is, fault)| is.then_some(fault)).collect();
    for number in 0..geometry.groups {
        match sys::group_geometry(fs, number) {
            Ok(group) if group.sick == 0 => {}
            // After a shutdown, XFS reads nothing from the disk.
            Err(Errno::EIO) if shut_down => {}
            Ok(_) | Err(Errno::EIO | DAMAGED | BAD_CHECKSUM) => found.push(Fault::Group(number)),
            Err(errno) => return Err(FsError::system("XFS_IOC_AG_GEOMETRY")(errno)),
        }
    }
    Ok(found)
}
