//! The root of the tree.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::task::AbortOnDropHandle;

use crate::node::{Node, OnFailure};
use crate::service::Service;
use crate::{Backoff, BoxError, Context, Handle, State, Status};

/// How a service and, unless they have their own, its children are treated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How long it waits after a failure.
    pub backoff: Backoff,
    /// How long it may take to end after it was cancelled, its children not counted. Then it is aborted.
    pub stop_deadline: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self { backoff: Backoff::default(), stop_deadline: Duration::from_secs(10) }
    }
}

/// A service changed its state.
#[derive(Clone, Copy, Debug)]
pub struct Change<'a> {
    /// The names from the root to the service: `node.etcd`.
    pub path: &'a str,
    /// The service's own name.
    pub name: &'a str,
    /// What it is now.
    pub state: State,
    /// How often it was started.
    pub attempts: u32,
    /// Why it failed last.
    pub error: Option<&'a str>,
}

/// Sees every change, in order for each service.
pub(crate) type Observer = Arc<dyn Fn(&Change<'_>) + Send + Sync>;

/// The tree. Dropped without [`Supervisor::stop`], it aborts every service, in no order.
pub struct Supervisor {
    root: Handle,
    _run: AbortOnDropHandle<()>,
}

impl Supervisor {
    /// Starts the root service, which starts the others.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn start<F, Fut, E>(name: impl Into<String>, settings: Settings, service: F) -> Self
    where
        F: Fn(Context) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<BoxError>,
    {
        Self::observed(name, settings, |_| {}, service)
    }

    /// The same, with an observer of every change of state. It must not block.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn observed<O, F, Fut, E>(name: impl Into<String>, settings: Settings, observer: O, service: F) -> Self
    where
        O: Fn(&Change<'_>) + Send + Sync + 'static,
        F: Fn(Context) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<BoxError>,
    {
        let node = Node::root(name.into(), settings, Arc::new(observer), Service::new(service));
        let run = AbortOnDropHandle::new(tokio::spawn(Arc::clone(&node).supervise(OnFailure::Restart, None)));
        Self { root: Handle { node }, _run: run }
    }

    /// The root service.
    pub fn handle(&self) -> Handle {
        self.root.clone()
    }

    /// The whole tree.
    pub fn status(&self) -> Status {
        self.root.status()
    }

    /// Stops every service, the last started first. What is left after `deadline` is aborted.
    ///
    /// # Errors
    /// [`Overdue`] names what had to be aborted because `deadline` passed.
    pub async fn stop(self, deadline: Duration) -> Result<(), Overdue> {
        if tokio::time::timeout(deadline, self.root.stop()).await.is_ok() {
            return Ok(());
        }
        let mut services = Vec::new();
        self.status().running("", &mut services);
        Err(Overdue { services })
    }
}

/// Services that had not stopped in time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not stopped in time: {}", services.join(", "))]
pub struct Overdue {
    /// Their paths, children before parents.
    pub services: Vec<String>,
}
