//! A file system whose project quotas are on.

use std::os::fd::{AsFd, BorrowedFd};

use nix::errno::Errno;
use nix::sys::statfs::{XFS_SUPER_MAGIC, fstatfs};
use units::Inodes;

use crate::directory::open_directory;
use crate::error::FsError;
use crate::limits::{CheckedLimits, Quota, Usage, unlimited};
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
        Self::on_xfs(fd)
    }

    /// The same, where it is known already that it is an XFS.
    pub(crate) fn on_xfs(inode: BorrowedFd<'fd>) -> Result<Self, FsError> {
        enforced(sys::project_quota(inode), sys::has_quotactl_fd).map(|()| Self(inode))
    }

    /// The same, where all is known already.
    pub(crate) fn checked(inode: BorrowedFd<'fd>) -> Self {
        Self(inode)
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

    /// What uses a project, if that is more than this many inodes. Deleted files that nobody has open
    /// do not count.
    pub(crate) fn used_beyond(self, id: ProjectId, expected: Inodes) -> Result<Option<Usage>, FsError> {
        let beyond = |quota: Quota| Some(quota.used).filter(|used| used.inodes > expected);
        if beyond(self.quota(id)?).is_none() {
            return Ok(None);
        }
        Ok(beyond(self.settled(id)?))
    }

    /// As [`FileSystem::quota`], after deleted files that nobody has open were freed.
    pub(crate) fn settled(self, id: ProjectId) -> Result<Quota, FsError> {
        self.free_deleted(id)?;
        self.quota(id)
    }

    /// Waits until files of the project that are deleted, and that nobody has open, are not counted
    /// any more: XFS frees them in the background.
    fn free_deleted(self, id: ProjectId) -> Result<(), FsError> {
        let freed = match sys::free_deferred(self.0, id.get()) {
            // A descriptor that only names (`O_PATH`): enough for `quotactl_fd`, not for an ioctl.
            Err(Errno::EBADF) => sys::free_deferred(open_directory(self.0)?.as_fd(), id.get()),
            freed => freed,
        };
        freed.map_err(FsError::system("XFS_IOC_FREE_EOFBLOCKS"))
    }
}

/// What it means, that the kernel gave this answer about project quotas.
fn enforced(answer: Result<ProjectQuota, Errno>, has_quotactl_fd: impl FnOnce() -> bool) -> Result<(), FsError> {
    match answer {
        Ok(ProjectQuota::Enforced) => Ok(()),
        Ok(ProjectQuota::Counted) => Err(FsError::EnforcementOff),
        Ok(ProjectQuota::Off) => Err(FsError::AccountingOff),
        // XFS says so when no kind of quota is on, the kernel when it lacks the call.
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
    fn an_old_kernel_and_a_mount_without_quotas_give_the_same_errno_and_are_told_apart() {
        assert_eq!(enforced(Err(Errno::ENOSYS), || true), Err(FsError::AccountingOff));
        assert_eq!(enforced(Err(Errno::ENOSYS), || false), Err(FsError::KernelTooOld));
    }

    #[test]
    fn counting_alone_is_not_enough() {
        assert_eq!(enforced(Ok(ProjectQuota::Enforced), || true), Ok(()));
        assert_eq!(enforced(Ok(ProjectQuota::Counted), || true), Err(FsError::EnforcementOff));
        assert_eq!(enforced(Ok(ProjectQuota::Off), || true), Err(FsError::AccountingOff));
    }

    #[test]
    fn any_other_answer_keeps_its_errno_and_tells_the_call() {
        let refused = enforced(Err(Errno::EPERM), || true);
        assert_eq!(refused, Err(FsError::System { operation: "quotactl_fd Q_XGETQSTATV", source: Errno::EPERM }));
    }
}
