//! What can go wrong, an enum per operation.

use std::path::PathBuf;

use nix::errno::Errno;
use units::{Bytes, Inodes};

use crate::limits::{Limits, Usage};
use crate::project::ProjectId;

/// A descriptor or its file system cannot have project quotas, or the kernel refused a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FsError {
    /// The descriptor is of something else than a directory.
    #[error("not a directory; only directories have project quotas here")]
    NotADirectory,
    /// The directory was deleted while it was open.
    #[error("the directory was deleted")]
    Gone,
    /// Another kind of file system.
    #[error("not on an XFS file system; project quotas need one")]
    NotXfs,
    /// The file system does not count projects.
    #[error("the file system does not count project quotas; mount it with the option prjquota")]
    AccountingOff,
    /// The file system counts projects and lets them pass their limits.
    #[error("the file system does not enforce project quotas; mount it with the option prjquota, not pqnoenforce")]
    EnforcementOff,
    /// No `quotactl_fd`.
    #[error("the kernel has no quotactl_fd; Linux 5.14 or newer is needed")]
    KernelTooOld,
    /// Any other refusal.
    #[error("{operation} failed")]
    System {
        /// The call that failed.
        operation: &'static str,
        /// What the kernel said.
        #[source]
        source: Errno,
    },
}

impl FsError {
    /// For `map_err`: this operation failed for a reason without a name of its own.
    pub(crate) fn system(operation: &'static str) -> impl FnOnce(Errno) -> Self {
        move |source| Self::System { operation, source }
    }
}

/// A limit that cannot be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimitError {
    /// A size of 0 would mean "no limit" to the kernel.
    #[error("a limit of 0 bytes would be no limit at all; ask for at least one byte")]
    NoBytes,
    /// A count of 0 would mean "no limit" to the kernel.
    #[error("a limit of 0 inodes would be no limit at all; ask for at least one inode")]
    NoInodes,
    /// More than the kernel counts.
    #[error("a limit of {asked} is too large; the largest is {}", Limits::MAX_BYTES)]
    TooManyBytes {
        /// What was asked for.
        asked: Bytes,
    },
    /// More than the kernel counts.
    #[error("a limit of {asked} is too large; the largest is {}", Limits::MAX_INODES)]
    TooManyInodes {
        /// What was asked for.
        asked: Inodes,
    },
}

/// [`set`](crate::set), [`assign`](crate::assign) or [`set_limits`](crate::set_limits) failed.
#[derive(Debug, thiserror::Error)]
pub enum SetError {
    /// No project quotas here, or the kernel refused.
    #[error(transparent)]
    Fs(#[from] FsError),
    /// The limits themselves are wrong.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// A directory without a project would get one without any limit.
    #[error("a directory gets its project together with a limit, and none was given")]
    NoLimit,
    /// The directory above belongs to a project already. Projects do not nest.
    #[error("the directory lies in project {outer}; a project cannot hold another one")]
    Nested {
        /// The project of the directory above.
        outer: ProjectId,
    },
    /// The directory is the root of its file system: all others would lie in its project, and the
    /// counter of IDs would be under its limit.
    #[error("the root directory of a file system gets no project; give one to a directory in it")]
    Root,
    /// What is in the directory already would not be counted.
    #[error("the directory is not empty; only an empty one can get a project")]
    NotEmpty,
    /// The directory has another project.
    #[error("the directory has project {found} already, not {wanted}")]
    OtherProject {
        /// What it has.
        found: ProjectId,
        /// What it was to get.
        wanted: ProjectId,
    },
    /// Inodes elsewhere carry the ID.
    #[error("project {id} is in use elsewhere ({}, {})", used.inodes, used.bytes)]
    InUse {
        /// The ID that was to be assigned.
        id: ProjectId,
        /// What uses it.
        used: Usage,
    },
    /// The directory needs an ID, and the counter of IDs is on another file system.
    #[error("the directory is not on the file system that the project IDs are counted for")]
    OtherFileSystem,
    /// No ID to be had.
    #[error("cannot allocate a project ID")]
    Allocate(#[from] AllocateError),
}

/// An [`Allocator`](crate::Allocator) has no ID to give.
#[derive(Debug, thiserror::Error)]
pub enum AllocateError {
    /// No project quotas here, or the kernel refused.
    #[error(transparent)]
    Fs(#[from] FsError),
    /// All 2^32−2 IDs were handed out once.
    #[error("no project ID is left: all were handed out once, and none is used twice")]
    Exhausted,
    /// The counter file holds something else than a counter.
    #[error("{file} in the directory of the allocator is damaged; delete it: IDs in use are found without it")]
    Damaged {
        /// Name of the counter file.
        file: &'static str,
    },
    /// The counter file cannot be opened, locked, read or written.
    #[error("cannot {step} {file} in the directory of the allocator")]
    Counter {
        /// What was tried.
        step: &'static str,
        /// Name of the counter file.
        file: &'static str,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
}

/// [`get`](crate::get) failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GetError {
    /// No project quotas here, or the kernel refused.
    #[error(transparent)]
    Fs(#[from] FsError),
    /// The directory has no project, so that there is nothing to tell.
    #[error("the directory has no project")]
    NotFound,
}

/// [`remove`](crate::remove) or [`clear`](crate::clear) failed; the limits still stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RemoveError {
    /// No project quotas here, or the kernel refused.
    #[error(transparent)]
    Fs(#[from] FsError),
    /// What is in the directory would have no limit any more.
    #[error("the directory is not empty; delete what is in it first")]
    NotEmpty,
    /// The directory only inherited the project of the one above.
    #[error("project {outer} belongs to a directory further up")]
    Nested {
        /// The project.
        outer: ProjectId,
    },
    /// Inodes still carry the ID: deleted files that a program has open, or files elsewhere.
    #[error("project {id} is still in use ({}, {}); try again when no program has its files open", used.inodes, used.bytes)]
    InUse {
        /// The project.
        id: ProjectId,
        /// What uses it.
        used: Usage,
    },
}

/// A step of the walk of [`strays`](crate::strays) failed. The rest of the tree is still walked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WalkError {
    /// The kernel refused.
    #[error("cannot look at {} in the directory", path.display())]
    Entry {
        /// Where, from the directory on; empty for the directory itself.
        path: PathBuf,
        /// Why not.
        #[source]
        source: FsError,
    },
    /// The directory is nested too deeply, and is not looked into.
    #[error("{} lies more than {limit} directories deep and was not looked into", path.display())]
    TooDeep {
        /// Where, from the directory on.
        path: PathBuf,
        /// How deep the walk goes.
        limit: usize,
    },
}

/// [`transfer`](crate::transfer) failed; the same call goes on where this one ended.
#[derive(Debug, thiserror::Error)]
pub enum TransferError {
    /// The limits, or the place of the directory.
    #[error(transparent)]
    Set(#[from] SetError),
    /// The directory has no project, so that nothing in it is counted.
    #[error("the directory has no project")]
    NotFound,
    /// Something in the directory.
    #[error(transparent)]
    Walk(#[from] WalkError),
}

impl From<FsError> for TransferError {
    fn from(error: FsError) -> Self {
        Self::Set(error.into())
    }
}
