//! [`DirectoryState`].

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::libc;
use nix::sys::stat::fstat;

use crate::directory::open_directory;
use crate::error::FsError;
use crate::filesystem::{FileSystem, require_xfs};
use crate::listing::Listing;
use crate::project::ProjectId;
use crate::sys::{self, FsXattr};

/// The state of an XFS directory that the checks before a change need.
#[derive(Debug)]
pub(crate) struct DirectoryState<'fd> {
    fd: BorrowedFd<'fd>,
    attributes: FsXattr,
    listing: Listing,
    outer: Option<ProjectId>,
}

impl<'fd> DirectoryState<'fd> {
    /// Reads the state through a new descriptor ([`open_directory`]), because listing changes its file offset.
    pub(crate) fn of(dir: &'fd OwnedFd) -> Result<Self, FsError> {
        let fd = dir.as_fd();
        // A failed call may mean that this is not an XFS; that error is the more useful one.
        Self::look(fd).map_err(|refused| require_xfs(fd).err().unwrap_or(refused))
    }

    fn look(fd: BorrowedFd<'fd>) -> Result<Self, FsError> {
        let attributes = attributes(fd)?;
        let listing = Listing::begin(fd)?;
        // Reads the parent by its inode number, because a mount may hide it; no other file system supports this call.
        // The call has no result if the directory was moved meanwhile and its previous parent deleted.
        let above = sys::inode(fd, listing.above()).and_then(|above| above.ok_or(Errno::ENOENT));
        let above = above.map_err(FsError::system("XFS_IOC_BULKSTAT"))?;
        let outer = if listing.is_root() { None } else { ProjectId::new(above.project) };
        Ok(Self { fd, attributes, listing, outer })
    }

    /// The file system, after checking that it enforces project quotas.
    pub(crate) fn file_system(&self) -> Result<FileSystem<'fd>, FsError> {
        FileSystem::on_xfs(self.fd)
    }

    pub(crate) fn device(&self) -> Result<libc::dev_t, FsError> {
        Ok(fstat(self.fd).map_err(FsError::system("fstat"))?.st_dev)
    }

    pub(crate) fn project(&self) -> Option<ProjectId> {
        ProjectId::new(self.attributes.projid)
    }

    /// Whether new files in the directory inherit its project.
    pub(crate) fn inherits(&self) -> bool {
        self.attributes.xflags & sys::PROJINHERIT != 0
    }

    /// The project of the parent directory; `None` if it has none, or if this is the root.
    pub(crate) fn outer(&self) -> Option<ProjectId> {
        self.outer
    }

    /// Whether this is the root directory of the file system, wherever that is mounted.
    pub(crate) fn is_root(&self) -> bool {
        self.listing.is_root()
    }

    pub(crate) fn is_empty(&mut self) -> Result<bool, FsError> {
        self.listing.is_empty(self.fd)
    }

    /// Sets project and inherit flag, or clears both, in one transaction.
    pub(crate) fn set_project(&self, project: Option<ProjectId>) -> Result<(), FsError> {
        set_project(self.fd, self.attributes, project)
    }
}

/// Sets project and inherit flag of a directory with these attributes, or clears both, in one transaction.
pub(crate) fn set_project(dir: BorrowedFd<'_>, attributes: FsXattr, project: Option<ProjectId>) -> Result<(), FsError> {
    let mut wanted = attributes;
    wanted.projid = project.map_or(0, ProjectId::get);
    match project {
        Some(_) => wanted.xflags |= sys::PROJINHERIT,
        None => wanted.xflags &= !sys::PROJINHERIT,
    }
    set_attributes(dir, &wanted)
}

/// The project of a directory of an XFS.
pub(crate) fn project_of(dir: BorrowedFd<'_>) -> Result<Option<ProjectId>, FsError> {
    let found = match attributes(dir) {
        // `EBADF`: the descriptor has `O_PATH`.
        Err(FsError::System { source: Errno::EBADF, .. }) => attributes(open_directory(dir)?.as_fd()),
        found => found,
    };
    Ok(ProjectId::new(found?.projid))
}

pub(crate) fn attributes(inode: BorrowedFd<'_>) -> Result<FsXattr, FsError> {
    sys::fsxattr(inode).map_err(FsError::system("FS_IOC_FSGETXATTR"))
}

pub(crate) fn set_attributes(inode: BorrowedFd<'_>, wanted: &FsXattr) -> Result<(), FsError> {
    sys::set_fsxattr(inode, wanted).map_err(FsError::system("FS_IOC_FSSETXATTR"))
}
