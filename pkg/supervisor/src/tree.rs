//! The root of the tree.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::runtime;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::backoff::jitter;
use crate::context::Service;
use crate::node::{ABORT_DEADLINE, Node, Tree};
use crate::tasks::Exit;
use crate::{BoxError, Change, Context, Handle, Settings, Status};

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
