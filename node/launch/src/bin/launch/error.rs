//! Why the program ends, and with which status.

use crate::demo::DemoError;
use crate::interrupts::End;
use launch::{ClusterError, ClusterShutdownError, Ended};
use std::io;
use std::path::PathBuf;

const FAILED: u8 = 1;
/// Interrupted: 128 and the signal's number, as shells have it.
const INTERRUPTED: u8 = 130;

/// Why there is nothing to show, or not all of it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LaunchError {
    #[error("cannot start the threads of this program")]
    Runtime(#[source] io::Error),
    #[error("cannot make a temporary directory in {path}; name another place with TMPDIR")]
    Temporary {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot make {path} for the logs; name another directory with --keep-logs")]
    Logs {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot wait for signals")]
    Signals(#[source] io::Error),
    #[error(transparent)]
    Boot(Box<ClusterError>),
    #[error("the demonstration failed")]
    Demo(#[source] Box<DemoError>),
    #[error("{} ended by itself: {}", .0.what, .0.reason)]
    Ended(Ended),
    #[error(transparent)]
    ShutDown(Box<ClusterShutdownError>),
    #[error("interrupted")]
    Interrupted,
    #[error("the output cannot be written: its reader is gone, or its disk is full")]
    Unread,
}

impl LaunchError {
    /// The exit status.
    pub(crate) fn status(&self) -> u8 {
        match self {
            Self::Interrupted => INTERRUPTED,
            Self::Runtime(_)
            | Self::Temporary { .. }
            | Self::Logs { .. }
            | Self::Signals(_)
            | Self::Boot(_)
            | Self::Demo(_)
            | Self::Ended(_)
            | Self::ShutDown(_)
            | Self::Unread => FAILED,
        }
    }
}

impl From<End> for LaunchError {
    fn from(end: End) -> Self {
        match end {
            End::Interrupted => Self::Interrupted,
            End::Unread => Self::Unread,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_demonstration_has_status_1_and_an_interrupted_one_130() {
        assert_eq!(LaunchError::Demo(Box::new(DemoError::NoAccount)).status(), 1);
        assert_eq!(LaunchError::from(End::Unread).status(), 1);
        assert_eq!(LaunchError::from(End::Interrupted).status(), 130);
    }
}
