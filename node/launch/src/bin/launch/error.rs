//! Errors and exit status of the program.

use crate::demo::DemoError;
use crate::interrupts::Interrupt;
use crate::kubeconfig_error::KubeconfigError;
use crate::name::ClusterName;
use launch::{ClusterError, ClusterShutdownError, ConfigurationError, Ended};
use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

const FAILED: u8 = 1;
/// Exit status: 128 plus the number of SIGINT, as in shells.
const INTERRUPTED: u8 = 130;

#[derive(Debug, thiserror::Error)]
pub(crate) enum LaunchError {
    #[error("cannot {step}")]
    Prepare { step: String, source: io::Error },
    #[error(
        "the configuration {} is neither a regular file nor a pipe; write it to a file, and name that with --config",
        path.display()
    )]
    ConfigKind { path: PathBuf },
    #[error("cannot use the configuration {path}")]
    Config { path: PathBuf, source: ConfigurationError },
    #[error(transparent)]
    Boot(Box<ClusterError>),
    #[error("the demonstration failed")]
    Demo(#[source] Box<DemoError>),
    #[error("{} ended unexpectedly: {}", .0.what, .0.reason)]
    Ended(Ended),
    #[error(transparent)]
    ShutDown(Box<ClusterShutdownError>),
    #[error(transparent)]
    Kubeconfig(#[from] KubeconfigError),
    #[error("cluster {name} is in use by another launcher; `status` shows its state, `stop --name={name}` stops it")]
    InUse { name: ClusterName },
    #[error(
        "the file system of {} does not support locks (flock); name a directory on a local disk with XDG_STATE_HOME",
        directory.display()
    )]
    NoLocks { directory: PathBuf, source: io::Error },
    #[error("cluster {name} does not exist; `status` lists the clusters")]
    Unknown { name: ClusterName },
    #[error("cluster {name} did not start, its launcher ended with {status}; {} has its output", log.display())]
    NotStarted { name: ClusterName, status: ExitStatus, log: PathBuf },
    #[error(
        "cluster {name} did not shut down in order; {}, or the terminal of a launcher in the foreground, has the reason",
        log.display()
    )]
    NotInOrder { name: ClusterName, log: PathBuf },
    #[error(
        "cluster {name} did not shut down in order: its launcher was killed, or Ctrl-C cut the power of its nodes, which loses data that they did not flush; `start --name={name}` boots them again"
    )]
    Killed { name: ClusterName },
    #[error(
        "cluster {name} still runs after {limit:?}; `kill -9 {pid}` cuts the power of its nodes, which loses data that they did not flush"
    )]
    StillRuns { name: ClusterName, pid: u32, limit: Duration },
    #[error("interrupted")]
    Interrupted,
    #[error("the power was cut")]
    PowerCut,
    #[error("cannot write the output: it was closed, or its disk is full")]
    OutputClosed,
}

impl LaunchError {
    pub(crate) fn prepare(step: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let step = step.into();
        |source| Self::Prepare { step, source }
    }

    pub(crate) fn status(&self) -> u8 {
        if matches!(self, Self::Interrupted | Self::PowerCut) { INTERRUPTED } else { FAILED }
    }

    /// Combines the reason for a shutdown with the error of the shutdown: prints the error and returns the reason,
    /// unless the reason is an interrupt.
    pub(crate) fn after(self, down: Self, print: impl FnOnce(&str)) -> Self {
        match (self, down) {
            (Self::Interrupted, down) => down,
            // The launcher has already printed the power cut.
            (reason, Self::PowerCut) => reason,
            (reason, down) => {
                print(&format!("{}\n", causes::lines(&down)));
                reason
            }
        }
    }
}

impl From<Interrupt> for LaunchError {
    fn from(interrupt: Interrupt) -> Self {
        match interrupt {
            Interrupt::Interrupted => Self::Interrupted,
            Interrupt::OutputClosed => Self::OutputClosed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use launch::{BootError, ShutdownError};

    #[test]
    fn the_status_is_1_or_130_after_an_interrupt() {
        assert_eq!(LaunchError::Demo(Box::new(DemoError::new("no account"))).status(), 1);
        assert_eq!(LaunchError::from(Interrupt::OutputClosed).status(), 1);
        assert_eq!(LaunchError::from(Interrupt::Interrupted).status(), 130);
    }

    fn ending(reason: LaunchError, down: LaunchError) -> (String, LaunchError) {
        let mut printed = String::new();
        let last = reason.after(down, |text| printed.push_str(text));
        (printed, last)
    }

    async fn not_shut_down() -> LaunchError {
        let task = tokio::spawn(std::future::pending::<()>());
        task.abort();
        let source = ShutdownError::Panicked(task.await.unwrap_err());
        LaunchError::ShutDown(Box::new(ClusterShutdownError { node: "granary".to_owned(), source }))
    }

    fn reasons() -> [LaunchError; 3] {
        let fatal = BootError::Fatal { message: "no disk".to_owned() };
        let boot = ClusterError::Boot { node: "granary-1".to_owned(), source: Box::new(fatal) };
        let ended = Ended { what: "node granary".to_owned(), reason: "no etcd".to_owned() };
        [
            LaunchError::Boot(Box::new(boot)),
            LaunchError::Demo(Box::new(DemoError::new("no account"))),
            LaunchError::Ended(ended),
        ]
    }

    #[tokio::test]
    async fn a_failed_shutdown_does_not_hide_the_reason() {
        for reason in reasons() {
            let text = reason.to_string();
            let (printed, last) = ending(reason, not_shut_down().await);
            assert!(printed.starts_with("node granary did not shut down\ncaused by: "), "{printed}");
            assert_eq!((last.to_string(), last.status()), (text, 1));
        }
    }

    #[test]
    fn a_power_cut_does_not_hide_the_reason() {
        for reason in reasons() {
            let text = reason.to_string();
            let (printed, last) = ending(reason, LaunchError::PowerCut);
            assert_eq!((printed.as_str(), last.to_string(), last.status()), ("", text, 1));
        }
    }

    #[tokio::test]
    async fn a_failed_shutdown_after_an_interrupt_is_reported() {
        let (printed, last) = ending(LaunchError::Interrupted, not_shut_down().await);
        assert_eq!((printed.as_str(), last.status()), ("", 1));
        assert!(matches!(last, LaunchError::ShutDown(_)), "{last}");
        let (printed, last) = ending(LaunchError::Interrupted, LaunchError::PowerCut);
        assert_eq!((printed.as_str(), last.status()), ("", 130));
        assert!(matches!(last, LaunchError::PowerCut), "{last}");
    }
}
