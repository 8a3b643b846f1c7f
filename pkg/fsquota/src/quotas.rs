//! [`Quotas`].

use std::os::fd::{AsFd, OwnedFd};

use units::{Bytes, Inodes};

use crate::directory::open_directory;
use crate::directory_state::{attributes, set_project};
use crate::error::{FsError, RemoveError, SetError};
use crate::fault::Fault;
use crate::filesystem::FileSystem;
use crate::limits::{CheckedLimits, Limits, Quota};
use crate::project::ProjectId;
use crate::read::Report;
use crate::sys;

/// Project quotas of one file system, for callers with many projects: the checks of the file system run once in
/// [`Quotas::open`] instead of in every call.
///
/// The descriptor keeps the file system mounted. A file system that enforces quotas when it is mounted does so until it
/// is unmounted, unless an administrator turns enforcement off.
#[derive(Debug)]
pub struct Quotas(OwnedFd);

impl Quotas {
    /// Opens the quotas of the file system of `dir`.
    ///
    /// # Errors
    /// [`FsError`] names the missing requirement.
    pub fn open(dir: impl AsFd) -> Result<Self, FsError> {
        let dir = open_directory(dir.as_fd())?;
        FileSystem::of(&dir)?;
        Ok(Self(dir))
    }

    /// Like [`quota`](crate::quota), with one system call.
    ///
    /// # Errors
    /// [`FsError`].
    pub fn quota(&self, id: ProjectId) -> Result<Quota, FsError> {
        self.fs().quota(id)
    }

    /// Like [`Quotas::quota`], without deleted files that no process has open, and without blocks that XFS has
    /// allocated in advance and no write has used: behind the ends of files, and for the next writes to shared blocks
    /// ([`set_cow_extent_size`](crate::set_cow_extent_size)). XFS frees them in the background, the blocks by default
    /// after half an hour; this call waits until it has done so. Files with direct I/O in flight keep such blocks, and
    /// files that were written through the page cache keep them until the next periodic writeback. A process that
    /// always reads a file with such blocks delays the call for as long.
    ///
    /// # Errors
    /// [`FsError`]. `EROFS`: the file system is mounted read-only.
    ///
    /// `XFS_IOC_FREE_EOFBLOCKS`, Linux 5.15 for deleted files, 4.10 for blocks of shared extents.
    pub fn settled(&self, id: ProjectId) -> Result<Quota, FsError> {
        self.fs().settled(id)
    }

    /// Like [`Quotas::quota`], without deleted files that no process has open. The usage may include blocks that XFS
    /// has allocated in advance: unlike [`Quotas::settled`], the call skips files that a process reads or writes, and
    /// no process can delay it by that.
    ///
    /// # Errors
    /// [`FsError`]. `EROFS`: the file system is mounted read-only.
    ///
    /// `XFS_IOC_FREE_EOFBLOCKS`, Linux 5.15.
    pub fn without_deleted(&self, id: ProjectId) -> Result<Quota, FsError> {
        self.fs().without_deleted(id)
    }

    /// Like [`project`](crate::project), for a file or directory of this file system and with one system call.
    ///
    /// `inode` must be open for reading; `O_PATH` is not sufficient.
    ///
    /// # Errors
    /// [`FsError`].
    ///
    /// `FS_IOC_FSGETXATTR`, Linux 4.5.
    pub fn project(&self, inode: impl AsFd) -> Result<Option<ProjectId>, FsError> {
        Ok(ProjectId::new(attributes(inode.as_fd())?.projid))
    }

    /// Like [`set_limits`](crate::set_limits), with one system call.
    ///
    /// # Errors
    /// [`SetError::Limit`] and [`SetError::Fs`].
    pub fn set_limits(&self, id: ProjectId, limits: Limits) -> Result<(), SetError> {
        Ok(self.fs().set_limits(id, limits.try_into()?)?)
    }

    /// Like [`Quotas::set_limits`], but `statfs` inside shows the size `shown`, unless it is 0 or not below the limit
    /// of space. The usage may exceed this size up to the limit, for any length of time.
    ///
    /// `statfs` shows the soft limit, beyond which XFS rejects writes after a grace time. If there is such a limit, the
    /// call first sets the grace time of space of **all** projects of the file system to 68 years.
    ///
    /// # Errors
    /// [`SetError::Limit`] and [`SetError::Fs`].
    ///
    /// `Q_XSETQLIM`, Linux 5.19: unless they were corrected, earlier kernels reject writes after five beyond the soft
    /// limit.
    pub fn set_limits_showing(&self, id: ProjectId, limits: Limits, shown: Bytes) -> Result<(), SetError> {
        Ok(self.fs().set_limits_showing(id, limits.try_into()?, shown)?)
    }

    /// Like [`assign`](crate::assign), for a directory that the caller has just created, that no other process has
    /// opened, and whose parent has no project. Makes four system calls because it skips the checks of these
    /// conditions.
    ///
    /// `dir` must be open for reading; `O_PATH` is not sufficient.
    ///
    /// # Errors
    /// [`SetError::InUse`]: an inode has the ID; the directory is unchanged. [`SetError::OtherProject`]: the directory
    /// has a project, usually inherited.
    pub fn assign_new(&self, dir: impl AsFd, id: ProjectId, limits: Limits) -> Result<(), SetError> {
        let limits = CheckedLimits::try_from(limits)?;
        if limits.sets_nothing() {
            return Err(SetError::NoLimit);
        }
        let fs = self.fs();
        if let Some(used) = fs.used_beyond(id, Inodes::ZERO)? {
            return Err(SetError::InUse { id, used });
        }
        let found = attributes(dir.as_fd())?;
        if let Some(found) = ProjectId::new(found.projid) {
            return Err(SetError::OtherProject { found, wanted: id });
        }
        fs.set_limits(id, limits)?;
        Ok(set_project(dir.as_fd(), found, Some(id))?)
    }

    /// Removes the limits of a project that no inode belongs to, for example after its directory was deleted. Succeeds
    /// if it has no limits. Deleted files that a process has open count as inodes.
    ///
    /// # Errors
    /// [`RemoveError::InUse`]: the limits are unchanged.
    pub fn clear(&self, id: ProjectId) -> Result<(), RemoveError> {
        crate::remove::clear(self.fs(), id)
    }

    /// Whether a linked file or directory has the project ID, for example elsewhere after the project's directory was
    /// removed. Unlike in [`Quotas::clear`], deleted files that a process has open do not count.
    ///
    /// Reads all inodes of the file system until it finds one: O(inodes).
    ///
    /// # Errors
    /// [`FsError`].
    ///
    /// `XFS_IOC_BULKSTAT`, Linux 5.4.
    pub fn is_carried(&self, id: ProjectId) -> Result<bool, FsError> {
        let mut next = 0;
        loop {
            let (inodes, after) =
                sys::inodes_from(self.0.as_fd(), next).map_err(FsError::system("XFS_IOC_BULKSTAT"))?;
            if inodes.iter().any(|inode| inode.project == id.get() && inode.is_linked()) {
                return Ok(true);
            }
            // The next number is 0 at the end. Stop too if it does not increase, which would be an endless loop.
            if inodes.is_empty() || after <= next {
                return Ok(false);
            }
            next = after;
        }
    }

    /// Faults of the file system that XFS has detected since it was mounted. Makes one system call for each allocation
    /// group, and reads their headers.
    ///
    /// # Errors
    /// [`FsError`].
    ///
    /// `XFS_IOC_BULKSTAT`, `XFS_IOC_FSGEOMETRY` and `XFS_IOC_AG_GEOMETRY`, Linux 5.4. Before Linux 6.9, XFS records
    /// damage that xfs_scrub(8) finds, later also damage that operations find.
    pub fn faults(&self) -> Result<Vec<Fault>, FsError> {
        crate::fault::faults(self.0.as_fd())
    }

    /// Like [`report`](crate::report).
    pub fn report(&self) -> Report<'_> {
        Report::of(self.fs())
    }

    fn fs(&self) -> FileSystem<'_> {
        FileSystem::checked(self.0.as_fd())
    }
}
