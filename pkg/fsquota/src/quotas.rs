//! [`Quotas`].

use std::os::fd::{AsFd, OwnedFd};

use units::Inodes;

use crate::directory::open_directory;
use crate::error::{FsError, RemoveError, SetError};
use crate::filesystem::FileSystem;
use crate::limits::{CheckedLimits, Limits, Quota};
use crate::project::ProjectId;
use crate::read::Report;
use crate::seen::{attributes, set_project};
use crate::sys;

/// The quotas of one file system, for a caller with many projects: that it is an XFS which enforces them is checked
/// once, when this is opened, and not again at every call.
///
/// The file system stays mounted as long as this is open. What enforces quotas when it is mounted goes on until it is
/// unmounted, unless somebody turns it off by hand.
#[derive(Debug)]
pub struct Quotas(OwnedFd);

impl Quotas {
    /// The quotas of the file system that a directory lies on.
    ///
    /// # Errors
    /// [`FsError`] says what is missing.
    pub fn open(dir: impl AsFd) -> Result<Self, FsError> {
        let dir = open_directory(dir.as_fd())?;
        FileSystem::of(&dir)?;
        Ok(Self(dir))
    }

    /// As [`quota`](crate::quota): limits and usage of a project. One system call.
    ///
    /// # Errors
    /// [`FsError`].
    pub fn quota(&self, id: ProjectId) -> Result<Quota, FsError> {
        self.fs().quota(id)
    }

    /// As [`Quotas::quota`], without deleted files that nobody has open: XFS frees them in the background, and this
    /// call waits for that.
    ///
    /// # Errors
    /// [`FsError`].
    ///
    /// `XFS_IOC_FREE_EOFBLOCKS`, Linux 5.15 for deleted files.
    pub fn settled(&self, id: ProjectId) -> Result<Quota, FsError> {
        self.fs().settled(id)
    }

    /// As [`project`](crate::project): the project of a file or directory of this file system. One system call.
    ///
    /// The descriptor must be open for reading, not one that only names (`O_PATH`).
    ///
    /// # Errors
    /// [`FsError`].
    ///
    /// `FS_IOC_FSGETXATTR`, Linux 4.5.
    pub fn project(&self, inode: impl AsFd) -> Result<Option<ProjectId>, FsError> {
        Ok(ProjectId::new(attributes(inode.as_fd())?.projid))
    }

    /// As [`set_limits`](crate::set_limits): changes limits of a project, whatever carries it. One system call.
    ///
    /// # Errors
    /// [`SetError::Limit`] and [`SetError::Fs`].
    pub fn set_limits(&self, id: ProjectId, limits: Limits) -> Result<(), SetError> {
        Ok(self.fs().set_limits(id, limits.try_into()?)?)
    }

    /// Limits a directory that the caller has just made, that nobody else has seen, and that is not below a project:
    /// as [`assign`](crate::assign), without the looks that show just that. Four system calls.
    ///
    /// The descriptor must be open for reading, not one that only names (`O_PATH`).
    ///
    /// # Errors
    /// [`SetError::InUse`]: something carries the ID, and the directory is as it was. [`SetError::OtherProject`]: the
    /// directory has a project, by inheritance as a rule.
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

    /// As [`clear`](crate::clear): takes the limits off a project that nothing carries any more.
    ///
    /// # Errors
    /// [`RemoveError::InUse`]: nothing has changed.
    pub fn clear(&self, id: ProjectId) -> Result<(), RemoveError> {
        crate::remove::clear_in(self.fs(), id)
    }

    /// Whether a file or directory that has a name carries the project: after its directory was removed, something
    /// elsewhere. Deleted files that a program still has open do not count, other than for [`Quotas::clear`].
    ///
    /// Looks at every inode of the file system until one is found.
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
            // None at the end. A number that stands still would be an endless loop.
            if inodes.is_empty() || after <= next {
                return Ok(false);
            }
            next = after;
        }
    }

    /// As [`report`](crate::report): every project in one sweep.
    pub fn report(&self) -> Report<'_> {
        Report::of(self.fs())
    }

    fn fs(&self) -> FileSystem<'_> {
        FileSystem::checked(self.0.as_fd())
    }
}
