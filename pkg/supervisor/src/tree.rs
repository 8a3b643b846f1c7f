//! The root of the tree.

use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use tokio::runtime;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::backoff::jitter;
use crate::node::Node;
use crate::service::Service;
use crate::tasks::Exit;
use crate::{Backoff, BoxError, Context, Handle, State, Status};

/// Settings of a service, and of its children without settings of their own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Waiting times after failures.
    pub backoff: Backoff,
    /// Longest time from the cancellation of the service to its end, without the time that its children need. The
    /// supervisor then aborts the service.
    pub stop_deadline: Duration,
    /// Longest time without progress, see [`Context::round`]. Longer than all timeouts of the calls that a round waits
    /// for.
    pub round_deadline: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            backoff: Backoff::default(),
            stop_deadline: Duration::from_secs(10),
            round_deadline: Duration::from_secs(5 * 60),
        }
    }
}

/// A change of a service's state.
#[derive(Clone, Copy, Debug)]
pub struct Change<'a> {
    /// Names from the root to the service, such as `node.etcd`.
    pub path: &'a str,
    /// Name of the service.
    pub name: &'a str,
    /// New state.
    pub state: State,
    /// Number of starts.
    pub attempts: u32,
    /// Last failure with its causes.
    pub error: Option<&'a str>,
}

/// Longest wait for an aborted task, which ends at its next `.await`. A task without one is left behind.
pub(crate) const ABORT_DEADLINE: Duration = Duration::from_secs(1);

/// Data that the services of a tree share.
pub(crate) struct Tree {
    /// Root of the tree, set before any service runs. The reference is weak, because the root owns this structure.
    pub(crate) root: OnceLock<Weak<Node>>,
    /// Receives every change, in order for each service.
    pub(crate) observer: Box<dyn Fn(&Change<'_>) + Send + Sync>,
    /// Runtime of all services. A service may start children from a thread that is not one of the runtime.
    pub(crate) runtime: runtime::Handle,
    /// Ends the wait for stopping services.
    pub(crate) abort: CancellationToken,
    /// Returns any `u32`, the jitter of [`Backoff::wait`].
    pub(crate) jitter: Box<dyn Fn() -> u32 + Send + Sync>,
}

/// A tree of services. Dropping it without [`Supervisor::stop`] aborts all services, in no order and without waiting:
/// each service ends at its next `.await`.
pub struct Supervisor {
    root: Handle,
    _task: JoinSet<Exit>,
}

impl Supervisor {
    /// Starts the root service, which starts the others. Panics outside a tokio runtime.
    pub fn start<F, Fut, E>(name: impl Into<String>, settings: Settings, service: F) -> Self
    where
        F: Fn(Context) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<BoxError>,
    {
        Self::observed(name, settings, |_| {}, service)
    }

    /// Like [`Self::start`], with an observer of all changes of state, which must not block.
    pub fn observed<O, F, Fut, E>(name: impl Into<String>, settings: Settings, observer: O, service: F) -> Self
    where
        O: Fn(&Change<'_>) + Send + Sync + 'static,
        F: Fn(Context) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<BoxError>,
    {
        let tree = Tree {
            root: OnceLock::new(),
            observer: Box::new(observer),
            runtime: runtime::Handle::current(),
            abort: CancellationToken::new(),
            jitter: Box::new(jitter),
        };
        Self::with(name.into(), settings, tree, Service::new(service))
    }

    pub(crate) fn with(name: String, settings: Settings, tree: Tree, service: Service) -> Self {
        let tree = Arc::new(tree);
        let node = Node::root(name, settings, Arc::clone(&tree), service);
        tree.root.get_or_init(|| Arc::downgrade(&node));
        let mut task = JoinSet::new();
        task.spawn_on(Arc::clone(&node).life(), &tree.runtime);
        Self { root: Handle { node }, _task: task }
    }

    /// Handle of the root service.
    pub fn handle(&self) -> Handle {
        self.root.clone()
    }

    /// Status of the whole tree.
    pub fn status(&self) -> Status {
        self.root.status()
    }

    /// Stops all services in the reverse order of their starts. After `deadline`, the remaining services are aborted in
    /// the same order. All services have ended when the function returns, except for a service that blocks its thread
    /// (see the crate's documentation).
    ///
    /// # Errors
    /// [`Overdue`] names the services that were aborted after `deadline`.
    pub async fn stop(self, deadline: Duration) -> Result<(), Overdue> {
        if timeout(deadline, self.root.stop()).await.is_ok() {
            return Ok(());
        }
        let mut services = Vec::new();
        self.status().running(&mut services);
        self.root.node.abort();
        // The wait fails only if a thread is blocked. Then `self` drops the remaining services in no order.
        let _ = timeout(ABORT_DEADLINE, self.root.stop()).await;
        if services.is_empty() { Ok(()) } else { Err(Overdue { services }) } // empty: all waited for a restart
    }
}

/// Services that had not stopped in time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("services did not stop in time: {}", services.join(", "))]
pub struct Overdue {
    /// Paths of the services, children before parents.
    pub services: Vec<String>,
}
