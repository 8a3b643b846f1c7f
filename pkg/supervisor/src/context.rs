//! The two ends of a service: what it is given, and what its parent keeps.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::node::Node;
use crate::service::Service;
use crate::{BoxError, Settings, State, Status};

/// Handle of a service for one attempt. It has no effect after the attempt.
#[derive(Clone)]
pub struct Context {
    pub(crate) node: Arc<Node>,
    pub(crate) attempt: u32,
    pub(crate) token: CancellationToken,
}

impl Context {
    /// Says: I do my work now.
    pub fn healthy(&self) {
        self.node.healthy(self.attempt);
    }

    /// Says: when I return `Ok(())`, I ended for good. The service is healthy, is not started again,
    /// and its children go on.
    pub fn done(&self) {
        self.node.will_be_done(self.attempt);
        self.node.healthy(self.attempt);
    }

    /// One round of work, such as a pass over an object. `has_progress` judges its result. The service is stalled, see
    /// [`Status::stalled`], if
    ///
    /// - a round takes longer than [`Settings::round_deadline`]: the time between rounds, when it waits for work, is not
    ///   counted;
    /// - several rounds failed, over a time longer than this deadline, and none made progress meanwhile. This ends with a
    ///   round that makes progress, or when none was tried again for the deadline and the longest wait of
    ///   [`Settings::backoff`]: then the service has no work.
    ///
    /// Rounds may overlap. One that has progress without having waited for anything does not count: it found no work.
    /// Dropped before its end, it counts neither as progress nor as a failure.
    pub fn round<T, F, P>(&self, work: F, has_progress: P) -> impl Future<Output = T> + use<T, F, P>
    where
        F: Future<Output = T>,
        P: FnOnce(&T) -> bool,
    {
        let (progress, settings, attempt) = (self.node.progress(), self.node.settings().clone(), self.attempt);
        async move { progress.round(attempt, &settings, work, has_progress).await }
    }

    /// A [`round`](Self::round) that is not a future, at its end: the result of an effort that others complete, such as a watch that
    /// a library opens again. They try again within [`Settings::round_deadline`]: without a failure for this time, the effort has
    /// succeeded. A success ends the failures that were reported, not those of rounds.
    pub fn report(&self, has_progress: bool) {
        self.node.progress().report(self.attempt, self.node.settings(), has_progress);
    }

    /// Waits until this attempt has to end. Its children have stopped by then. Cancel-safe.
    pub async fn cancelled(&self) {
        self.token.cancelled().await;
    }

    /// Whether this attempt has to end.
    pub fn is_cancelled(&self) -> bool {
        self.token.is_cancelled()
    }

    /// Cancelled when this attempt has to end.
    pub fn token(&self) -> CancellationToken {
        self.token.clone()
    }

    /// Which attempt this is, from 1.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// The names from the root to this service: `node.etcd`.
    pub fn path(&self) -> &str {
        self.node.path()
    }

    /// The whole tree, not only what is below this service: for a service that shows a status page.
    pub fn tree(&self) -> Status {
        self.node.tree_status()
    }

    /// Starts a child with the settings of this service. Does not wait. Two children may have the same name.
    pub fn start<F, Fut, E>(&self, name: impl Into<String>, service: F) -> Handle
    where
        F: Fn(Context) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<BoxError>,
    {
        self.start_with(name, self.node.settings().clone(), service)
    }

    /// Starts a child with settings of its own. Does not wait.
    pub fn start_with<F, Fut, E>(&self, name: impl Into<String>, settings: Settings, service: F) -> Handle
    where
        F: Fn(Context) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<BoxError>,
    {
        Handle { node: self.node.adopt(self.attempt, name.into(), settings, Service::new(service)) }
    }
}

/// A service that was started. Dropping it changes nothing.
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

    /// Where the service is in its life.
    pub fn state(&self) -> State {
        self.node.state()
    }

    /// The service and everything below it.
    pub fn status(&self) -> Status {
        self.node.status()
    }

    /// Stops the service for good, its children before it, and waits until nothing of it runs. While its
    /// parent goes on, it leaves the parent's [`Status`].
    pub async fn stop(&self) {
        self.node.stop().await;
    }
}

/// A service was stopped and will not be healthy any more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("service {service} was stopped")]
pub struct Ended {
    /// Its path: `node.etcd`.
    pub service: String,
}
