//! [`Seen`]: a look at a directory.

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

/// A directory of an XFS, as one look showed it: what has to be known before anything is changed.
#[derive(Debug)]
pub(crate) struct Seen<'fd> {
    fd: BorrowedFd<'fd>,
    attributes: FsXattr,
    listing: Listing,
    outer: Option<ProjectId>,
}

impl<'fd> Seen<'fd> {
    /// Looks at a directory through a descriptor of its own ([`open_directory`]): to list entries moves
    /// the place in it.
    pub(crate) fn of(dir: &'fd OwnedFd) -> Result<Self, FsError> {
        let fd = dir.as_fd();
        // A refusal may only mean that this is no XFS, and then that is the reason to tell.
        Self::look(fd).map_err(|refused| require_xfs(fd).err().unwrap_or(refused))
    }

    fn look(fd: BorrowedFd<'fd>) -> Result<Self, FsError> {
        let attributes = attributes(fd)?;
        let listing = Listing::begin(fd)?;
        // By number: a mount may hide what is above. No other file system has this call. Nothing is found if the
        // directory was moved since, and the one in which it was is deleted.
        let above = sys::inode(fd, listing.above()).and_then(|above| above.ok_or(Errno::ENOENT));
        let above = above.map_err(FsError::system("XFS_IOC_BULKSTAT"))?;
        let outer = if listing.is_root() { None } else { ProjectId::new(above.project) };
        Ok(Self { fd, attributes, listing, outer })
    }

    /// Its file system, once that is known to count and enforce projects.
    pub(crate) fn file_system(&self) -> Result<FileSystem<'fd>, FsError> {
        FileSystem::on_xfs(self.fd)
    }

    pub(crate) fn device(&self) -> Result<libc::dev_t, FsError> {
        Ok(fstat(self.fd).map_err(FsError::system("fstat"))?.st_dev)
    }

    pub(crate) fn project(&self) -> Option<ProjectId> {
        ProjectId::new(self.attributes.projid)
    }

    /// Whether what is made in the directory gets its project.
    pub(crate) fn inherits(&self) -> bool {
        self.attributes.xflags & sys::PROJINHERIT != 0
    }

    /// The project of the directory above; `None` if that has none, and above the root.
    pub(crate) fn outer(&self) -> Option<ProjectId> {
        self.outer
    }

    /// Whether this is the root directory of its file system, wherever that is mounted.
    pub(crate) fn is_root(&self) -> bool {
        self.listing.is_root()
    }

    pub(crate) fn is_empty(&mut self) -> Result<bool, FsError> {
        self.listing.is_empty(self.fd)
    }

    /// Gives the directory this project and the inherit flag, or takes both away. One transaction.
    pub(crate) fn set_project(&self, project: Option<ProjectId>) -> Result<(), FsError> {
        set_project(self.fd, self.attributes, project)
    }
}

/// Gives a directory with these attributes a project and the inherit flag, or takes both away. One transaction.
pub(crate) fn set_project(dir: BorrowedFd<'_>, attributes: FsXattr, project: Option<ProjectId>) -> Result<(), FsError> {
    let mut wanted = attributes;
    wanted.projid = project.map_or(0, ProjectId::get);
    match project {
        Some(_) => wanted.xflags |= sys::PROJINHERIT,
        None => wanted.xflags &= !sys::PROJINHERIT,
    }
    sys::set_fsxattr(dir, &wanted).map_err(FsError::system("FS_IOC_FSSETXATTR"))
}

/// The project of a directory of an XFS.
pub(crate) fn project_of(dir: BorrowedFd<'_>) -> Result<Option<ProjectId>, FsError> {
    let found = match attributes(dir) {
        // A descriptor that only names.
        Err(FsError::System { source: Errno::EBADF, .. }) => attributes(open_directory(dir)?.as_fd()),
        found => found,
    };
    Ok(ProjectId::new(found?.projid))
}

pub(crate) fn attributes(inode: BorrowedFd<'_>) -> Result<FsXattr, FsError> {
    sys::fsxattr(inode).map_err(FsError::system("FS_IOC_FSGETXATTR"))
}
