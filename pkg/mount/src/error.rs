use std::path::PathBuf;

use nix::errno::Errno;

/// A mount cannot be copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CloneError {
    /// `CAP_SYS_ADMIN` is missing in the user namespace that owns the mount namespace (`EPERM`).
    #[error("copying a mount requires CAP_SYS_ADMIN")]
    NotPermitted,
    /// The mount belongs to another mount namespace or is unbindable (`EINVAL`).
    #[error("the mount belongs to another mount namespace or is unbindable")]
    Foreign,
    /// Any other error of `open_tree`.
    #[error("open_tree failed")]
    Kernel(#[source] Errno),
}

/// The attributes of a detached mount cannot be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SetError {
    /// The kernel lacks `mount_setattr` (`ENOSYS`).
    #[error("the kernel lacks mount_setattr; Linux 5.12 or later is required")]
    KernelTooOld,
    /// The user namespace that created the source mount locked an attribute (`EPERM`).
    #[error("an attribute of the mount is locked")]
    Locked,
    /// Any other error of `mount_setattr`.
    #[error("mount_setattr failed")]
    Kernel(#[source] Errno),
}

/// A detached mount cannot be attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AttachError {
    /// The target is a file and the mount a directory, or the reverse, or the target is in another mount namespace
    /// (`EINVAL`).
    #[error("the target is of another type than the mounted file, or in another mount namespace")]
    Rejected,
    /// The target was removed (`ENOENT`).
    #[error("the target no longer exists")]
    Gone,
    /// The mount namespace has `fs.mount-max` mounts (`ENOSPC`).
    #[error("the mount namespace has too many mounts; increase fs.mount-max")]
    TooMany,
    /// The name is not the name of a directory entry.
    #[error("the name of the target is not a single path component")]
    Name,
    /// Any other error of `move_mount`.
    #[error("move_mount failed")]
    Kernel(#[source] Errno),
}

impl AttachError {
    pub(crate) fn of(errno: Errno) -> Self {
        match errno {
            Errno::EINVAL => Self::Rejected,
            Errno::ENOENT => Self::Gone,
            Errno::ENOSPC => Self::TooMany,
            other => Self::Kernel(other),
        }
    }
}

/// The mount of a descriptor cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LookError {
    /// `statx` did not return the mount ID or `STATX_ATTR_MOUNT_ROOT`.
    #[error("statx does not return mount IDs; Linux 5.8 or later is required")]
    KernelTooOld,
    /// `statx` failed.
    #[error("statx failed")]
    Statx(#[source] Errno),
    /// `fstatfs` failed.
    #[error("fstatfs failed")]
    Statfs(#[source] Errno),
}

/// A mount cannot be unmounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnmountError {
    /// Open files, working directories or mounts below keep the mount busy (`EBUSY`).
    #[error("the mount is in use")]
    Busy,
    /// Nothing is mounted at the path (`EINVAL`), or it is a symbolic link.
    #[error("nothing is mounted at the path")]
    NotMounted,
    /// The path does not exist (`ENOENT`).
    #[error("the path does not exist")]
    Absent,
    /// The name is not a single path component.
    #[error("the name is not a single path component")]
    Name,
    /// Any other error of `umount2`.
    #[error("umount2 failed")]
    Kernel(#[source] Errno),
}

/// A file system cannot be mounted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the texts of the errors describe the fields")]
pub enum FilesystemError {
    /// The kernel does not support the type (`ENODEV`); its module may be missing.
    #[error("the kernel does not support the file system {kind}; load its module")]
    UnknownKind { kind: String },
    /// Source or target does not exist (`ENOENT`).
    #[error("cannot mount {kind} on {}: source or target does not exist", target.display())]
    Absent { kind: String, target: PathBuf },
    /// The file system is mounted already, or the device is in use (`EBUSY`).
    #[error("cannot mount {kind} on {}: already mounted or in use", target.display())]
    Busy { kind: String, target: PathBuf },
    /// Invalid superblock or option (`EINVAL`); the kernel log has the details.
    #[error("cannot mount {kind} on {}: invalid superblock or option, see the kernel log", target.display())]
    Rejected { kind: String, target: PathBuf },
    /// Any other error of `mount`.
    #[error("cannot mount {kind} on {}", target.display())]
    Kernel {
        kind: String,
        target: PathBuf,
        #[source]
        errno: Errno,
    },
}

/// The mount table cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    /// `/proc/thread-self/mountinfo` cannot be read.
    #[error("cannot read the mount table; /proc must be mounted")]
    Read(#[source] std::io::Error),
    /// A line does not have the format of proc_pid_mountinfo(5).
    #[error("line {line} of the mount table is malformed")]
    Malformed {
        /// Line number, from 1.
        line: usize,
    },
}
