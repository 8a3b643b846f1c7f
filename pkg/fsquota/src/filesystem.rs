//! [`FileSystem`].

use std::os::fd::{AsFd, BorrowedFd};

use nix::errno::Errno;
use nix::sys::statfs::{XFS_SUPER_MAGIC, fstatfs};
use units::{Bytes, Inodes};

use crate::directory::open_directory;
use crate::error::FsError;
use crate::limits::{CheckedLimits, Quota, Usage, unlimited};
use crate::project::ProjectId;
use crate::sys::{self, DiskQuota, Files, ProjectQuota};

/// An XFS with accounting and enforcement of project quotas; checked when the value is created.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileSystem<'fd>(BorrowedFd<'fd>);

impl<'fd> FileSystem<'fd> {
    /// Checks the file system of an open inode.
    pub(crate) fn of(inode: &'fd impl AsFd) -> Result<Self, FsError> {
        let fd = inode.as_fd();
        require_xfs(fd)?;
        Self::on_xfs(fd)
    }

    /// Like [`FileSystem::of`], for a file system that is known to be XFS.
    pub(crate) fn on_xfs(inode: BorrowedFd<'fd>) -> Result<Self, FsError> {
        enforced(sys::project_quota(inode), sys::has_quotactl_fd).map(|()| Self(inode))
    }

    /// Like [`FileSystem::of`], without checks.
    pub(crate) fn checked(inode: BorrowedFd<'fd>) -> Self {
        Self(inode)
    }

    pub(crate) fn quota(self, id: ProjectId) -> Result<Quota, FsError> {
        let found = match sys::quota(self.0, id.get()) {
            Err(Errno::ENOENT) => DiskQuota::default(),
            found => found.map_err(FsError::system("quotactl_fd Q_XGETQUOTA"))?,
        };
        Ok(Quota::from_kernel(id, &found))
    }

    /// The first project at or after `id` that has limits or usage.
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
        self.write(&limits.to_kernel(id))
    }

    /// Like [`FileSystem::set_limits`], with the soft limit of space `shown`, if it is below the hard one. The grace
    /// time comes first in the log, so that the project never has a shorter one.
    pub(crate) fn set_limits_showing(self, id: ProjectId, limits: CheckedLimits, shown: Bytes) -> Result<(), FsError> {
        let wanted = limits.to_kernel_showing(id, shown);
        if wanted.blk_softlimit < wanted.blk_hardlimit {
            self.write(&DiskQuota::longest_grace())?;
        }
        self.write(&wanted)
    }

    pub(crate) fn clear_limits(self, id: ProjectId) -> Result<(), FsError> {
        self.write(&unlimited(id))
    }

    fn write(self, wanted: &DiskQuota) -> Result<(), FsError> {
        sys::set_limits(self.0, wanted).map_err(FsError::system("quotactl_fd Q_XSETQLIM"))
    }

    /// The usage of a project if it is more than `expected` inodes. Deleted files that no process has open are not
    /// counted. Blocks do not matter: a project without inodes has none.
    pub(crate) fn used_beyond(self, id: ProjectId, expected: Inodes) -> Result<Option<Usage>, FsError> {
        let beyond = |quota: Quota| Some(quota.used).filter(|used| used.inodes > expected);
        if beyond(self.quota(id)?).is_none() {
            return Ok(None);
        }
        Ok(beyond(self.without_deleted(id)?))
    }

    /// Like [`FileSystem::quota`], after XFS freed the deleted files that no process has open, and unused blocks.
    pub(crate) fn settled(self, id: ProjectId) -> Result<Quota, FsError> {
        self.free_deferred(id, Files::All)?;
        self.quota(id)
    }

    /// Like [`FileSystem::quota`], after XFS freed the deleted files that no process has open. Files in use keep unused
    /// blocks, so that no process delays the call.
    pub(crate) fn without_deleted(self, id: ProjectId) -> Result<Quota, FsError> {
        self.free_deferred(id, Files::Idle)?;
        self.quota(id)
    }

    /// Waits until XFS counts neither deleted files of the project that no process has open nor blocks that it has
    /// allocated in advance for these files; it frees them in the background.
    fn free_deferred(self, id: ProjectId, files: Files) -> Result<(), FsError> {
        let freed = match sys::free_deferred(self.0, id.get(), files) {
            // An `O_PATH` descriptor works for `quotactl_fd`, but not for an ioctl.
            Err(Errno::EBADF) => sys::free_deferred(open_directory(self.0)?.as_fd(), id.get(), files),
            freed => freed,
        };
        freed.map_err(FsError::system("XFS_IOC_FREE_EOFBLOCKS"))
    }
}

/// Interprets the kernel's state of project quotas.
fn enforced(answer: Result<ProjectQuota, Errno>, has_quotactl_fd: impl FnOnce() -> bool) -> Result<(), FsError> {
    match answer {
        Ok(ProjectQuota::Enforced) => Ok(()),
        Ok(ProjectQuota::Counted) => Err(FsError::EnforcementOff),
        Ok(ProjectQuota::Off) => Err(FsError::AccountingOff),
        // XFS returns ENOSYS if no kind of quota is on, the kernel if it lacks the call.
        Err(Errno::ENOSYS) if has_quotactl_fd() => Err(FsError::AccountingOff),
        Err(Errno::ENOSYS) => Err(FsError::KernelTooOld),
        Err(errno) => Err(FsError::system("quotactl_fd Q_XGETQSTATV")(errno)),
    }
}

pub(crate) fn require_xfs(inode: BorrowedFd<'_>) -> Result<(), FsError> {
    let kind = fstatfs(inode).map_err(FsError::system("fstatfs"))?.filesystem_type();
    if kind == XFS_SUPER_MAGIC { Ok(()) } else { Err(FsError::NotXfs) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn enosys_distinguishes_an_old_kernel_from_quotas_off() {
        assert_eq!(enforced(Err(Errno::ENOSYS), || true), Err(FsError::AccountingOff));
        assert_eq!(enforced(Err(Errno::ENOSYS), || false), Err(FsError::KernelTooOld));
    }

    #[test]
    fn other_errors_contain_the_call_and_errno() {
        let refused = enforced(Err(Errno::EPERM), || true);
        assert_eq!(refused, Err(FsError::System { operation: "quotactl_fd Q_XGETQSTATV", source: Errno::EPERM }));
    }
}
