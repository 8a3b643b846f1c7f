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

    /// What the program ends with if the shutdown that this error was the reason for failed, too. The reason is told
    /// last, unless it is that somebody asked for the end.
    pub(crate) fn after(self, down: Self, tell: impl FnOnce(&str)) -> Self {
        match (self, down) {
            (Self::Interrupted, down) => down,
            // That the power was cut is said by then.
            (reason, Self::Interrupted) => reason,
            (reason, down) => {
                tell(&format!("{}\n", causes::lines(&down)));
                reason
            }
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
    use launch::ShutdownError;

    #[test]
    fn a_failed_demonstration_has_status_1_and_an_interrupted_one_130() {
        assert_eq!(LaunchError::Demo(Box::new(DemoError::NoAccount(None))).status(), 1);
        assert_eq!(LaunchError::from(End::Unread).status(), 1);
        assert_eq!(LaunchError::from(End::Interrupted).status(), 130);
    }

    /// What was told, and what the program ends with.
    fn ending(reason: LaunchError, down: LaunchError) -> (String, LaunchError) {
        let mut told = String::new();
        let last = reason.after(down, |text| told.push_str(text));
        (told, last)
    }

    async fn not_shut_down() -> LaunchError {
        let task = tokio::spawn(std::future::pending::<()>());
        task.abort();
        let source = ShutdownError::Panicked(task.await.unwrap_err());
        LaunchError::ShutDown(Box::new(ClusterShutdownError { node: "granary".to_owned(), source }))
    }

    fn reasons() -> [LaunchError; 3] {
        let refused = qemu::FindError::Missing.into();
        let boot = ClusterError::Boot { node: "granary-1".to_owned(), source: Box::new(refused) };
        let ended = Ended { what: "node granary".to_owned(), reason: "no etcd".to_owned() };
        [
            LaunchError::Boot(Box::new(boot)),
            LaunchError::Demo(Box::new(DemoError::NoAccount(None))),
            LaunchError::Ended(ended),
        ]
    }

    #[tokio::test]
    async fn the_reason_for_the_end_outlives_a_shutdown_that_fails() {
        for reason in reasons() {
            let text = reason.to_string();
            let (told, last) = ending(reason, not_shut_down().await);
            assert!(told.starts_with("node granary did not shut down\ncaused by: "), "{told}");
            assert_eq!((last.to_string(), last.status()), (text, 1));
        }
    }

    #[test]
    fn the_reason_for_the_end_outlives_a_power_cut() {
        for reason in reasons() {
            let text = reason.to_string();
            let (told, last) = ending(reason, LaunchError::Interrupted);
            assert_eq!((told.as_str(), last.to_string(), last.status()), ("", text, 1));
        }
    }

    #[tokio::test]
    async fn who_asked_for_the_end_is_told_what_became_of_it() {
        let (told, last) = ending(LaunchError::Interrupted, not_shut_down().await);
        assert_eq!((told.as_str(), last.status()), ("", 1));
        assert!(matches!(last, LaunchError::ShutDown(_)), "{last}");
        let (told, last) = ending(LaunchError::Interrupted, LaunchError::Interrupted);
        assert_eq!((told.as_str(), last.status()), ("", 130));
    }
}
