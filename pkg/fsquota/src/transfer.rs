//! Moves a directory with its content to another project.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, OpenHow, ResolveFlag, openat2};
use nix::libc;
use nix::sys::stat::fstatat;
use units::Inodes;

use crate::directory::open_directory;
use crate::directory_state::{DirectoryState, attributes, set_attributes};
use crate::error::{FsError, SetError, TransferError, WalkError};
use crate::limits::{CheckedLimits, Limits, Usage};
use crate::project::ProjectId;
use crate::strays::strays;
use crate::sys::PROJINHERIT;

/// Result of [`transfer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transferred {
    /// The project that the directory had.
    pub from: ProjectId,
    /// Remaining usage of that project, which then keeps its limits: inodes whose project the kernel does not change
    /// (symbolic links, devices, pipes, sockets), or inodes elsewhere.
    pub left: Option<Usage>,
}

/// Moves a directory that has a project, with everything in it, to the project `to`, and clears the limits of the
/// former one. No other process may write to the directory meanwhile.
///
/// The limits of `to` come first and the directory itself comes last: as long as the directory has the former project,
/// the work is not finished, and the same call with the same ID finishes it. All steps are in the file system's log in
/// this order; [`sync`](crate::sync) makes them durable. The moved data may exceed the limits; nothing can grow then.
///
/// # Errors
/// [`TransferError`]. A part of the directory may have been moved.
///
/// `FS_IOC_FSSETXATTR`, Linux 4.5; `openat2`, Linux 5.6.
pub fn transfer(dir: impl AsFd, to: ProjectId, limits: Limits) -> Result<Transferred, TransferError> {
    let limits = CheckedLimits::try_from(limits).map_err(SetError::from)?;
    if limits.sets_nothing() {
        return Err(SetError::NoLimit.into());
    }
    let dir = open_directory(dir.as_fd())?;
    let seen = DirectoryState::of(&dir)?;
    let fs = seen.file_system()?;
    let from = seen.project().ok_or(TransferError::NotFound)?;
    if let Some(outer) = seen.outer() {
        return Err(SetError::Nested { outer }.into());
    }
    if seen.is_root() {
        return Err(SetError::Root.into());
    }
    fs.set_limits(to, limits)?;
    for stray in strays(&dir, to)? {
        let path = stray?.path;
        if !path.as_os_str().is_empty() {
            carry(&dir, &path, to).map_err(|source| WalkError::Entry { path, source })?;
        }
    }
    // The directory itself is the last inode.
    let is_used = fs.used_beyond(from, Inodes::new(1))?.is_some();
    if !is_used && from != to {
        fs.clear_limits(from)?;
    }
    seen.set_project(Some(to))?;
    let left = if is_used && from != to { Some(fs.quota(from)?.used) } else { None };
    Ok(Transferred { from, left })
}

/// Gives the project to an entry below the directory. Entries that are neither a file nor a directory are skipped:
/// opening them could have side effects, and the kernel would not change their project.
fn carry(dir: &OwnedFd, path: &Path, to: ProjectId) -> Result<(), FsError> {
    let found = fstatat(dir, path, AtFlags::AT_SYMLINK_NOFOLLOW).map_err(FsError::system("fstatat"))?;
    let is_directory = match found.st_mode & libc::S_IFMT {
        libc::S_IFDIR => true,
        libc::S_IFREG => false,
        _ => return Ok(()),
    };
    let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let scope = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_XDEV;
    let inode = match openat2(dir, path, OpenHow::new().flags(flags).resolve(scope)) {
        // Another file system is mounted there.
        Err(Errno::EXDEV) => return Ok(()),
        opened => opened.map_err(FsError::system("openat2"))?,
    };
    let mut wanted = attributes(inode.as_fd())?;
    wanted.projid = to.get();
    if is_directory {
        wanted.xflags |= PROJINHERIT;
    }
    set_attributes(inode.as_fd(), &wanted)
}
