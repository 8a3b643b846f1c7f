//! The tasks of one attempt: its body and its children, in one [`JoinSet`].

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use tokio::runtime::Handle;
use tokio::task::{AbortHandle, JoinError, JoinSet};

use crate::BoxError;

/// One attempt of a service.
pub(crate) type Attempt = Pin<Box<dyn Future<Output = Result<(), BoxError>> + Send>>;

/// Result of a task.
pub(crate) enum Exit {
    /// The body of the attempt.
    Body(Result<(), BoxError>),
    /// A child that was stopped.
    Child,
}

/// Future that supervises a child until it is stopped.
pub(crate) type Life = Pin<Box<dyn Future<Output = Exit> + Send>>;

/// Tasks of the current attempt of a service with children of the type `C`. Only the service's own task awaits the
/// tasks, and aborts them at its end.
pub(crate) struct Tasks<C>(Mutex<Inner<C>>);

struct Inner<C> {
    set: JoinSet<Exit>,
    children: Vec<Arc<C>>,
    /// The attempt that may add children.
    open: Option<u32>,
    /// Waker of the service's task, if it waits while no task runs.
    idle: Option<Waker>,
}

impl<C> Inner<C> {
    fn new(open: Option<u32>) -> Self {
        Self { set: JoinSet::new(), children: Vec::new(), open, idle: None }
    }
}

impl<C> Tasks<C> {
    /// No tasks, before the first attempt.
    pub(crate) fn new() -> Self {
        Self(Mutex::new(Inner::new(None)))
    }

    /// Begins an attempt by starting its body. Aborts the tasks that an earlier attempt left.
    pub(crate) fn open(&self, attempt: u32, body: Attempt, runtime: &Handle) -> AbortHandle {
        let mut next = Inner::new(Some(attempt));
        let mut inner = self.lock(); // the body waits for this lock before it adds its first child
        let body = next.set.spawn_on(async { Exit::Body(body.await) }, runtime);
        let before = std::mem::replace(&mut *inner, next);
        drop(inner);
        drop(before);
        body
    }

    /// Adds a child, unless `attempt` has ended or is ending. Returns whether the child was added.
    pub(crate) fn adopt(&self, attempt: u32, child: &Arc<C>, life: Life, runtime: &Handle) -> bool {
        let mut inner = self.lock();
        if inner.open != Some(attempt) {
            return false;
        }
        inner.set.spawn_on(life, runtime);
        inner.children.push(Arc::clone(child));
        if let Some(waker) = inner.idle.take() {
            waker.wake();
        }
        true
    }

    /// Waits for the next end of a task, forever if nothing runs. Cancel-safe.
    pub(crate) async fn next(&self) -> Result<Exit, JoinError> {
        poll_fn(|cx| {
            let mut inner = self.lock();
            match inner.set.poll_join_next(cx) {
                Poll::Ready(Some(exit)) => Poll::Ready(exit),
                Poll::Ready(None) => {
                    inner.idle = Some(cx.waker().clone());
                    Poll::Pending
                }
                Poll::Pending => Poll::Pending,
            }
        })
        .await
    }

    /// Waits for the next end of a task. `None`: nothing runs any more. Cancel-safe.
    pub(crate) async fn rest(&self) -> Option<Result<Exit, JoinError>> {
        poll_fn(|cx| self.lock().set.poll_join_next(cx)).await
    }

    /// The children, in the order of their start.
    pub(crate) fn children(&self) -> Vec<Arc<C>> {
        self.lock().children.clone()
    }

    /// Removes the children that `ended` accepts.
    pub(crate) fn forget(&self, ended: impl Fn(&C) -> bool) {
        self.lock().children.retain(|child| !ended(child));
    }

    /// Rejects further children.
    pub(crate) fn close(&self) {
        self.lock().open = None;
    }

    /// Aborts all tasks. The status continues to list the children.
    pub(crate) fn abort(&self) {
        let mut inner = self.lock();
        inner.open = None;
        let set = std::mem::take(&mut inner.set);
        drop(inner);
        drop(set);
    }

    fn lock(&self) -> MutexGuard<'_, Inner<C>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
