//! One service of the tree, and the task that runs it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinError;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::{Instrument, debug, info, info_span, warn};

use crate::backoff::jitter;
use crate::failure::Failure;
use crate::service::Service;
use crate::state::Event;
use crate::tree::{Change, Observer};
use crate::{BoxError, Context, Settings, State, Status};

/// An aborted task ends at its next `.await`. One that has none is left behind after this.
const ABORT_DEADLINE: Duration = Duration::from_secs(1);

/// Who deals with a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnFailure {
    /// The service itself: it waits and runs again.
    Restart,
    /// Its parent, which fails too.
    FailParent,
}

/// How an attempt ended.
enum End {
    Stopped,
    Failed(Failure),
}

/// A failure that goes up to the parent. One is enough: the channel holds no more.
type FaultSender = mpsc::Sender<Failure>;

/// A service. The task that supervises it belongs to the parent's `children`, so that every task has
/// exactly one owner and the tree no cycle: a node never points to its parent.
pub(crate) struct Node {
    path: String,
    name: String,
    settings: Settings,
    observer: Observer,
    service: Service,
    stop: CancellationToken,
    record: watch::Sender<Record>,
    /// Held while a change is made and shown: the observer sees changes in their order.
    showing: Mutex<()>,
    children: Mutex<Children>,
}

#[derive(Clone, Debug)]
struct Record {
    state: State,
    attempts: u32,
    since: Instant,
    last_error: Option<String>,
    /// The present attempt's `Ok(())` is meant.
    done: bool,
}

/// The children of one attempt.
#[derive(Default)]
struct Children {
    list: Vec<Child>,
    /// The attempt that may add children, and where their faults go.
    open: Option<(u32, FaultSender)>,
}

struct Child {
    node: Arc<Node>,
    _run: AbortOnDropHandle<()>,
}

impl Node {
    pub(crate) fn root(name: String, settings: Settings, observer: Observer, service: Service) -> Arc<Self> {
        Arc::new(Self::new(name.clone(), name, settings, observer, service))
    }

    fn new(path: String, name: String, settings: Settings, observer: Observer, service: Service) -> Self {
        let record =
            Record { state: State::Starting, attempts: 0, since: Instant::now(), last_error: None, done: false };
        Self {
            path,
            name,
            settings,
            observer,
            service,
            stop: CancellationToken::new(),
            record: watch::Sender::new(record),
            showing: Mutex::default(),
            children: Mutex::default(),
        }
    }

    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    pub(crate) fn state(&self) -> State {
        self.record.borrow().state
    }

    pub(crate) fn status(&self) -> Status {
        let record = self.record.borrow().clone();
        let children: Vec<Arc<Self>> = self.children().list.iter().map(|child| Arc::clone(&child.node)).collect();
        Status {
            name: self.name.clone(),
            state: record.state,
            attempts: record.attempts,
            since: record.since,
            last_error: record.last_error,
            children: children.iter().map(|child| child.status()).collect(),
        }
    }

    /// Waits for a state, and returns it.
    pub(crate) async fn wait(&self, wanted: impl Fn(State) -> bool) -> State {
        let mut records = self.record.subscribe();
        // The sender is `self`: the channel cannot close before this ends.
        records.wait_for(|record| wanted(record.state)).await.map_or(State::Stopped, |record| record.state)
    }

    pub(crate) async fn stop(&self) {
        self.stop.cancel();
        self.wait(|state| state == State::Stopped).await;
    }

    pub(crate) fn healthy(&self, attempt: u32) {
        if self.happens(Event::Healthy, |record| record.attempts == attempt) {
            info!(service = %self.path, attempt, "service healthy");
        }
    }

    pub(crate) fn will_be_done(&self, attempt: u32) {
        self.record.send_if_modified(|record| {
            record.done |= record.attempts == attempt;
            false
        });
    }

    /// Adds a child to `attempt`. If that attempt is over, or about to be, the child never runs.
    pub(crate) fn adopt(
        &self,
        attempt: u32,
        name: String,
        settings: Settings,
        on_failure: OnFailure,
        service: Service,
    ) -> Arc<Self> {
        let path = format!("{}.{name}", self.path);
        let node = Arc::new(Self::new(path, name, settings, Arc::clone(&self.observer), service));
        let mut children = self.children();
        match &children.open {
            Some((open, fault)) if *open == attempt => {
                let run = Arc::clone(&node).supervise(on_failure, Some(fault.clone()));
                let run = AbortOnDropHandle::new(tokio::spawn(run));
                children.list.push(Child { node: Arc::clone(&node), _run: run });
            }
            Some(_) | None => {
                drop(children);
                node.happens(Event::Ended, |_| true);
            }
        }
        node
    }

    /// Runs the service, again and again, until it is stopped or its failure is the parent's.
    pub(crate) async fn supervise(self: Arc<Self>, on_failure: OnFailure, parent: Option<FaultSender>) {
        let _ended = Ended(&self);
        let mut failures = 0;
        while !self.stop.is_cancelled() {
            let (attempt, faults) = self.begin();
            let failure = match self.run(attempt, faults).await {
                End::Stopped => break,
                End::Failed(failure) => failure,
            };
            let healthy_for = self.fail(&failure);
            self.stop_children().await;
            if let (OnFailure::FailParent, Some(parent)) = (on_failure, &parent) {
                // Full or closed: the parent fails or ends already.
                let _ = parent.try_send(Failure::Member { member: self.path.clone(), source: Box::new(failure) });
                return;
            }
            failures = self.settings.backoff.count(failures, healthy_for);
            let wait = self.settings.backoff.wait(failures, jitter());
            warn!(service = %self.path, attempt, error = %failure.chain(), wait_ms = wait.as_millis(), "service failed");
            tokio::select! {
                biased;
                () = self.stop.cancelled() => break,
                () = sleep(wait) => {}
            }
        }
        debug!(service = %self.path, "service stopped");
    }

    fn begin(&self) -> (u32, mpsc::Receiver<Failure>) {
        self.record.send_if_modified(|record| {
            record.attempts = record.attempts.saturating_add(1);
            record.done = false;
            false
        });
        let attempt = self.record.borrow().attempts;
        let (fault, faults) = mpsc::channel(1);
        *self.children() = Children { list: Vec::new(), open: Some((attempt, fault)) };
        self.happens(Event::Begun, |_| true);
        if attempt == 1 {
            self.show();
        }
        (attempt, faults)
    }

    /// One attempt. When it returns [`End::Stopped`], the children are stopped as well.
    async fn run(self: &Arc<Self>, attempt: u32, mut faults: mpsc::Receiver<Failure>) -> End {
        let token = CancellationToken::new();
        let cx = Context { node: Arc::clone(self), attempt, token: token.clone() };
        let span = info_span!("service", service = %self.path, attempt);
        let mut body = AbortOnDropHandle::new(tokio::spawn(self.service.attempt(cx).instrument(span)));

        let failure = tokio::select! {
            biased;
            () = self.stop.cancelled() => None,
            ended = &mut body => match self.verdict(ended) {
                Ok(()) => return self.after_done(&mut faults).await,
                Err(failure) => return End::Failed(failure),
            },
            // `self.children` has a sender while this attempt lasts.
            Some(failure) = faults.recv() => Some(failure),
        };
        if failure.is_none() {
            self.happens(Event::Stop, |_| true);
        }
        self.stop_children().await;
        token.cancel();
        self.join(body).await;
        failure.map_or(End::Stopped, End::Failed)
    }

    /// The service is done: its children go on until they are stopped, or one takes it with it.
    async fn after_done(&self, faults: &mut mpsc::Receiver<Failure>) -> End {
        self.happens(Event::Done, |_| true);
        tokio::select! {
            biased;
            () = self.stop.cancelled() => {}
            Some(failure) = faults.recv() => return End::Failed(failure),
        }
        self.happens(Event::Stop, |_| true);
        self.stop_children().await;
        End::Stopped
    }

    fn verdict(&self, ended: Result<Result<(), BoxError>, JoinError>) -> Result<(), Failure> {
        match ended {
            Ok(Ok(())) if self.record.borrow().done => Ok(()),
            Ok(Ok(())) => Err(Failure::Ended),
            Ok(Err(error)) => Err(Failure::Returned(error)),
            Err(error) => Err(match error.try_into_panic() {
                Ok(payload) => Failure::from_panic(&*payload),
                Err(cancelled) => Failure::Returned(cancelled.into()), // the runtime shuts down
            }),
        }
    }

    /// Waits for the end of a body that was cancelled.
    async fn join(&self, mut body: AbortOnDropHandle<Result<(), BoxError>>) {
        match timeout(self.settings.stop_deadline, &mut body).await {
            Ok(Ok(Ok(()))) => {}
            Ok(Ok(Err(error))) => {
                debug!(service = %self.path, error = %Failure::Returned(error).chain(), "service stopped with an error");
            }
            Ok(Err(error)) => warn!(service = %self.path, %error, "service panicked while it stopped"),
            Err(_) => {
                warn!(service = %self.path, "service did not stop in time, aborted");
                body.abort();
                if timeout(ABORT_DEADLINE, &mut body).await.is_err() {
                    warn!(service = %self.path, "service blocks its thread, left behind");
                }
            }
        }
    }

    /// Stops the children, the last first. They stay in the list, for people to see.
    async fn stop_children(&self) {
        let children: Vec<Arc<Self>> = {
            let mut children = self.children();
            children.open = None;
            children.list.iter().map(|child| Arc::clone(&child.node)).collect()
        };
        for child in children.iter().rev() {
            child.stop().await;
        }
    }

    /// Returns for how long the attempt was healthy.
    fn fail(&self, failure: &Failure) -> Option<Duration> {
        let healthy_for = {
            let record = self.record.borrow();
            match record.state {
                State::Healthy | State::Done => Some(record.since.elapsed()),
                State::Starting | State::Failed | State::Stopping | State::Stopped => None,
            }
        };
        let error = failure.chain();
        self.record.send_if_modified(|record| {
            record.last_error = Some(error);
            false
        });
        self.happens(Event::Failed, |_| true);
        healthy_for
    }

    /// Applies `event` if `valid`, and says whether the state is another one now.
    fn happens(&self, event: Event, valid: impl Fn(&Record) -> bool) -> bool {
        let showing = self.showing.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = self.record.send_if_modified(|record| {
            let next = record.state.after(event);
            let change = valid(record) && next != record.state;
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
        (self.observer)(&Change {
            path: &self.path,
            name: &self.name,
            state: record.state,
            attempts: record.attempts,
            error: record.last_error.as_deref(),
        });
    }

    fn children(&self) -> MutexGuard<'_, Children> {
        // Nothing panics while it holds this lock.
        self.children.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The end of a service's task, also of an aborted one: what waits for it wakes, what it owned goes.
struct Ended<'a>(&'a Node);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        // After an ordered stop every child has stopped, and stays for people to see. After an abort the
        // others are aborted here, even if somebody keeps a handle of this node.
        let mut children = self.0.children();
        children.open = None;
        children.list.retain(|child| child.node.state() == State::Stopped);
        drop(children);
        self.0.happens(Event::Ended, |_| true);
    }
}
