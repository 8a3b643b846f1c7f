//! Errors.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use nix::errno::Errno;

/// The operation on a cgroup that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Opening the cgroup's directory or a file in it.
    Open,
    /// Reading `cgroup.freeze` or `cgroup.events`.
    Read,
    /// Reading, setting or removing the mark.
    Mark,
    /// Writing `1` to `cgroup.freeze`.
    Freeze,
    /// Writing `0` to `cgroup.freeze`.
    Thaw,
}

impl Operation {
    /// All operations, in the order of their numbers in messages of the guard.
    pub(crate) const ALL: [Self; 5] = [Self::Open, Self::Read, Self::Mark, Self::Freeze, Self::Thaw];
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Open => "open",
            Self::Read => "read",
            Self::Mark => "mark",
            Self::Freeze => "freeze",
            Self::Thaw => "thaw",
        })
    }
}

/// The cgroups were not frozen for the whole time. Those that this call froze, and those that an earlier run left
/// frozen, are thawed, with two exceptions. After [`FreezeError::Cgroup`], the cgroup that it names may be frozen.
/// If no guard worked ([`FreezeError::Start`], [`FreezeError::TooMany`], or [`Operation::Open`] of a path that is not
/// a cgroup), those of an earlier run stay frozen until [`thaw_marked`](crate::thaw_marked).
#[derive(Debug, thiserror::Error)]
pub enum FreezeError {
    /// The guard cannot be started. No cgroup was frozen.
    #[error("cannot start the guard of frozen cgroups")]
    Start(#[source] io::Error),
    /// The request does not fit into one message: 200 KiB of paths.
    #[error("too many cgroups to freeze at once")]
    TooMany,
    /// A system call on a cgroup failed.
    #[error("cannot {operation} the cgroup {path}")]
    Cgroup {
        /// The failed call.
        operation: Operation,
        /// Path of the cgroup.
        path: PathBuf,
        /// Error of the kernel.
        #[source]
        errno: Errno,
    },
    /// Another process has frozen the cgroup, or another guard has its lock.
    #[error("the cgroup {path} is already frozen; try again when it runs")]
    AlreadyFrozen {
        /// Path of the cgroup.
        path: PathBuf,
    },
    /// The budget was exceeded. The guard thawed the cgroups.
    #[error("{}", late(.budget, .freeze))]
    Late {
        /// Maximum pause.
        budget: Duration,
        /// Time until all processes were frozen; `None` if some never were.
        freeze: Option<Duration>,
        /// Time from the first request to freeze to the end of the last request to thaw.
        total: Duration,
    },
    /// Another process thawed a cgroup. Its processes may have run.
    #[error("another process thawed the cgroup {path} too early")]
    Thawed {
        /// Path of the cgroup.
        path: PathBuf,
    },
    /// The guard was killed or did not reply. This process thawed the cgroups.
    #[error("the guard of frozen cgroups ended before the thaw")]
    Guard,
}

fn late(budget: &Duration, freeze: &Option<Duration>) -> String {
    match freeze {
        Some(freeze) => format!("the pause exceeded {budget:?}, of which freezing took {freeze:?}"),
        None => format!("the processes could not be frozen in {budget:?}"),
    }
}
