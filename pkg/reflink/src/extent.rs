//! The extents of a file.

use std::os::fd::AsFd;

use nix::errno::Errno;
use units::Bytes;

use crate::sys;

/// Maximum length of a file (`MAX_LFS_FILESIZE`). The last block of a file of this length ends beyond it, and the
/// kernel rejects ranges that begin or end there (`EFBIG`).
const LONGEST: Bytes = Bytes::new(i64::MAX.cast_unsigned());

/// A range of a file with blocks. A range between two extents is a hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Offset in the file.
    pub start: Bytes,
    /// Length, never 0.
    pub length: Bytes,
    /// Whether another file, or another range of this one, has the same blocks.
    pub shared: bool,
}

impl Extent {
    /// Offset of the first byte after the extent.
    pub const fn end(self) -> Bytes {
        self.start.saturating_add(self.length)
    }
}

/// The first extents of the file that end behind `from`, at most 64 and in their order; the first one may begin before
/// `from`. The result is empty after the last extent. The kernel writes dirty pages first.
///
/// # Errors
/// `EOPNOTSUPP`: the file system does not support the call. `EIO`: a dirty page cannot be written.
///
/// `FS_IOC_FIEMAP`, Documentation/filesystems/fiemap.rst, Linux 2.6.28; `FIEMAP_EXTENT_SHARED`, Linux 2.6.33.
pub fn extents(file: impl AsFd, from: Bytes) -> Result<Vec<Extent>, Errno> {
    if from >= LONGEST {
        return Ok(Vec::new());
    }
    let found = sys::extents(file.as_fd(), from.get())?;
    let extent = |found: &sys::KernelExtent| {
        let start = Bytes::new(found.logical);
        let length = Bytes::new(found.length).min(LONGEST.saturating_sub(start));
        Extent { start, length, shared: found.flags & sys::SHARED != 0 }
    };
    Ok(found.mapped().map(extent).filter(|extent| extent.length > Bytes::ZERO).collect())
}
