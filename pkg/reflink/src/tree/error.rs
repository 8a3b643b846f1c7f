//! Errors.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use nix::errno::Errno;

/// Levels of directories that a tree may have below its top.
pub const MAX_DEPTH: usize = 128;

/// The part of the work on an entry that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// Reading the entry in the source, or cloning its content.
    Read,
    /// Creating or changing the entry in the target.
    Write,
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Write => "clone",
        })
    }
}

/// A tree was not cloned.
#[derive(Debug, thiserror::Error)]
pub enum TreeError {
    /// A call of the kernel failed. `ENOSPC`: the quota of the target, or the disk, is full. `EXDEV`: a mount point in
    /// the source. `E2BIG`: the names of an entry's attributes are longer than 64 KiB.
    #[error("cannot {task} {path:?}")]
    Entry {
        /// Whether the source or the target is affected.
        task: Task,
        /// Path relative to the top; empty for the top itself. The owner of the source chose the names.
        path: PathBuf,
        /// Error of the kernel.
        #[source]
        errno: Errno,
    },
    /// The target is not an empty directory.
    #[error("the target of the clone is not empty")]
    NotEmpty,
    /// A directory is more than 128 levels below the top.
    #[error("{path:?} is more than {MAX_DEPTH} levels deep")]
    TooDeep {
        /// Path relative to the top.
        path: PathBuf,
    },
    /// The pass did not end in time.
    #[error("the clone did not complete in time")]
    Late,
    /// A thread did not start, or panicked.
    #[error("cannot run the threads of the clone")]
    Thread(#[source] io::Error),
}

impl TreeError {
    pub(super) fn at_top(task: Task) -> impl Fn(Errno) -> Self {
        move |errno| Self::Entry { task, path: PathBuf::new(), errno }
    }
}

/// An error of one entry, without its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    Source(Errno),
    Target(Errno),
}

impl Fault {
    /// Whether a change of the source can cause the error: a listing that contains a name twice leads to two changes of
    /// one entry in the target.
    pub(super) fn is_transient(self) -> bool {
        match self {
            Self::Source(_) => true,
            Self::Target(errno) => matches!(
                errno,
                Errno::EEXIST | Errno::ENOENT | Errno::ENOTDIR | Errno::EISDIR | Errno::ELOOP | Errno::ESTALE
            ),
        }
    }

    pub(super) fn at(self, path: &Path) -> TreeError {
        let (task, errno) = match self {
            Self::Source(errno) => (Task::Read, errno),
            Self::Target(errno) => (Task::Write, errno),
        };
        TreeError::Entry { task, path: path.to_owned(), errno }
    }
}
