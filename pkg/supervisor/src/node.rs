//! One service of the tree, the task that runs it, and the data that the services of a tree share.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use tokio::runtime;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, debug, error, info, info_span, warn};

use crate::context::Service;
use crate::failure::Failure;
use crate::progress::Progress;
use crate::state::Event;
use crate::tasks::{Exit, Life, Tasks};
use crate::{Change, Context, Settings, State, Status};

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
    /// Returns any `u32`, the jitter of [`Backoff::wait`](crate::Backoff::wait).
    pub(crate) jitter: Box<dyn Fn() -> u32 + Send + Sync>,
}

/// The end of an attempt.
enum End {
    Stopped,
    Done,
    Failed(Failure),
}

/// A service. Its parent owns the task that supervises it, so every task has exactly one owner. A node never points to
/// its parent, so the tree has no reference cycle.
pub(crate) struct Node {
    path: String,
    name: String,
    settings: Settings,
    service: Service,
    tree: Arc<Tree>,
    stop: CancellationToken,
    record: watch::Sender<Record>,
    /// Locked while a change is applied and shown, so that the observer sees changes in order.
    showing: Mutex<()>,
    tasks: Tasks<Self>,
    progress: Arc<Progress>,
}

/// State of the service, as [`Status`] reports it.
#[derive(Clone, Debug)]
struct Record {
    state: State,
    attempts: u32,
    since: Instant,
    last_error: Option<String>,
    /// The current attempt called [`Context::done`], so its `Ok(())` is not a failure.
    done: bool,
}

impl Node {
    pub(crate) fn root(name: String, settings: Settings, tree: Arc<Tree>, service: Service) -> Arc<Self> {
        Arc::new(Self::new(name.clone(), name, settings, tree, service))
    }

    fn new(path: String, name: String, settings: Settings, tree: Arc<Tree>, service: Service) -> Self {
        let record =
            Record { state: State::Starting, attempts: 0, since: Instant::now(), last_error: None, done: false };
        Self {
            path,
            name,
            settings,
            service,
            tree,
            stop: CancellationToken::new(),
            record: watch::Sender::new(record),
            showing: Mutex::default(),
            tasks: Tasks::new(),
            progress: Arc::default(),
        }
    }

    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    pub(crate) fn progress(&self) -> Arc<Progress> {
        Arc::clone(&self.progress)
    }

    pub(crate) fn state(&self) -> State {
        self.record.borrow().state
    }

    pub(crate) fn status(&self) -> Status {
        let record = self.record.borrow().clone();
        Status {
            path: self.path.clone(),
            name: self.name.clone(),
            state: record.state,
            attempts: record.attempts,
            since: record.since,
            last_error: record.last_error,
            stalled: self.progress.stalled(&self.settings),
            children: self.tasks.children().iter().map(|child| child.status()).collect(),
        }
    }

    /// Status of the root, which exists as long as any task of the tree runs.
    pub(crate) fn tree_status(&self) -> Status {
        let root = self.tree.root.get().and_then(Weak::upgrade);
        root.map_or_else(|| self.status(), |root| root.status())
    }

    /// Waits for a state that `wanted` accepts, and returns it.
    pub(crate) async fn wait(&self, wanted: impl Fn(State) -> bool) -> State {
        let mut records = self.record.subscribe();
        // `self` owns the sender, so the channel cannot close during the wait.
        records.wait_for(|record| wanted(record.state)).await.map_or(State::Stopped, |record| record.state)
    }

    pub(crate) async fn stop(&self) {
        self.stop.cancel();
        self.wait(|state| state == State::Stopped).await;
    }

    /// Ends the wait for stopping services in the whole tree, and aborts them.
    pub(crate) fn abort(&self) {
        self.tree.abort.cancel();
    }

    pub(crate) fn healthy(&self, attempt: u32) {
        if self.transition(Event::Healthy, |record| record.attempts == attempt) {
            info!(service = %self.path, attempt, "service healthy");
        }
    }

    pub(crate) fn will_be_done(&self, attempt: u32) {
        self.record.send_if_modified(|record| {
            record.done |= record.attempts == attempt;
            false
        });
    }

    /// Adds a child to `attempt`. If that attempt has ended or is ending, the child never runs.
    pub(crate) fn adopt(&self, attempt: u32, name: String, settings: Settings, service: Service) -> Arc<Self> {
        let path = format!("{}.{name}", self.path);
        let child = Arc::new(Self::new(path, name, settings, Arc::clone(&self.tree), service));
        let life = Arc::clone(&child).life();
        self.tasks.adopt(attempt, &child, life, &self.tree.runtime);
        child
    }

    /// Returns a future that runs the service, with restarts, until it is stopped. Dropping the future at any time,
    /// also before its first poll, aborts all tasks of the service.
    pub(crate) fn life(self: Arc<Self>) -> Life {
        let ended = Ended(Arc::clone(&self));
        Box::pin(async move {
            let _ended = ended;
            self.supervise().await;
            debug!(service = %self.path, "service stopped");
            Exit::Child
        })
    }

    async fn supervise(self: &Arc<Self>) {
        let mut failures = 0;
        while !self.stop.is_cancelled() {
            let attempt = self.begin();
            let Some((failure, healthy_for)) = self.run(attempt).await else { return };
            failures = self.settings.backoff.count(failures, healthy_for);
            let wait = self.settings.backoff.wait(failures, (self.tree.jitter)());
            let error = causes::line(&failure);
            warn!(service = %self.path, attempt, %error, wait_ms = wait.as_millis(), "service failed");
            tokio::select! {
                biased;
                () = self.stop.cancelled() => {}
                () = sleep(wait) => {}
            }
        }
    }

    fn begin(&self) -> u32 {
        let mut attempt = 0;
        self.transition(Event::Begun, |record| {
            record.attempts = record.attempts.saturating_add(1);
            record.done = false;
            attempt = record.attempts;
            true
        });
        self.progress.reset(attempt);
        attempt
    }

    /// Runs one attempt. After the return, neither the body nor a child runs. Returns the failure and how long the
    /// attempt was healthy; `None` if the service was stopped.
    async fn run(self: &Arc<Self>, attempt: u32) -> Option<(Failure, Option<Duration>)> {
        let token = CancellationToken::new();
        let _cancelled = token.clone().drop_guard(); // on every return, also for clones of the context
        let cx = Context { node: Arc::clone(self), attempt, token: token.clone() };
        let span = info_span!("service", service = %self.path, attempt);
        let body = self.service.attempt(cx).instrument(span);
        let body = self.tasks.open(attempt, Box::pin(body), &self.tree.runtime);

        let mut end = self.end().await;
        if matches!(end, End::Done) {
            self.transition(Event::Done, |_| true);
            end = self.end().await; // the body has ended: only a stop is left
        }
        let failed = match end {
            End::Stopped | End::Done => {
                self.transition(Event::Stop, |_| true);
                None
            }
            End::Failed(failure) => {
                let healthy_for = self.fail(&failure);
                Some((failure, healthy_for))
            }
        };
        self.stop_children().await;
        token.cancel();
        self.join(&body).await;
        failed
    }

    /// Waits for the event that ends the attempt.
    async fn end(&self) -> End {
        loop {
            let exit = tokio::select! {
                biased;
                () = self.stop.cancelled() => return End::Stopped,
                exit = self.tasks.next() => exit,
            };
            match exit {
                Ok(Exit::Body(Ok(()))) if self.record.borrow().done => return End::Done,
                Ok(Exit::Body(Ok(()))) => return End::Failed(Failure::Ended),
                Ok(Exit::Body(Err(error))) => return End::Failed(Failure::Returned(error)),
                // A child that was stopped for good while this service continues to run.
                Ok(Exit::Child) => self.tasks.forget(|child| child.state() == State::Stopped),
                Err(error) => return End::Failed(Failure::from_join(error)),
            }
        }
    }

    /// Stops the children in reverse order. The status continues to list them.
    async fn stop_children(&self) {
        self.tasks.close();
        for child in self.tasks.children().iter().rev() {
            child.stop().await;
        }
    }

    /// Waits until the cancelled body and the tasks of its stopped children have ended. Aborts the body after the stop
    /// deadline.
    async fn join(&self, body: &AbortHandle) {
        let in_time = tokio::select! {
            biased;
            () = self.rest() => true,
            () = sleep(self.settings.stop_deadline) => false,
            () = self.tree.abort.cancelled() => false,
        };
        if in_time {
            return;
        }
        warn!(service = %self.path, "service did not stop in time, aborted");
        body.abort();
        if timeout(ABORT_DEADLINE, self.rest()).await.is_err() {
            warn!(service = %self.path, "service blocks its thread, no longer waiting for it");
        }
    }

    async fn rest(&self) {
        while let Some(exit) = self.tasks.rest().await {
            match exit {
                Ok(Exit::Body(Ok(())) | Exit::Child) => {}
                Ok(Exit::Body(Err(error))) => {
                    let error = causes::line(&Failure::Returned(error));
                    debug!(service = %self.path, %error, "service stopped with an error");
                }
                Err(error) if error.is_cancelled() => {}
                Err(error) => warn!(service = %self.path, %error, "service panicked while it stopped"),
            }
        }
    }

    /// Records the failure, and returns how long the attempt was healthy.
    fn fail(&self, failure: &Failure) -> Option<Duration> {
        let mut healthy_for = None;
        self.transition(Event::Failed, |record| {
            healthy_for = match record.state {
                State::Healthy | State::Done => Some(record.since.elapsed()),
                State::Starting | State::Failed | State::Stopping | State::Stopped => None,
            };
            record.last_error = Some(causes::line(failure));
            true
        });
        healthy_for
    }

    /// Applies `event` if `valid` returns `true`, and returns whether the state changed. `valid` may also update the
    /// record.
    fn transition(&self, event: Event, valid: impl FnOnce(&mut Record) -> bool) -> bool {
        let showing = self.showing.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = self.record.send_if_modified(|record| {
            let next = record.state.after(event);
            // The first attempt begins in the initial state of the service.
            let change = valid(record) && (next != record.state || event == Event::Begun);
            if change {
                record.state = next;
                record.since = Instant::now();
            }
            change
        });
        if changed {
            self.show();
        }
        drop(showing);
        changed
    }

    fn show(&self) {
        let record = self.record.borrow().clone();
        let change = Change {
            path: &self.path,
            name: &self.name,
            state: record.state,
            attempts: record.attempts,
            error: record.last_error.as_deref(),
        };
        // A panic of the observer must not end the service.
        if catch_unwind(AssertUnwindSafe(|| (self.tree.observer)(&change))).is_err() {
            error!(service = %self.path, state = %record.state, "the observer panicked");
        }
    }
}

/// Guard of a service's task. When the task ends or is aborted, the guard aborts the tasks of the service and wakes the
/// waiters.
struct Ended(Arc<Node>);

impl Drop for Ended {
    fn drop(&mut self) {
        // The node has no `Drop` of its own, because a handle may keep it alive.
        self.0.tasks.abort();
        self.0.transition(Event::Ended, |_| true);
    }
}
