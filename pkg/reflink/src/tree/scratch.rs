//! The directory in the target for inodes with several names, and for entries that were removed.

use std::ffi::{CStr, CString};
use std::hash::{BuildHasher as _, RandomState};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use dir::{Dir, Mode, Name};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, renameat};
use nix::sys::stat::{FileStat, fstatat};

use super::error::{Task, TreeError};

/// The scratch directory. Removed entries are moved to it: one rename is sufficient for a whole subtree, and no inode
/// number is used again during the clone.
#[derive(Debug)]
pub(super) struct Scratch {
    /// Random name, because the source may have any name.
    name: Name,
    dir: Dir,
    removed: AtomicU64,
    /// Locked while an inode with several names is cloned, because several threads may find its names.
    turn: Mutex<()>,
}

impl Scratch {
    pub(super) fn create(to: &OwnedFd) -> Result<Self, TreeError> {
        let failed = |error: dir::Error| TreeError::at_top(Task::Write)(error.errno());
        let top = Dir::from(to.try_clone().map_err(|_| TreeError::at_top(Task::Write)(Errno::EMFILE))?);
        if !top.is_empty().map_err(failed)? {
            return Err(TreeError::NotEmpty);
        }
        let name = format!(".reflink-{:016x}", RandomState::new().hash_one(std::process::id()));
        let name = Name::try_from(name.as_str()).map_err(|_| TreeError::at_top(Task::Write)(Errno::EINVAL))?;
        let dir = top.create_dir(&name, Mode::S_IRWXU).map_err(failed)?;
        Ok(Self { name, dir, removed: AtomicU64::new(0), turn: Mutex::new(()) })
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }

    /// Whether `name`, an entry of the top directory, is the scratch directory.
    pub(super) fn is_named(&self, name: &CStr) -> bool {
        self.name.as_os_str().as_encoded_bytes() == name.to_bytes()
    }

    /// Name in the scratch directory for an inode of the source with several names.
    pub(super) fn link_name(source: &FileStat) -> CString {
        CString::new(format!("link-{}", source.st_ino)).unwrap_or_default()
    }

    pub(super) fn entry(&self, name: &CStr) -> Result<Option<FileStat>, Errno> {
        existing(self.as_fd(), name)
    }

    pub(super) fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves an entry of a directory in the target to the scratch directory.
    pub(super) fn take(&self, dir: BorrowedFd<'_>, name: &CStr) -> Result<(), Errno> {
        let number = self.removed.fetch_add(1, Ordering::Relaxed);
        renameat(dir, name, self.as_fd(), format!("removed-{number}").as_str())
    }

    /// Removes the scratch directory from the target, with everything in it.
    pub(super) fn remove(&self, to: &OwnedFd) -> Result<(), TreeError> {
        let failed = TreeError::at_top(Task::Write);
        let top = Dir::from(to.try_clone().map_err(|_| failed(Errno::EMFILE))?);
        top.remove_all(&self.name).map_err(|error| failed(error.errno()))
    }
}

/// Attributes of an entry, if it exists.
pub(super) fn existing(dir: BorrowedFd<'_>, name: &CStr) -> Result<Option<FileStat>, Errno> {
    match fstatat(dir, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(stat)),
        Err(Errno::ENOENT) => Ok(None),
        Err(errno) => Err(errno),
    }
}
