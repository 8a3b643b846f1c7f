use std::ffi::{CString, OsStr};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use nix::errno::Errno;

use crate::error::{AttachError, CloneError, SetError};
use crate::{Attributes, sys};

/// A detached mount, which no path reaches. Dropping it removes it.
#[derive(Debug)]
pub struct Detached(OwnedFd);

impl Detached {
    /// A bind mount of `source` (`O_PATH` is sufficient), without the mounts below it and with the attributes of its
    /// mount. `open_tree(OPEN_TREE_CLONE)`, Linux 5.2.
    ///
    /// # Errors
    /// [`CloneError::NotPermitted`] without `CAP_SYS_ADMIN`, [`CloneError::Foreign`] for a mount of another namespace.
    pub fn clone_of(source: impl AsFd) -> Result<Self, CloneError> {
        sys::open_tree_clone(source.as_fd()).map(Self).map_err(|errno| match errno {
            Errno::EPERM => CloneError::NotPermitted,
            Errno::EINVAL => CloneError::Foreign,
            other => CloneError::Kernel(other),
        })
    }

    /// Sets exactly these attributes and makes the mount private: later mounts below the source do not propagate to it.
    /// `mount_setattr`, Linux 5.12.
    ///
    /// # Errors
    /// [`SetError::Locked`] if an attribute that would be cleared was set in a more privileged user namespace.
    pub fn set(&self, attributes: Attributes) -> Result<(), SetError> {
        sys::mount_setattr(self.0.as_fd(), attributes).map_err(|errno| match errno {
            Errno::ENOSYS => SetError::KernelTooOld,
            Errno::EPERM => SetError::Locked,
            other => SetError::Kernel(other),
        })
    }

    /// Attaches the mount to an open directory, or to a file if it is a mount of a file (`O_PATH` is sufficient). The
    /// kernel stacks it on an existing mount; use [`crate::at`] to detect one. `move_mount`, Linux 5.2.
    ///
    /// # Errors
    /// [`AttachError::Rejected`] for a directory on a file or the reverse. The mount is removed on errors.
    pub fn attach(self, target: impl AsFd) -> Result<(), AttachError> {
        sys::move_mount(self.0.as_fd(), target.as_fd()).map_err(AttachError::of)
    }

    /// Like [`attach`](Self::attach), to an entry of an open directory, without opening the entry: two system calls
    /// less. Does not follow a symbolic link; attaching a directory to one fails.
    ///
    /// # Errors
    /// Those of [`attach`](Self::attach); [`AttachError::Name`] if `name` is not the name of an entry, like `..` or
    /// `a/b`.
    pub fn attach_at(self, directory: impl AsFd, name: &OsStr) -> Result<(), AttachError> {
        let bytes = name.as_bytes();
        if matches!(bytes, b"" | b"." | b"..") || bytes.contains(&b'/') {
            return Err(AttachError::Name);
        }
        let name = CString::new(bytes).map_err(|_| AttachError::Name)?;
        sys::move_mount_at(self.0.as_fd(), directory.as_fd(), &name).map_err(AttachError::of)
    }
}
