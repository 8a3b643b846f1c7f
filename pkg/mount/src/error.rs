use std::path::PathBuf;

use nix::errno::Errno;

/// Why a mount could not be copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CloneError {
    /// No `CAP_SYS_ADMIN` in the user namespace that owns the mount namespace (`EPERM`).
    #[error("copying a mount needs CAP_SYS_ADMIN")]
    NotPermitted,
    /// The descriptor stands on a mount of another namespace, or on one that may not be copied (`EINVAL`).
    #[error("the mount belongs to another mount namespace or is unbindable")]
    NotOurs,
    /// Anything else that `open_tree` answers.
    #[error("open_tree failed")]
    Kernel(#[source] Errno),
}

/// Why a detached mount did not take its attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SetError {
    /// The kernel has no `mount_setattr` (`ENOSYS`).
    #[error("mount_setattr is missing, Linux 5.12 is needed")]
    KernelTooOld,
    /// A flag is locked by the user namespace that the mount came from (`EPERM`).
    #[error("a flag of the mount is locked")]
    Locked,
    /// Anything else that `mount_setattr` answers.
    #[error("mount_setattr failed")]
    Kernel(#[source] Errno),
}

/// Why a detached mount could not be attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AttachError {
    /// A directory cannot be mounted on a file, nor a file on a directory, nor anything in another mount namespace
    /// (`EINVAL`).
    #[error("the target is not of the same kind as what is mounted, or in another mount namespace")]
    Refused,
    /// The target was removed meanwhile (`ENOENT`).
    #[error("the target does not exist any more")]
    Gone,
    /// The mount namespace holds `fs.mount-max` mounts (`ENOSPC`).
    #[error("too many mounts, raise fs.mount-max")]
    TooMany,
    /// The entry to be mounted on is given by what is no name of one.
    #[error("the target is not given by the name of an entry of its directory")]
    Name,
    /// Anything else that `move_mount` answers.
    #[error("move_mount failed")]
    Kernel(#[source] Errno),
}

impl AttachError {
    pub(crate) fn of(errno: Errno) -> Self {
        match errno {
            Errno::EINVAL => Self::Refused,
            Errno::ENOENT => Self::Gone,
            Errno::ENOSPC => Self::TooMany,
            other => Self::Kernel(other),
        }
    }
}

/// Why nothing can be said about an open descriptor's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LookError {
    /// The kernel did not say which mount it is or whether this is its root.
    #[error("statx tells nothing about mounts, Linux 5.8 is needed")]
    KernelTooOld,
    /// `statx` failed.
    #[error("statx failed")]
    Statx(#[source] Errno),
    /// `fstatfs` failed.
    #[error("fstatfs failed")]
    Statfs(#[source] Errno),
}

/// Why something is still mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnmountError {
    /// Open files, working directories or mounts below it (`EBUSY`).
    #[error("the mount is in use")]
    Busy,
    /// Nothing is mounted there (`EINVAL`), or it is a symbolic link.
    #[error("nothing is mounted there")]
    NotMounted,
    /// No such file or directory (`ENOENT`).
    #[error("it does not exist")]
    Absent,
    /// The name is not one component of a path.
    #[error("the name is not one component of a path")]
    Name,
    /// Anything else that `umount2` answers.
    #[error("umount2 failed")]
    Kernel(#[source] Errno),
}

/// Why a file system could not be mounted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FilesystemError {
    /// The kernel does not know the type (`ENODEV`); its module may be missing.
    #[error("the kernel has no file system {kind}, is its module loaded?")]
    UnknownKind {
        /// Type asked for.
        kind: String,
    },
    /// Source or target do not exist (`ENOENT`).
    #[error("cannot mount {kind} on {}, source or target does not exist", target.display())]
    Absent {
        /// Type asked for.
        kind: String,
        /// Where it should go.
        target: PathBuf,
    },
    /// Already mounted, or the device is in use (`EBUSY`).
    #[error("cannot mount {kind} on {}, it is in use", target.display())]
    Busy {
        /// Type asked for.
        kind: String,
        /// Where it should go.
        target: PathBuf,
    },
    /// Bad superblock, unknown option (`EINVAL`): the kernel's log says which.
    #[error("cannot mount {kind} on {}, bad superblock or option, see the kernel's log", target.display())]
    Refused {
        /// Type asked for.
        kind: String,
        /// Where it should go.
        target: PathBuf,
    },
    /// Anything else that `mount` answers.
    #[error("cannot mount {kind} on {}", target.display())]
    Kernel {
        /// Type asked for.
        kind: String,
        /// Where it should go.
        target: PathBuf,
        /// What the kernel said.
        #[source]
        errno: Errno,
    },
}

/// Why the table of mounts could not be read.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    /// `/proc/thread-self/mountinfo` cannot be read.
    #[error("cannot read the table of mounts, is /proc mounted?")]
    Read(#[source] std::io::Error),
    /// A line is not what proc_pid_mountinfo(5) says.
    #[error("line {line} of the table of mounts is malformed")]
    Malformed {
        /// Counted from 1.
        line: usize,
    },
}
