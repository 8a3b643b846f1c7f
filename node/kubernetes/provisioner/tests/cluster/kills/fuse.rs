//! Kills a provisioner at a boundary.

use std::collections::BTreeMap;
use std::future;
use std::panic;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kill {
    Never,
    /// Kill at the n-th boundary of this name, from 1. The order of all boundaries differs between runs, because tasks
    /// are concurrent.
    At(String, usize),
}

impl Kill {
    pub fn first(boundary: &str) -> Self {
        Self::At(boundary.to_owned(), 1)
    }
}

pub type Passed = BTreeMap<String, usize>;

/// Counts the boundaries of one process, which are before and after each durable change. When the fuse has burnt, no
/// task or thread passes any more, so that the process has no further effects.
pub struct Fuse {
    state: Mutex<State>,
    burnt: watch::Sender<Option<String>>,
    buried: Condvar,
}

struct State {
    kill: Kill,
    passed: Passed,
    burnt: bool,
    buried: bool,
}

impl Fuse {
    pub fn new(kill: Kill) -> Self {
        let state = Mutex::new(State { kill, passed: Passed::new(), burnt: false, buried: false });
        Self { state, burnt: watch::Sender::new(None), buried: Condvar::new() }
    }

    pub fn arm(&self, kill: Kill) {
        let mut state = self.state();
        (state.kill, state.passed) = (kill, Passed::new());
    }

    pub fn passed(&self) -> Passed {
        self.state().passed.clone()
    }

    /// Never returns if the process is killed.
    pub async fn pass(&self, boundary: &str) {
        if !self.lives(boundary) {
            future::pending::<()>().await;
        }
    }

    /// If the process is killed, the thread ends when the process is [buried](Self::bury).
    pub fn pass_blocking(&self, boundary: &str) {
        if self.lives(boundary) {
            return;
        }
        let mut state = self.state();
        while !state.buried {
            state = self.buried.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        drop(state);
        // The panic has no message, because no caller joins this thread.
        panic::resume_unwind(Box::new("killed"));
    }

    pub async fn burns(&self) -> String {
        let mut burnt = self.burnt.subscribe();
        match burnt.wait_for(Option::is_some).await.map(|boundary| boundary.clone()) {
            Ok(Some(boundary)) => boundary,
            // The sender is in `self`, so it is not dropped.
            Ok(None) | Err(_) => future::pending().await,
        }
    }

    pub fn bury(&self) {
        let mut state = self.state();
        (state.burnt, state.buried) = (true, true);
        self.buried.notify_all();
    }

    fn lives(&self, boundary: &str) -> bool {
        let mut state = self.state();
        if state.burnt {
            return false;
        }
        let State { kill, passed, burnt, .. } = &mut *state;
        let count = passed.entry(boundary.to_owned()).or_default();
        *count += 1;
        *burnt = match kill {
            Kill::Never => false,
            Kill::At(name, nth) => name == boundary && nth == count,
        };
        if state.burnt {
            self.burnt.send_replace(Some(boundary.to_owned()));
        }
        !state.burnt
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Threads do not unwind while they hold the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
