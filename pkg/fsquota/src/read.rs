//! Reads projects, limits and usage.

use std::os::fd::AsFd;

use nix::errno::Errno;

use crate::directory::{open_directory, require_directory};
use crate::directory_state::project_of;
use crate::error::{FsError, GetError};
use crate::filesystem::{FileSystem, require_xfs};
use crate::limits::Quota;
use crate::project::ProjectId;

/// The project of a directory; `None` if it has none. A subdirectory has the project that it inherited. Works while
/// quotas are off.
///
/// # Errors
/// [`FsError`].
///
/// `FS_IOC_FSGETXATTR`, Linux 4.5.
pub fn project(dir: impl AsFd) -> Result<Option<ProjectId>, FsError> {
    let dir = dir.as_fd();
    require_directory(dir)?;
    require_xfs(dir)?;
    project_of(dir)
}

/// Limits and usage of the project of a directory.
///
/// # Errors
/// [`GetError::NotFound`]: the directory has no project.
///
/// `Q_XGETQUOTA`, Linux 5.14 with `quotactl_fd`.
pub fn get(dir: impl AsFd) -> Result<Quota, GetError> {
    require_directory(dir.as_fd())?;
    let fs = FileSystem::of(&dir)?;
    let id = project_of(dir.as_fd())?.ok_or(GetError::NotFound)?;
    Ok(fs.quota(id)?)
}

/// Limits and usage of a project of the file system of `fs`, which is any open file on it. An ID that was never used
/// has no limits and no usage.
///
/// # Errors
/// [`FsError`].
pub fn quota(fs: impl AsFd, id: ProjectId) -> Result<Quota, FsError> {
    FileSystem::of(&fs)?.quota(id)
}

/// All projects with limits or usage on the file system of `fs`, from the quota records; no directory is read.
///
/// # Errors
/// [`FsError`], from this call and from each step.
///
/// `Q_XGETNEXTQUOTA`, Linux 5.14 with `quotactl_fd`.
pub fn report<'fd, F: AsFd>(fs: &'fd F) -> Result<Report<'fd>, FsError> {
    FileSystem::of(fs).map(Report::of)
}

/// Quotas of a file system in ascending order of project IDs. Ends after an error.
#[derive(Debug)]
pub struct Report<'fd> {
    fs: FileSystem<'fd>,
    next: Option<ProjectId>,
}

impl<'fd> Report<'fd> {
    pub(crate) fn of(fs: FileSystem<'fd>) -> Self {
        Self { fs, next: ProjectId::new(1) }
    }
}

impl Iterator for Report<'_> {
    type Item = Result<Quota, FsError>;

    fn next(&mut self) -> Option<Self::Item> {
        let found = self.fs.next_quota(self.next.take()?).transpose()?;
        if let Ok(quota) = &found {
            self.next = quota.id.get().checked_add(1).and_then(ProjectId::new);
        }
        Some(found)
    }
}

impl std::iter::FusedIterator for Report<'_> {}

/// Checks that `fs` is on an XFS with accounting and enforcement of project quotas.
///
/// # Errors
/// [`FsError`] names the missing requirement.
///
/// `Q_XGETQSTATV`, Linux 5.14 with `quotactl_fd`.
pub fn require(fs: impl AsFd) -> Result<(), FsError> {
    FileSystem::of(&fs).map(drop)
}

/// Makes all limits of the file system durable, and all other data on it.
///
/// # Errors
/// [`FsError::System`]: writing failed.
///
/// `syncfs(2)`, Linux 2.6.39; it reports write errors since 5.8.
pub fn sync(fs: impl AsFd) -> Result<(), FsError> {
    let synced = match nix::unistd::syncfs(fs.as_fd()) {
        // `EBADF`: the descriptor has `O_PATH`.
        Err(Errno::EBADF) => nix::unistd::syncfs(open_directory(fs.as_fd())?),
        synced => synced,
    };
    synced.map_err(FsError::system("syncfs"))
}
