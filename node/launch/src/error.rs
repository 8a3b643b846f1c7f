//! Errors of boots and shutdowns.

use crate::check::PreflightError;
use crate::console::Console;
use crate::event::Unfinished;
use kube::runtime::watcher;
use qemu::Exit;
use std::error::Error;
use std::time::Duration;
use tokio::task;

type Cause = Box<dyn Error + Send + Sync>;

#[derive(Debug, thiserror::Error)]
#[error("cannot {step}")]
pub struct StepError {
    step: String,
    source: Cause,
}

impl StepError {
    /// Returns a function for `map_err`. The cause is an error or a text.
    pub fn of<E: Into<Cause>>(step: impl Into<String>) -> impl FnOnce(E) -> Self {
        let step = step.into();
        |cause| Self { step, source: cause.into() }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum BootError {
    #[error("the node cannot be started on this machine")]
    Preflight(#[from] PreflightError),
    #[error(transparent)]
    Step(#[from] StepError),
    #[error("the node cannot continue: {message}")]
    Fatal { message: String },
    /// The guest ended without announcing a fatal error.
    #[error("the guest ended during its boot: QEMU ended with {exit}; {console}")]
    Ended { exit: Exit, console: Console },
    #[error("the node was not ready after {limit:?}; waited for: {unfinished}; {console}")]
    Late {
        limit: Duration,
        unfinished: Unfinished,
        console: Console,
        /// Error of the last request for the Node object.
        source: Option<Box<watcher::Error>>,
    },
}

#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    #[error("node {node} did not boot")]
    Boot { node: String, source: Box<BootError> },
    #[error(transparent)]
    Step(#[from] StepError),
    #[error("the network between the nodes failed, QEMU ended with {0}")]
    SegmentEnded(Exit),
}

impl ClusterError {
    pub(crate) fn of<E: Into<BootError>>(node: &str) -> impl FnOnce(E) -> Self {
        move |source| Self::Boot { node: node.to_owned(), source: Box::new(source.into()) }
    }
}

/// A node of a cluster did not power off by itself. Reports the first such node.
#[derive(Debug, thiserror::Error)]
#[error("node {node} did not shut down")]
pub struct ClusterShutdownError {
    pub node: String,
    pub source: ShutdownError,
}

#[derive(Debug, thiserror::Error)]
pub enum ShutdownError {
    #[error("the guest did not power off cleanly, QEMU ended with {exit}; {console}")]
    Killed { exit: Exit, console: Console },
    #[error("a task of the launcher panicked")]
    Panicked(#[source] task::JoinError),
}
