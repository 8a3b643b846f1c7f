use std::ffi::{CString, OsStr};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use nix::errno::Errno;

use crate::error::{AttachError, CloneError, SetError};
use crate::{Attributes, sys};

/// A mount that is attached nowhere: nobody can reach it by a path. Dropped, it is gone.
#[derive(Debug)]
pub struct Detached(OwnedFd);

impl Detached {
    /// A bind mount of what `source` stands on, without the mounts below it. It has the flags of the mount it came
    /// from. `source` may be opened with `O_PATH`.
    ///
    /// # Errors
    /// [`CloneError::NotPermitted`] without `CAP_SYS_ADMIN`, [`CloneError::NotOurs`] for a mount of another namespace.
    ///
    /// `open_tree(OPEN_TREE_CLONE)`, Linux 5.2.
    pub fn clone_of(source: impl AsFd) -> Result<Self, CloneError> {
        sys::open_tree_clone(source.as_fd()).map(Self).map_err(|errno| match errno {
            Errno::EPERM => CloneError::NotPermitted,
            Errno::EINVAL => CloneError::NotOurs,
            other => CloneError::Kernel(other),
        })
    }

    /// Gives the mount exactly these attributes and takes it out of the peer group of the mount it came from: what is
    /// mounted there later does not appear here.
    ///
    /// # Errors
    /// [`SetError::Locked`] if a flag that would be cleared came from a more privileged user namespace.
    ///
    /// `mount_setattr`, Linux 5.12.
    pub fn set(&self, attributes: Attributes) -> Result<(), SetError> {
        sys::mount_setattr(self.0.as_fd(), attributes).map_err(|errno| match errno {
            Errno::ENOSYS => SetError::KernelTooOld,
            Errno::EPERM => SetError::Locked,
            other => SetError::Kernel(other),
        })
    }

    /// Attaches the mount on an open directory (or file, if it is a mount of a file). `target` may be opened with
    /// `O_PATH`. The kernel puts it on top of what is mounted there: look first, see [`crate::at`].
    ///
    /// # Errors
    /// [`AttachError::Refused`] for a directory on a file or the reverse; the mount is gone then.
    ///
    /// `move_mount`, Linux 5.2.
    pub fn attach(self, target: impl AsFd) -> Result<(), AttachError> {
        sys::move_mount(self.0.as_fd(), target.as_fd()).map_err(AttachError::of)
    }

    /// The same on an entry of a directory that is open, without opening the entry: two system calls less. A symbolic
    /// link is not followed: a directory does not go on it.
    ///
    /// # Errors
    /// As [`attach`](Self::attach). [`AttachError::Name`] for what is not the name of an entry, like `..` or `a/b`.
    ///
    /// `move_mount`, Linux 5.2.
    pub fn attach_at(self, directory: impl AsFd, name: &OsStr) -> Result<(), AttachError> {
        let bytes = name.as_bytes();
        if matches!(bytes, b"" | b"." | b"..") || bytes.contains(&b'/') {
            return Err(AttachError::Name);
        }
        let name = CString::new(bytes).map_err(|_| AttachError::Name)?;
        sys::move_mount_at(self.0.as_fd(), directory.as_fd(), &name).map_err(AttachError::of)
    }
}
