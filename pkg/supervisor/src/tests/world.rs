//! Observed behaviour of the services of a random tree, and all violations.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::time::Instant;

use crate::{Backoff, Change, Handle, State};

/// Observations that all services of a tree share.
#[derive(Clone)]
pub(super) struct World(Arc<Mutex<Seen>>);

struct Seen {
    backoff: Backoff,
    bodies: Vec<Running>,
    next: u64,
    lives: HashMap<String, Life>,
    handles: HashMap<String, Handle>,
    /// Paths of services that the test stopped while their siblings continued to run.
    stopped: HashSet<String>,
    dropped: bool,
    wrong: Vec<String>,
}

/// A body that runs.
struct Running {
    id: u64,
    path: String,
    parent: Option<Body>,
    order: usize,
}

/// The changes of one service, from its start by one body of its parent.
struct Life {
    state: State,
    attempts: u32,
    since: Instant,
    starts: Vec<Instant>,
    failures: u32,
}

/// A running body, as the parent of its children.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Body {
    id: u64,
}

/// Guard that a body holds while it runs.
pub(super) struct Guard {
    world: World,
    body: Body,
    path: String,
}

impl Guard {
    pub(super) fn body(&self) -> &Body {
        &self.body
    }

    /// Checks the order of ends when the body receives a stop.
    pub(super) fn asked(&self) {
        self.world.lock().is_last(&self.path, self.body.id);
    }

    /// Removes a body that ends without a stop. Its children run until the supervisor stops them.
    pub(super) fn ends_itself(&self) {
        self.world.lock().bodies.retain(|body| body.id != self.body.id);
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let mut seen = self.world.lock();
        if seen.bodies.iter().any(|body| body.id == self.body.id) && !seen.dropped {
            seen.is_last(&self.path, self.body.id);
        }
        seen.bodies.retain(|body| body.id != self.body.id);
    }
}

impl World {
    pub(super) fn new(backoff: Backoff) -> Self {
        Self(Arc::new(Mutex::new(Seen {
            backoff,
            bodies: Vec::new(),
            next: 0,
            lives: HashMap::new(),
            handles: HashMap::new(),
            stopped: HashSet::new(),
            dropped: false,
            wrong: Vec::new(),
        })))
    }

    pub(super) fn enters(&self, path: &str, parent: Option<Body>, order: usize) -> Guard {
        let mut seen = self.lock();
        if !seen.dropped {
            seen.nothing_runs(path, "starts");
        }
        let id = seen.next;
        seen.next += 1;
        seen.bodies.push(Running { id, path: path.to_owned(), parent, order });
        Guard { world: self.clone(), body: Body { id }, path: path.to_owned() }
    }

    /// The observer of the tree.
    pub(super) fn changes(&self, change: &Change<'_>) {
        self.lock().changes(change);
    }

    pub(super) fn keeps(&self, handle: Handle) {
        self.lock().handles.insert(handle.status().path, handle);
    }

    /// Handle of a service that the test stops while its siblings continue to run.
    pub(super) fn stops(&self, path: &str) -> Option<Handle> {
        let mut seen = self.lock();
        let handle = seen.handles.get(path).cloned();
        if handle.is_some() {
            seen.stopped.insert(path.to_owned());
        }
        handle
    }

    /// Records that the tree is dropped. From then on, services end in any order.
    pub(super) fn is_dropped(&self) {
        self.lock().dropped = true;
    }

    pub(super) fn alive(&self) -> usize {
        self.lock().bodies.len()
    }

    pub(super) fn check(&self, holds: bool, otherwise: impl FnOnce() -> String) {
        if !holds {
            self.lock().wrong.push(otherwise());
        }
    }

    /// The first violations, including starts that came too early.
    pub(super) fn wrong(&self) -> Vec<String> {
        let mut seen = self.lock();
        let lives = std::mem::take(&mut seen.lives);
        lives.iter().for_each(|(path, life)| seen.counts_starts(path, &life.starts));
        let mut wrong = std::mem::take(&mut seen.wrong);
        wrong.dedup();
        wrong.truncate(5);
        wrong
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap()
    }
}

impl Seen {
    fn changes(&mut self, change: &Change<'_>) {
        let Change { path, state, attempts, .. } = *change;
        let now = Instant::now();
        let before = self.lives.get(path).map(|life| (life.state, life.attempts));
        // In a new attempt of the parent, the first attempt of a service is number 1.
        let legal = match (before, state) {
            (None | Some((State::Stopped, _)), State::Starting) => attempts == 1,
            (None | Some((State::Stopped, _)), State::Stopped) => attempts == 0,
            (Some((State::Failed, last)), State::Starting) => attempts == last + 1,
            (Some((State::Starting, last)), State::Healthy)
            | (Some((State::Healthy, last)), State::Done)
            | (Some((State::Starting | State::Healthy | State::Done, last)), State::Failed | State::Stopping)
            | (Some((State::Failed | State::Stopping, last)), State::Stopped) => attempts == last,
            (Some((State::Starting | State::Healthy | State::Done, last)), State::Stopped) => {
                self.dropped && attempts == last
            }
            _ => false,
        };
        if !legal {
            self.wrong.push(format!("{path} became {state} in attempt {attempts}, before: {before:?}"));
        }
        if change.error.is_none() && state == State::Failed {
            self.wrong.push(format!("{path} failed without why"));
        }
        if matches!(state, State::Starting | State::Stopped) && !self.dropped {
            self.nothing_runs(path, state.as_str());
        }

        if attempts <= 1 && state == State::Starting {
            let life = Life { state, attempts, since: now, starts: vec![now], failures: 0 };
            if let Some(earlier) = self.lives.insert(path.to_owned(), life) {
                self.counts_starts(path, &earlier.starts);
            }
            self.stopped.remove(path);
            return;
        }
        let Some(life) = self.lives.get_mut(path) else { return };
        match state {
            State::Failed => {
                let settled =
                    matches!(life.state, State::Healthy | State::Done) && now - life.since >= self.backoff.settled;
                life.failures = if settled { 1 } else { life.failures + 1 };
            }
            State::Starting => {
                let (waited, least) = (now - life.since, self.backoff.wait(life.failures, 0));
                if waited < least {
                    let failures = life.failures;
                    self.wrong.push(format!("{path} waited {waited:?} after {failures} failures, not {least:?}"));
                }
                life.starts.push(now);
            }
            State::Healthy | State::Done | State::Stopping | State::Stopped => {}
        }
        (life.state, life.attempts) = (state, attempts);
        life.since = now;
    }

    /// Checks that neither the service nor a descendant has a running body.
    fn nothing_runs(&mut self, path: &str, event: &str) {
        let below = format!("{path}.");
        let wrong = self
            .bodies
            .iter()
            .filter(|body| body.path == path || body.path.starts_with(&below))
            .map(|body| format!("{path}: {event}, but {} still runs", body.path));
        self.wrong.extend(wrong.collect::<Vec<_>>());
    }

    /// Checks that an ending service has no running children, and that all siblings that were started after it have
    /// ended.
    fn is_last(&mut self, path: &str, id: u64) {
        let Some(this) = self.bodies.iter().find(|body| body.id == id) else { return };
        let (below, alone) = (format!("{path}."), self.stopped.contains(path));
        let wrong = self
            .bodies
            .iter()
            .filter(|other| {
                let child = other.path.starts_with(&below);
                let after = this.parent.is_some() && other.parent == this.parent && other.order > this.order;
                child || (after && !alone)
            })
            .map(|other| format!("{path} has to end before {}", other.path));
        self.wrong.extend(wrong.collect::<Vec<_>>());
    }

    /// Checks that no window of time has more starts than the back-off allows.
    fn counts_starts(&mut self, path: &str, starts: &[Instant]) {
        let least = least_times(&self.backoff, starts.len());
        for (first, start) in starts.iter().enumerate() {
            for (more, later) in starts[first..].iter().enumerate() {
                if *later - *start < least[more] {
                    let (count, window) = (more + 1, *later - *start);
                    self.wrong
                        .push(format!("{path} started {count} times in {window:?}, allowed in {:?}", least[more]));
                }
            }
        }
    }
}

/// Shortest time from a start to the `n`th start after it, for each `n` below `count`. Waits double until an attempt is
/// healthy for [`Backoff::settled`], which takes that time itself.
pub(super) fn least_times(backoff: &Backoff, count: usize) -> Vec<Duration> {
    const LONGEST_WAIT: usize = 40; // failures after which no wait grows any more
    let waits: Vec<Duration> = (1..).map(|failures| backoff.wait(failures, 0)).take(LONGEST_WAIT).collect();
    // Shortest time so far by the number of failures in a row at its end; index 0 is one failure.
    let mut best: Vec<Option<Duration>> = vec![None; LONGEST_WAIT];
    let mut least = vec![Duration::ZERO];
    for start in 1..count {
        let mut next = vec![None; LONGEST_WAIT];
        next[0] = Some(if start == 1 { waits[0] } else { least[start - 1] + backoff.settled + waits[0] });
        for (row, time) in best.iter().enumerate() {
            let row = (row + 1).min(LONGEST_WAIT - 1);
            let time = time.map(|time| time + waits[row]);
            next[row] = [next[row], time].into_iter().flatten().min();
        }
        least.push(next.iter().flatten().min().copied().unwrap_or_default());
        best = next;
    }
    least
}

#[test]
fn the_bound_is_the_sum_of_doubled_waits_or_of_settled_health() {
    let seconds = Duration::from_secs;
    let backoff = Backoff { first: seconds(1), most: seconds(300), settled: seconds(60) };
    let least: Vec<u64> = least_times(&backoff, 10).iter().map(Duration::as_secs).collect();
    // After 1 + 2 + 4 + 8 s and a start that was healthy for 60 s, the waits are 1, 2, 4 s again.
    assert_eq!(least, [0, 1, 3, 7, 15, 31, 63, 82, 90, 106]);
}
