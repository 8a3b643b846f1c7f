//! A file system whose project quotas are on.

use std::os::fd::{AsFd, BorrowedFd};

use nix::errno::Errno;
use nix::sys::statfs::{XFS_SUPER_MAGIC, fstatfs};

use crate::error::FsError;
use crate::limits::{CheckedLimits, Quota, unlimited};
use crate::project::ProjectId;
use crate::sys::{self, ProjectQuota};

/// An XFS that counts and enforces projects. Having one is the proof.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileSystem<'fd>(BorrowedFd<'fd>);

impl<'fd> FileSystem<'fd> {
    /// The file system that something open lies on.
    pub(crate) fn of(inode: &'fd impl AsFd) -> Result<Self, FsError> {
        let fd = inode.as_fd();
        require_xfs(fd)?;
        match sys::project_quota(fd) {
            Ok(ProjectQuota::Enforced) => Ok(Self(fd)),
            Ok(ProjectQuota::Counted) => Err(FsError::EnforcementOff),
            Ok(ProjectQuota::Off) => Err(FsError::AccountingOff),
            // XFS says so when no kind of quota is on, the kernel when it lacks the call.
            Err(Errno::ENOSYS) if sys::has_quotactl_fd() => Err(FsError::AccountingOff),
            Err(Errno::ENOSYS) => Err(FsError::KernelTooOld),
            Err(errno) => Err(FsError::system("quotactl_fd Q_XGETQSTATV")(errno)),
        }
    }

    pub(crate) fn quota(self, id: ProjectId) -> Result<Quota, FsError> {
        let found = match sys::quota(self.0, id.get()) {
            Err(Errno::ENOENT) => sys::DiskQuota::default(),
            found => found.map_err(FsError::system("quotactl_fd Q_XGETQUOTA"))?,
        };
        Ok(Quota::from_kernel(id, &found))
    }

    /// The first project from `id` on that has a limit or uses anything.
    pub(crate) fn next_quota(self, id: ProjectId) -> Result<Option<Quota>, FsError> {
        match sys::next_quota(self.0, id.get()) {
            Ok(found) => Ok(ProjectId::new(found.id).map(|id| Quota::from_kernel(id, &found))),
            Err(Errno::ENOENT) => Ok(None),
            Err(errno) => Err(FsError::system("quotactl_fd Q_XGETNEXTQUOTA")(errno)),
        }
    }

    pub(crate) fn set_limits(self, id: ProjectId, limits: CheckedLimits) -> Result<(), FsError> {
        if limits.sets_nothing() {
            return Ok(());
        }
        sys::set_limits(self.0, &limits.to_kernel(id)).map_err(FsError::system("quotactl_fd Q_XSETQLIM"))
    }

    pub(crate) fn clear_limits(self, id: ProjectId) -> Result<(), FsError> {
        sys::set_limits(self.0, &unlimited(id)).map_err(FsError::system("quotactl_fd Q_XSETQLIM"))
    }

    /// Waits until files of the project that are deleted, and that nobody has open, are not counted
    /// any more: XFS frees them in the background.
    pub(crate) fn free_deleted(self, id: ProjectId) -> Result<(), FsError> {
        sys::free_deferred(self.0, id.get()).map_err(FsError::system("XFS_IOC_FREE_EOFBLOCKS"))
    }
}

pub(crate) fn require_xfs(inode: BorrowedFd<'_>) -> Result<(), FsError> {
    let kind = fstatfs(inode).map_err(FsError::system("fstatfs"))?.filesystem_type();
    if kind == XFS_SUPER_MAGIC { Ok(()) } else { Err(FsError::NotXfs) }
}
