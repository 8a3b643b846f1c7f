//! Removes projects and limits.

use std::os::fd::AsFd;

use units::Inodes;

use crate::directory::open_directory;
use crate::directory_state::{DirectoryState, attributes, set_project};
use crate::error::{FsError, RemoveError};
use crate::filesystem::{FileSystem, require_xfs};
use crate::project::ProjectId;
use crate::sys::PROJINHERIT;

/// Removes the project of an empty directory: clears the limits, then the project ID. Returns the removed project;
/// `None` if the directory had none, for example after an earlier call.
///
/// The limits are cleared only if the directory is the last inode of the project, so that no data loses its limits.
/// Deleted files that a process has open count too.
///
/// # Errors
/// [`RemoveError::NotEmpty`], [`RemoveError::InUse`], [`RemoveError::Nested`]: the directory is unchanged.
pub fn remove(dir: impl AsFd) -> Result<Option<ProjectId>, RemoveError> {
    let dir = open_directory(dir.as_fd())?;
    let mut seen = DirectoryState::of(&dir)?;
    let fs = seen.file_system()?;
    let Some(id) = seen.project() else { return Ok(None) };
    if seen.outer() == Some(id) {
        return Err(RemoveError::Nested { outer: id });
    }
    if !seen.is_empty()? {
        return Err(RemoveError::NotEmpty);
    }
    // Expect one inode: the directory itself, which may have blocks for attributes.
    require_unused(fs, id, Inodes::new(1))?;
    fs.clear_limits(id)?;
    seen.set_project(None)?;
    Ok(Some(id))
}

pub(crate) fn clear(fs: FileSystem<'_>, id: ProjectId) -> Result<(), RemoveError> {
    require_unused(fs, id, Inodes::ZERO)?;
    Ok(fs.clear_limits(id)?)
}

/// Clears project and inherit flag of a directory with any content, without changing the limits of the project. Use it
/// for a directory through which directories with other projects are renamed, which fails with `EXDEV` otherwise.
/// Returns whether the directory had a project or the flag.
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

fn require_unused(fs: FileSystem<'_>, id: ProjectId, expected: Inodes) -> Result<(), RemoveError> {
    fs.used_beyond(id, expected)?.map_or(Ok(()), |used| Err(RemoveError::InUse { id, used }))
}
