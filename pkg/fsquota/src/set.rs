//! Assigns projects to directories and limits to projects.

use std::os::fd::{AsFd, BorrowedFd};

use dir::Ensured;
use units::Inodes;

use crate::allocator::Allocator;
use crate::directory::open_directory;
use crate::directory_state::DirectoryState;
use crate::error::{FsError, SetError};
use crate::filesystem::FileSystem;
use crate::limits::{CheckedLimits, Limits};
use crate::project::ProjectId;

/// Sets the limits of a directory. A directory without a project must be empty and gets a new project; for a directory
/// with a project, only the limits change, also while programs write to it.
///
/// No other process may write to a directory while it gets its project, because files that are created during the call
/// would not be counted.
///
/// # Errors
/// Mainly [`SetError::NotEmpty`] and [`SetError::Nested`]. The directory is then unchanged.
pub fn set(dir: impl AsFd, limits: Limits, ids: &Allocator) -> Result<Ensured<ProjectId>, SetError> {
    let limits = CheckedLimits::try_from(limits)?;
    let dir = open_directory(dir.as_fd())?;
    let mut seen = DirectoryState::of(&dir)?;
    let fs = seen.file_system()?;
    if let Some(present) = seen.project() {
        return apply(&mut seen, fs, present, limits, Sharing::Exclusive);
    }
    // The allocator's descriptor keeps its file system mounted, so that no other one can have this device number.
    if seen.device()? != ids.device() {
        return Err(SetError::OtherFileSystem);
    }
    // Check before an ID is allocated.
    check_new(&mut seen, limits)?;
    assign_checked(&seen, fs, ids.next()?, limits)
}

/// Sets the limits of a directory and gives it an ID that the caller allocated with [`Allocator::next`] and recorded:
/// after a crash, the same call with the same ID completes the work.
///
/// # Errors
/// Those of [`set`]; [`SetError::OtherProject`] or [`SetError::InUse`] if the directory has another ID or other inodes
/// have this one. The directory is then unchanged.
pub fn assign(dir: impl AsFd, id: ProjectId, limits: Limits) -> Result<Ensured<ProjectId>, SetError> {
    give(dir.as_fd(), id, limits, Sharing::Exclusive)
}

/// Adds an empty directory to a project that other directories may have too. The directories share the limits. The
/// directory must be on the file system of the others.
///
/// # Errors
/// Those of [`assign`] but for [`SetError::InUse`].
pub fn join(dir: impl AsFd, id: ProjectId, limits: Limits) -> Result<Ensured<ProjectId>, SetError> {
    give(dir.as_fd(), id, limits, Sharing::Shared)
}

/// Changes the limits of a project regardless of its directories, for example to restore recorded limits. `fs` is any
/// open file on the file system.
///
/// The kernel accepts a limit below the current usage and then rejects further writes.
///
/// # Errors
/// [`SetError::Limit`] and [`SetError::Fs`].
///
/// `Q_XSETQLIM`, Linux 5.14 with `quotactl_fd`.
pub fn set_limits(fs: impl AsFd, id: ProjectId, limits: Limits) -> Result<(), SetError> {
    Ok(FileSystem::of(&fs)?.set_limits(id, limits.try_into()?)?)
}

/// Whether other directories may have the project of a directory that gets it.
#[derive(Clone, Copy)]
enum Sharing {
    Exclusive,
    Shared,
}

/// Gives the project to a directory that has none or this one.
fn give(dir: BorrowedFd<'_>, id: ProjectId, limits: Limits, sharing: Sharing) -> Result<Ensured<ProjectId>, SetError> {
    let limits = CheckedLimits::try_from(limits)?;
    let dir = open_directory(dir)?;
    let mut seen = DirectoryState::of(&dir)?;
    let fs = seen.file_system()?;
    apply(&mut seen, fs, id, limits, sharing)
}

fn apply(
    seen: &mut DirectoryState<'_>,
    fs: FileSystem<'_>,
    id: ProjectId,
    limits: CheckedLimits,
    sharing: Sharing,
) -> Result<Ensured<ProjectId>, SetError> {
    match (seen.project(), sharing) {
        (Some(found), _) if found != id => Err(SetError::OtherProject { found, wanted: id }),
        (Some(_), _) if seen.inherits() => {
            if seen.outer() == Some(id) {
                return Err(SetError::Nested { outer: id });
            }
            fs.set_limits(id, limits)?;
            Ok(Ensured::Unchanged(id))
        }
        // Without the flag, new files in the directory would not be counted.
        (Some(_), _) | (None, Sharing::Shared) => {
            check_new(seen, limits)?;
            fs.set_limits(id, limits)?;
            seen.set_project(Some(id))?;
            Ok(Ensured::Created(id))
        }
        (None, Sharing::Exclusive) => {
            check_new(seen, limits)?;
            assign_checked(seen, fs, id, limits)
        }
    }
}

/// Assigns a project to a directory that passed [`check_new`]: first the limits, then the ID.
fn assign_checked(
    seen: &DirectoryState<'_>,
    fs: FileSystem<'_>,
    id: ProjectId,
    limits: CheckedLimits,
) -> Result<Ensured<ProjectId>, SetError> {
    if let Some(used) = fs.used_beyond(id, Inodes::ZERO)? {
        return Err(SetError::InUse { id, used });
    }
    fs.set_limits(id, limits)?;
    seen.set_project(Some(id)).map_err(|failed| undo_limits(fs, id, failed))?;
    Ok(Ensured::Created(id))
}

/// The conditions for assigning a project to a directory.
fn check_new(seen: &mut DirectoryState<'_>, limits: CheckedLimits) -> Result<(), SetError> {
    if limits.sets_nothing() {
        return Err(SetError::NoLimit);
    }
    if let Some(outer) = seen.outer() {
        return Err(SetError::Nested { outer });
    }
    if seen.is_root() {
        return Err(SetError::Root);
    }
    if seen.is_empty()? { Ok(()) } else { Err(SetError::NotEmpty) }
}

/// Clears limits after a failed assignment, so that later reports do not contain a project without inodes. Returns the
/// error of the assignment, because limits without inodes have no effect.
fn undo_limits(fs: FileSystem<'_>, id: ProjectId, failed: FsError) -> FsError {
    let _ = fs.clear_limits(id);
    failed
}
