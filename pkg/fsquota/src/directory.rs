//! A directory and the project that its inode carries.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::libc;
use nix::sys::stat::{FileStat, Mode, fstat};

use crate::error::FsError;
use crate::filesystem::require_xfs;
use crate::project::ProjectId;
use crate::sys;

const DIRECTORY: OFlag = OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_CLOEXEC);

/// A directory of an XFS, open for reading.
#[derive(Debug)]
pub(crate) struct Directory {
    fd: OwnedFd,
    stat: FileStat,
}

/// What an inode says about its project.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) project: Option<ProjectId>,
    pub(crate) inherited: bool,
}

impl Directory {
    /// The same directory with a descriptor of its own: the caller's may be one that only names
    /// (`O_PATH`), with which no attribute can be read.
    pub(crate) fn reopen(dir: BorrowedFd<'_>) -> Result<Self, FsError> {
        let opened = Self::open_at(dir, ".")?;
        // A deleted directory can still be opened by its descriptor.
        if opened.stat.st_nlink == 0 {
            return Err(FsError::Gone);
        }
        require_xfs(opened.fd.as_fd())?;
        Ok(opened)
    }

    fn open_at(dir: BorrowedFd<'_>, name: &str) -> Result<Self, FsError> {
        let fd = openat(dir, name, DIRECTORY, Mode::empty()).map_err(|errno| match errno {
            Errno::ENOTDIR => FsError::NotADirectory,
            Errno::ENOENT => FsError::Gone,
            errno => FsError::system("openat")(errno),
        })?;
        let stat = fstat(&fd).map_err(FsError::system("fstat"))?;
        Ok(Self { fd, stat })
    }

    pub(crate) fn device(&self) -> libc::dev_t {
        self.stat.st_dev
    }

    pub(crate) fn mark(&self) -> Result<Mark, FsError> {
        let found = sys::fsxattr(self.fd.as_fd()).map_err(FsError::system("FS_IOC_FSGETXATTR"))?;
        Ok(Mark { project: ProjectId::new(found.projid), inherited: found.xflags & sys::PROJINHERIT != 0 })
    }

    /// The project of the directory above, if that is on the same file system and has one.
    pub(crate) fn outer_project(&self) -> Result<Option<ProjectId>, FsError> {
        let above = Self::open_at(self.fd.as_fd(), "..")?;
        let root = above.stat.st_ino == self.stat.st_ino;
        if above.stat.st_dev != self.stat.st_dev || root { Ok(None) } else { Ok(above.mark()?.project) }
    }

    pub(crate) fn is_empty(&self) -> Result<bool, FsError> {
        let failed = FsError::system("getdents64");
        let mut entries = match Dir::openat(&self.fd, ".", DIRECTORY, Mode::empty()) {
            Ok(entries) => entries,
            Err(errno) => return Err(FsError::system("openat")(errno)),
        };
        for entry in entries.iter() {
            match entry {
                Ok(entry) if matches!(entry.file_name().to_bytes(), b"." | b"..") => {}
                Ok(_) => return Ok(false),
                Err(errno) => return Err(failed(errno)),
            }
        }
        Ok(true)
    }

    /// Gives the directory this project and the inherit flag, or takes both away. One transaction.
    pub(crate) fn set_project(&self, project: Option<ProjectId>) -> Result<(), FsError> {
        let fd = self.fd.as_fd();
        let mut wanted = sys::fsxattr(fd).map_err(FsError::system("FS_IOC_FSGETXATTR"))?;
        wanted.projid = project.map_or(0, ProjectId::get);
        match project {
            Some(_) => wanted.xflags |= sys::PROJINHERIT,
            None => wanted.xflags &= !sys::PROJINHERIT,
        }
        sys::set_fsxattr(fd, &wanted).map_err(FsError::system("FS_IOC_FSSETXATTR"))
    }
}

impl AsFd for Directory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
