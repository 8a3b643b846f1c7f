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

/// How a service and, unless they have their own, its children are treated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How long it waits after a failure.
    pub backoff: Backoff,
    /// How long it may take to end after it was cancelled, its children not counted. Then it is aborted.
    pub stop_deadline: Duration,
    /// How long it may make no progress, see [`Context::round`]. Longer than the timeouts of everything that a round waits for.
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

/// A service changed its state.
#[derive(Clone, Copy, Debug)]
pub struct Change<'a> {
    /// The names from the root to the service: `node.etcd`.
    pub path: &'a str,
    /// The service's own name.
    pub name: &'a str,
    /// Its state.
    pub state: State,
    /// How often it was started.
    pub attempts: u32,
    /// Why it failed last.
    pub error: Option<&'a str>,
}

/// An aborted task ends at its next `.await`. One that has none is left behind after this.
pub(crate) const ABORT_DEADLINE: Duration = Duration::from_secs(1);

/// Shared by the services of one tree.
pub(crate) struct Tree {
    /// Set once, before anything runs. Weak, since the root has this.
    pub(crate) root: OnceLock<Weak<Node>>,
    /// Sees every change, in order for each service.
    pub(crate) observer: Box<dyn Fn(&Change<'_>) + Send + Sync>,
    /// Where everything runs: a service may start children from a thread that is not the runtime's.
    pub(crate) runtime: runtime::Handle,
    /// No more waiting for services that were asked to stop.
    pub(crate) abort: CancellationToken,
    /// Anything of `u32`, for [`Backoff::wait`].
    pub(crate) jitter: Box<dyn Fn() -> u32 + Send + Sync>,
}

/// The tree. Dropped without [`Supervisor::stop`], it aborts every service, in no order and without
/// waiting: each ends at its next `.await`.
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

    /// The root service.
    pub fn handle(&self) -> Handle {
        self.root.clone()
    }

    /// The whole tree.
    pub fn status(&self) -> Status {
        self.root.status()
    }

    /// Stops every service, the last started first. The rest is aborted after `deadline`, in the same order, and has ended when this
    /// returns, except for a service that blocks its thread (see the crate's documentation).
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
        // Longer only where a thread is blocked: then the rest is dropped with `self`, in no order.
        let _ = timeout(ABORT_DEADLINE, self.root.stop()).await;
        if services.is_empty() { Ok(()) } else { Err(Overdue { services }) } // empty: all waited for a restart
    }
}

/// Services that had not stopped in time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not stopped in time: {}", services.join(", "))]
pub struct Overdue {
    /// Their paths, children before parents.
    pub services: Vec<String>,
}
