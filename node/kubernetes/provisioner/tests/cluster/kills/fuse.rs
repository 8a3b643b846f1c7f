//! Where a provisioner is killed.

use std::collections::BTreeMap;
use std::future;
use std::panic;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

/// The boundary at which the process is killed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kill {
    /// At none.
    Never,
    /// At the n-th of this name from now on, counted from 1. Not at the n-th of all: tasks write beside each other, so that
    /// their order differs from run to run.
    At(String, usize),
}

impl Kill {
    /// At the first of this name.
    pub fn first(boundary: &str) -> Self {
        Self::At(boundary.to_owned(), 1)
    }
}

/// How often each boundary was passed.
pub type Passed = BTreeMap<String, usize>;

/// Counts the boundaries of one process: each is before or after something that stays when the process is killed. Once
/// it has burnt, nobody passes any more: what the process does after that, nobody sees.
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

    /// Counts from here.
    pub fn arm(&self, kill: Kill) {
        let mut state = self.state();
        (state.kill, state.passed) = (kill, Passed::new());
    }

    /// The boundaries since it was armed.
    pub fn passed(&self) -> Passed {
        self.state().passed.clone()
    }

    /// Returns if the process lives on.
    pub async fn pass(&self, boundary: &str) {
        if !self.lives(boundary) {
            future::pending::<()>().await;
        }
    }

    /// Returns if the process lives on. Else the thread ends once the process is [buried](Self::bury).
    pub fn pass_blocking(&self, boundary: &str) {
        if self.lives(boundary) {
            return;
        }
        let mut state = self.state();
        while !state.buried {
            state = self.buried.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        drop(state);
        // Without a word: no one waits for this thread.
        panic::resume_unwind(Box::new("killed"));
    }

    /// Returns the boundary at which the process has to be killed, when it is there.
    pub async fn burns(&self) -> String {
        let mut burnt = self.burnt.subscribe();
        match burnt.wait_for(Option::is_some).await.map(|boundary| boundary.clone()) {
            Ok(Some(boundary)) => boundary,
            // The sender is `self`.
            Ok(None) | Err(_) => future::pending().await,
        }
    }

    /// The process is gone: its threads may end.
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
        // Whoever unwinds has let go of it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
