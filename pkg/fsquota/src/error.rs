//! Error types, one per operation.

use std::path::PathBuf;

use nix::errno::Errno;
use units::{Bytes, Inodes};

use crate::limits::{Limits, Usage};
use crate::project::ProjectId;

/// The file system does not support project quotas, or a system call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FsError {
    /// The descriptor does not refer to a directory.
    #[error("not a directory; only directories can have project quotas")]
    NotADirectory,
    /// The directory was deleted after it was opened.
    #[error("the directory was deleted")]
    Gone,
    /// The file system is not XFS.
    #[error("not on an XFS file system; project quotas require XFS")]
    NotXfs,
    /// Accounting of project quotas is off.
    #[error("accounting of project quotas is off; mount the file system with the option prjquota")]
    AccountingOff,
    /// Accounting of project quotas is on, enforcement is off.
    #[error("enforcement of project quotas is off; mount the file system with the option prjquota, not pqnoenforce")]
    EnforcementOff,
    /// The kernel lacks `quotactl_fd`.
    #[error("the kernel lacks quotactl_fd; Linux 5.14 or later is required")]
    KernelTooOld,
    /// Any other failed system call.
    #[error("{operation} failed")]
    System {
        /// Name of the call.
        operation: &'static str,
        /// Errno of the call.
        source: Errno,
    },
}

impl FsError {
    /// Constructor for `map_err`: a failed system call without its own variant.
    pub(crate) fn system(operation: &'static str) -> impl FnOnce(Errno) -> Self {
        move |source| Self::System { operation, source }
    }
}

/// An invalid limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimitError {
    /// 0 bytes: the kernel interprets 0 as "no limit".
    #[error("a limit of 0 bytes is invalid, the kernel interprets it as no limit; set at least 1 byte")]
    NoBytes,
    /// 0 inodes: the kernel interprets 0 as "no limit".
    #[error("a limit of 0 inodes is invalid, the kernel interprets it as no limit; set at least 1 inode")]
    NoInodes,
    /// More than [`Limits::MAX_BYTES`].
    #[error("a limit of {asked} is too large; the largest is {}", Limits::MAX_BYTES)]
    TooManyBytes {
        /// The requested limit.
        asked: Bytes,
    },
    /// More than [`Limits::MAX_INODES`].
    #[error("a limit of {asked} is too large; the largest is {}", Limits::MAX_INODES)]
    TooManyInodes {
        /// The requested limit.
        asked: Inodes,
    },
}

/// [`set`](crate::set), [`assign`](crate::assign) or [`set_limits`](crate::set_limits) failed.
#[derive(Debug, thiserror::Error)]
pub enum SetError {
    /// The file system does not support project quotas, or a system call failed.
    #[error(transparent)]
    Fs(#[from] FsError),
    /// A limit is invalid.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// The directory has no project, and no limit was given for a new one.
    #[error("no limit was given; a new project needs at least one limit")]
    NoLimit,
    /// The parent directory belongs to a project. Projects cannot be nested.
    #[error("the directory is inside project {outer}; projects cannot be nested")]
    Nested {
        /// The project of the parent directory.
        outer: ProjectId,
    },
    /// The directory is the root of its file system: all other directories and the counter of IDs would belong to its
    /// project.
    #[error("the root directory of a file system cannot have a project; use a subdirectory")]
    Root,
    /// The directory is not empty; XFS would not count its content.
    #[error("the directory is not empty; only an empty directory can get a project")]
    NotEmpty,
    /// The directory has another project.
    #[error("the directory already has project {found}, not {wanted}")]
    OtherProject {
        /// The project of the directory.
        found: ProjectId,
        /// The requested project.
        wanted: ProjectId,
    },
    /// Other inodes have this project ID.
    #[error("project {id} is in use elsewhere ({}, {})", used.inodes, used.bytes)]
    InUse {
        /// The requested ID.
        id: ProjectId,
        /// Usage of the ID.
        used: Usage,
    },
    /// The allocator belongs to another file system.
    #[error("the directory and the project ID allocator are on different file systems")]
    OtherFileSystem,
    /// The allocation of an ID failed.
    #[error("cannot allocate a project ID")]
    Allocate(#[from] AllocateError),
}

/// [`Allocator`](crate::Allocator) failed.
#[derive(Debug, thiserror::Error)]
pub enum AllocateError {
    /// The file system does not support project quotas, or a system call failed.
    #[error(transparent)]
    Fs(#[from] FsError),
    /// All 2^32−2 IDs were allocated.
    #[error("no project ID is left; each ID is allocated only once")]
    Exhausted,
    /// The content of the counter file is invalid.
    #[error("{file} in the allocator's directory is damaged; delete it, the allocator skips IDs in use without it")]
    Damaged {
        /// Name of the counter file.
        file: &'static str,
    },
    /// The counter file cannot be opened, locked, read or written.
    #[error("cannot {step} {file} in the allocator's directory")]
    Counter {
        /// The failed step.
        step: &'static str,
        /// Name of the counter file.
        file: &'static str,
        /// Error of the system call.
        source: std::io::Error,
    },
}

/// [`get`](crate::get) failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GetError {
    /// The file system does not support project quotas, or a system call failed.
    #[error(transparent)]
    Fs(#[from] FsError),
    /// The directory has no project.
    #[error("the directory has no project")]
    NotFound,
}

/// [`remove`](crate::remove) or [`Quotas::clear`](crate::Quotas::clear) failed; the limits are unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RemoveError {
    /// The file system does not support project quotas, or a system call failed.
    #[error(transparent)]
    Fs(#[from] FsError),
    /// The directory is not empty; its content would lose the limits.
    #[error("the directory is not empty; delete its content first")]
    NotEmpty,
    /// The directory inherited the project of its parent.
    #[error("project {outer} was assigned to a parent directory, not to this one")]
    Nested {
        /// The project.
        outer: ProjectId,
    },
    /// Inodes still have this project ID: deleted files that a process has open, or files elsewhere.
    #[error("project {id} is still in use ({}, {}); retry when no process has its files open", used.inodes, used.bytes)]
    InUse {
        /// The project.
        id: ProjectId,
        /// Usage of the project.
        used: Usage,
    },
}

/// The walk of [`strays`](crate::strays) cannot read an entry. The walk continues with the rest of the tree.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WalkError {
    /// A system call failed.
    #[error("cannot read the project of {} in the directory", path.display())]
    Entry {
        /// Path relative to the directory; empty for the directory itself.
        path: PathBuf,
        /// The failed call.
        source: FsError,
    },
    /// The directory is nested too deeply and is skipped.
    #[error("{} is nested more than {limit} directories deep and was skipped", path.display())]
    TooDeep {
        /// Path relative to the directory.
        path: PathBuf,
        /// Maximum depth of the walk.
        limit: usize,
    },
}

/// [`transfer`](crate::transfer) failed; the same call goes on where this one ended.
#[derive(Debug, thiserror::Error)]
pub enum TransferError {
    /// The limits or the position of the directory are not allowed, or a system call failed.
    #[error(transparent)]
    Set(#[from] SetError),
    /// The directory has no project, so that nothing in it is counted.
    #[error("the directory has no project")]
    NotFound,
    /// An entry of the directory cannot be read or changed.
    #[error(transparent)]
    Walk(#[from] WalkError),
}

impl From<FsError> for TransferError {
    fn from(error: FsError) -> Self {
        Self::Set(error.into())
    }
}
