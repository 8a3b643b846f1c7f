//! The function of a service, [`Service`], and its handles: [`Context`] for the service itself, and [`Handle`] for its
//! parent.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::node::Node;
use crate::tasks::Attempt;
use crate::{BoxError, Settings, State, Status};

/// Handle of a service for one attempt. It has no effect after the attempt.
#[derive(Clone)]
pub struct Context {
    pub(crate) node: Arc<Node>,
    pub(crate) attempt: u32,
    pub(crate) token: CancellationToken,
}

impl Context {
    /// Reports that the service does its work.
    pub fn healthy(&self) {
        self.node.healthy(self.attempt);
    }

    /// Reports that the service is healthy and that a return of `Ok(())` completes it. The supervisor does not start a
    /// completed service again, and its children continue to run.
    pub fn done(&self) {
        self.node.will_be_done(self.attempt);
        self.node.healthy(self.attempt);
    }

    /// Runs one round of work, such as a pass over an object. `has_progress` returns whether the result of the round is
    /// progress. The service is stalled, see [`Status::stalled`], if
    ///
    /// - a round takes longer than [`Settings::round_deadline`]. The time between rounds, when the service waits for
    ///   work, does not count;
    /// - several rounds failed over a time longer than this deadline, and no round made progress meanwhile. The stall
    ///   ends when a round makes progress, or when no round fails for the deadline plus the longest wait of
    ///   [`Settings::backoff`]: then the service has no work.
    ///
    /// Rounds may overlap. A round with progress that never waited does not count, because it found no work. A round
    /// that is dropped before its end counts neither as progress nor as a failure.
    pub fn round<T, F, P>(&self, work: F, has_progress: P) -> impl Future<Output = T> + use<T, F, P>
    where
        F: Future<Output = T>,
        P: FnOnce(&T) -> bool,
    {
        let (progress, settings, attempt) = (self.node.progress(), self.node.settings().clone(), self.attempt);
        async move { progress.round(attempt, &settings, work, has_progress).await }
    }

    /// Reports the result of work that another component runs, such as a watch that a library opens again. The report
    /// counts as a [`round`](Self::round) that begins and ends now. The component has to retry within
    /// [`Settings::round_deadline`]: if no failure is reported for this time, the work has succeeded. A success clears
    /// the reported failures, not those of rounds.
    pub fn report(&self, has_progress: bool) {
        self.report_of("", has_progress);
    }

    /// As [`report`](Self::report), for one of several efforts, such as watches: a success clears only the reported
    /// failures of the same effort.
    pub fn report_of(&self, effort: &'static str, has_progress: bool) {
        self.node.progress().report(self.attempt, self.node.settings(), effort, has_progress);
    }

    /// Waits until this attempt has to end. Its children have stopped by then. Cancel-safe.
    pub async fn cancelled(&self) {
        self.token.cancelled().await;
    }

    /// Whether this attempt has to end.
    pub fn is_cancelled(&self) -> bool {
        self.token.is_cancelled()
    }

    /// Token that is cancelled when this attempt has to end.
    pub fn token(&self) -> CancellationToken {
        self.token.clone()
    }

    /// Number of this attempt, from 1.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Names from the root to this service, such as `node.etcd`.
    pub fn path(&self) -> &str {
        self.node.path()
    }

    /// Status of the whole tree, for example for a status page.
    pub fn tree(&self) -> Status {
        self.node.tree_status()
    }

    /// Starts a child with the settings of this service, and returns at once. Two children may have the same name.
    pub fn start<F, Fut, E>(&self, name: impl Into<String>, service: F) -> Handle
    where
        F: Fn(Context) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<BoxError>,
    {
        self.start_with(name, self.node.settings().clone(), service)
    }

    /// Starts a child with settings of its own, and returns at once.
    pub fn start_with<F, Fut, E>(&self, name: impl Into<String>, settings: Settings, service: F) -> Handle
    where
        F: Fn(Context) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<BoxError>,
    {
        Handle { node: self.node.adopt(self.attempt, name.into(), settings, Service::new(service)) }
    }
}

/// A service function of any type.
#[derive(Clone)]
pub(crate) struct Service(Arc<dyn Fn(Context) -> Attempt + Send + Sync>);

impl Service {
    pub(crate) fn new<F, Fut, E>(run: F) -> Self
    where
        F: Fn(Context) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<BoxError>,
    {
        Self(Arc::new(move |cx| {
            let attempt = run(cx);
            Box::pin(async move { attempt.await.map_err(Into::into) })
        }))
    }

    /// Starts an attempt. The call of the function is inside the future too, so that its panic is a failure of the
    /// attempt.
    pub(crate) fn attempt(&self, cx: Context) -> Attempt {
        let run = Arc::clone(&self.0);
        Box::pin(async move { run(cx).await })
    }
}

/// Handle of a started service. Dropping it does not stop the service.
#[derive(Clone)]
pub struct Handle {
    pub(crate) node: Arc<Node>,
}

impl Handle {
    /// Waits, through failures and restarts, until the service is healthy or done. [`Ended`] if it was stopped.
    /// Cancel-safe.
    pub async fn healthy(&self) -> Result<(), Ended> {
        let state = self
            .node
            .wait(|state| match state {
                State::Healthy | State::Done | State::Stopping | State::Stopped => true,
                State::Starting | State::Failed => false,
            })
            .await;
        match state {
            State::Stopping | State::Stopped => Err(Ended { service: self.node.path().to_owned() }),
            State::Starting | State::Healthy | State::Done | State::Failed => Ok(()),
        }
    }

    /// Current state of the service.
    pub fn state(&self) -> State {
        self.node.state()
    }

    /// Status of the service and its descendants.
    pub fn status(&self) -> Status {
        self.node.status()
    }

    /// Stops the children and then the service for good, and waits until all their tasks have ended. If the parent
    /// continues to run, its [`Status`] no longer lists the service.
    pub async fn stop(&self) {
        self.node.stop().await;
    }
}

/// A service was stopped and will not be healthy any more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("service {service} was stopped")]
pub struct Ended {
    /// Path of the service, such as `node.etcd`.
    pub service: String,
}
