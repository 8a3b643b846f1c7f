//! Directory descriptors of the allocator and of walks.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::dir::{Dir, Entry, OwningIter};
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat, openat2};
use nix::libc;
use nix::sys::stat::{FileStat, Mode, fstat};

use crate::error::FsError;
use crate::filesystem::require_xfs;

const DIRECTORY: OFlag = OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_CLOEXEC);

/// A directory of an XFS, open for reading.
#[derive(Debug)]
pub(crate) struct Directory {
    fd: OwnedFd,
    stat: FileStat,
}

impl Directory {
    /// Opens the same directory with a new descriptor. The caller's may be an `O_PATH` descriptor, with which
    /// attributes cannot be read.
    pub(crate) fn reopen(dir: BorrowedFd<'_>) -> Result<Self, FsError> {
        let opened = Self::new(open_directory(dir)?)?;
        // The kernel opens `.` of a deleted directory too.
        if opened.stat.st_nlink == 0 {
            return Err(FsError::Gone);
        }
        require_xfs(opened.fd.as_fd())?;
        Ok(opened)
    }

    fn new(fd: OwnedFd) -> Result<Self, FsError> {
        let stat = fstat(&fd).map_err(FsError::system("fstat"))?;
        Ok(Self { fd, stat })
    }

    pub(crate) fn device(&self) -> libc::dev_t {
        self.stat.st_dev
    }

    /// The entries of the directory.
    pub(crate) fn entries(&self) -> Result<Entries, FsError> {
        // The stream gets a descriptor of its own, because it closes it.
        let stream = Dir::openat(&self.fd, ".", DIRECTORY, Mode::empty()).map_err(FsError::system("openat"))?;
        Ok(Entries(stream.into_iter()))
    }

    /// Opens a subdirectory. `None` if it does not exist any more, is a symbolic link, or is a mount point.
    pub(crate) fn enter(&self, name: &CStr) -> Result<Option<Self>, FsError> {
        let scope = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_XDEV;
        match openat2(&self.fd, name, OpenHow::new().flags(DIRECTORY).resolve(scope)) {
            Ok(fd) => Self::new(fd).map(Some),
            Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP | Errno::EXDEV) => Ok(None),
            Err(errno) => Err(FsError::system("openat2")(errno)),
        }
    }

    pub(crate) fn number(&self) -> u64 {
        self.stat.st_ino
    }
}

/// Opens the directory again. The new descriptor has its own file offset, and attributes and entries can be read with
/// it.
pub(crate) fn open_directory(dir: BorrowedFd<'_>) -> Result<OwnedFd, FsError> {
    openat(dir, ".", DIRECTORY, Mode::empty()).map_err(|errno| match errno {
        Errno::ENOTDIR => FsError::NotADirectory,
        Errno::ENOENT => FsError::Gone,
        errno => FsError::system("openat")(errno),
    })
}

/// Makes the checks of [`open_directory`] without opening the directory.
pub(crate) fn require_directory(inode: BorrowedFd<'_>) -> Result<(), FsError> {
    let stat = fstat(inode).map_err(FsError::system("fstat"))?;
    if stat.st_mode & libc::S_IFMT != libc::S_IFDIR {
        return Err(FsError::NotADirectory);
    }
    // fstat succeeds for a deleted directory too.
    if stat.st_nlink == 0 { Err(FsError::Gone) } else { Ok(()) }
}

/// The entries of a directory, without `.` and `..`.
#[derive(Debug)]
pub(crate) struct Entries(OwningIter);

impl Iterator for Entries {
    type Item = Result<Entry, FsError>;

    fn next(&mut self) -> Option<Self::Item> {
        let entry = self
            .0
            .find(|entry| entry.as_ref().map_or(true, |entry| !matches!(entry.file_name().to_bytes(), b"." | b"..")))?;
        Some(entry.map_err(FsError::system("getdents64")))
    }
}

impl AsFd for Directory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
