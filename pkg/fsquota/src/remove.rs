//! A directory loses its project; a project loses its limits.

use std::os::fd::AsFd;

use units::Inodes;

use crate::directory::open_directory;
use crate::error::{FsError, RemoveError};
use crate::filesystem::{FileSystem, require_xfs};
use crate::project::ProjectId;
use crate::seen::{Seen, attributes, set_project};
use crate::sys::PROJINHERIT;

/// Takes the project off an empty directory: clears the limits, then the project. Returns the
/// project it had; `None` if it had none, as after an earlier call.
///
/// Limits only go when the directory is the last inode of its project, so that no data is ever
/// without them. Deleted files that a program still has open count too.
///
/// # Errors
/// [`RemoveError::NotEmpty`], [`RemoveError::InUse`], [`RemoveError::Nested`]: nothing has changed.
pub fn remove(dir: impl AsFd) -> Result<Option<ProjectId>, RemoveError> {
    let dir = open_directory(dir.as_fd())?;
    let mut seen = Seen::of(&dir)?;
    let fs = seen.file_system()?;
    let Some(id) = seen.project() else { return Ok(None) };
    if seen.outer() == Some(id) {
        return Err(RemoveError::Nested { outer: id });
    }
    if !seen.is_empty()? {
        return Err(RemoveError::NotEmpty);
    }
    // The directory itself is one inode, and may have blocks for its attributes.
    unused_but_for(fs, id, Inodes::new(1))?;
    fs.clear_limits(id)?;
    seen.set_project(None)?;
    Ok(Some(id))
}

/// Clears the limits of a project that nothing carries any more, as when its directory was deleted.
/// `fs` is anything open on the file system. Does nothing if there are none.
///
/// # Errors
/// [`RemoveError::InUse`]: nothing has changed.
pub fn clear(fs: impl AsFd, id: ProjectId) -> Result<(), RemoveError> {
    clear_in(FileSystem::of(&fs)?, id)
}

pub(crate) fn clear_in(fs: FileSystem<'_>, id: ProjectId) -> Result<(), RemoveError> {
    unused_but_for(fs, id, Inodes::ZERO)?;
    Ok(fs.clear_limits(id)?)
}

/// Takes project and inherit flag off a directory, whatever is in it, and leaves the limits of that project alone: for
/// a directory between projects, that projects are moved through. With either, moving them would end with `EXDEV`.
/// Returns whether it had one of the two.
///
/// # Errors
/// [`FsError`].
///
/// `FS_IOC_FSSETXATTR`, Linux 4.5.
pub fn disown(dir: impl AsFd) -> Result<bool, FsError> {
    let dir = open_directory(dir.as_fd())?;
    require_xfs(dir.as_fd())?;
    let found = attributes(dir.as_fd())?;
    let owned = found.projid != 0 || found.xflags & PROJINHERIT != 0;
    if owned {
        set_project(dir.as_fd(), found, None)?;
    }
    Ok(owned)
}

fn unused_but_for(fs: FileSystem<'_>, id: ProjectId, expected: Inodes) -> Result<(), RemoveError> {
    fs.used_beyond(id, expected)?.map_or(Ok(()), |used| Err(RemoveError::InUse { id, used }))
}
