//! A directory gets a project; a project gets limits.

use std::os::fd::AsFd;

use dir::Ensured;
use units::Inodes;

use crate::allocator::Allocator;
use crate::directory::open_directory;
use crate::error::{FsError, SetError};
use crate::filesystem::FileSystem;
use crate::limits::{CheckedLimits, Limits};
use crate::project::ProjectId;
use crate::seen::Seen;

/// Limits a directory. One without a project gets a new one and must be empty; on one that has a
/// project this changes the limits only, also while programs write to it.
///
/// Nobody else may write to a directory while it gets its project: a file that appears between the
/// look and the act would not be counted.
///
/// # Errors
/// [`SetError::NotEmpty`] and [`SetError::Nested`] above all. The directory is then as it was.
pub fn set(dir: impl AsFd, limits: Limits, ids: &Allocator) -> Result<Ensured<ProjectId>, SetError> {
    let limits = CheckedLimits::try_from(limits)?;
    let dir = open_directory(dir.as_fd())?;
    let mut seen = Seen::of(&dir)?;
    let fs = seen.file_system()?;
    if let Some(present) = seen.project() {
        return apply(&mut seen, fs, present, limits);
    }
    // The allocator keeps its file system mounted, so that no other one has this number.
    if seen.device()? != ids.device() {
        return Err(SetError::OtherFileSystem);
    }
    // Look before an ID is spent.
    first(&mut seen, limits)?;
    begin(&seen, fs, ids.next()?, limits)
}

/// Limits a directory, under an ID that the caller has from [`Allocator::next`] and has recorded:
/// after a crash, the same call with the same ID finishes the work.
///
/// # Errors
/// Those of [`set`], and [`SetError::OtherProject`] or [`SetError::InUse`] if directory and ID do not
/// belong together. The directory is then as it was.
pub fn assign(dir: impl AsFd, id: ProjectId, limits: Limits) -> Result<Ensured<ProjectId>, SetError> {
    let limits = CheckedLimits::try_from(limits)?;
    let dir = open_directory(dir.as_fd())?;
    let mut seen = Seen::of(&dir)?;
    let fs = seen.file_system()?;
    apply(&mut seen, fs, id, limits)
}

/// Changes limits of a project, whatever carries it: to re-apply recorded limits without opening
/// every directory. `fs` is anything open on the file system.
///
/// A limit below what is in use is taken, and stops further writes.
///
/// # Errors
/// [`SetError::Limit`] and [`SetError::Fs`].
///
/// `Q_XSETQLIM`, Linux 5.14 with `quotactl_fd`.
pub fn set_limits(fs: impl AsFd, id: ProjectId, limits: Limits) -> Result<(), SetError> {
    Ok(FileSystem::of(&fs)?.set_limits(id, limits.try_into()?)?)
}

fn apply(
    seen: &mut Seen<'_>,
    fs: FileSystem<'_>,
    id: ProjectId,
    limits: CheckedLimits,
) -> Result<Ensured<ProjectId>, SetError> {
    match seen.project() {
        Some(found) if found != id => Err(SetError::OtherProject { found, wanted: id }),
        Some(_) if seen.inherits() => {
            if seen.outer() == Some(id) {
                return Err(SetError::Nested { outer: id });
            }
            fs.set_limits(id, limits)?;
            Ok(Ensured::Unchanged(id))
        }
        // Without the flag, what is made in the directory would not be counted.
        Some(_) => {
            first(seen, limits)?;
            fs.set_limits(id, limits)?;
            seen.set_project(Some(id))?;
            Ok(Ensured::Created(id))
        }
        None => {
            first(seen, limits)?;
            begin(seen, fs, id, limits)
        }
    }
}

/// A directory for which [`first`] holds gets its project: the limits before the ID.
fn begin(
    seen: &Seen<'_>,
    fs: FileSystem<'_>,
    id: ProjectId,
    limits: CheckedLimits,
) -> Result<Ensured<ProjectId>, SetError> {
    if let Some(used) = fs.used_beyond(id, Inodes::ZERO)? {
        return Err(SetError::InUse { id, used });
    }
    fs.set_limits(id, limits)?;
    seen.set_project(Some(id)).map_err(|failed| undo(fs, id, failed))?;
    Ok(Ensured::Created(id))
}

/// What must hold before a directory gets a project.
fn first(seen: &mut Seen<'_>, limits: CheckedLimits) -> Result<(), SetError> {
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

/// Limits of a project that nothing carries are rubbish in every later report. They harm nobody, so
/// that the reason for the failure is what the caller hears, whatever becomes of this.
fn undo(fs: FileSystem<'_>, id: ProjectId, failed: FsError) -> FsError {
    let _ = fs.clear_limits(id);
    failed
}
