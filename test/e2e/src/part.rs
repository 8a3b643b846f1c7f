//! A part of a suite: cases that share a namespace and pods.

use crate::turn::Turn;
use crate::{Case, Failure};
use envtest::chain;
use futures::FutureExt as _;
use ktest_runner::report::{Status, Test};
use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Error of a part whose required case has failed. The report already contains the failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopped;

/// A part of a suite. It starts its pods once, and reports each behaviour that they show as a separate case.
#[derive(Clone, Debug)]
pub struct Part {
    pub case: Case,
    /// File with the output of the node's console.
    pub console: PathBuf,
    outcomes: Outcomes,
    turn: Turn,
}

impl Part {
    pub(crate) fn new(case: Case, console: PathBuf, outcomes: Outcomes, turn: Turn) -> Self {
        Self { case, console, outcomes, turn }
    }

    /// Waits until every other part has ended, waits here, or has called [`Part::end_of_turn`]. From then on, no other
    /// part starts its turn. A part starts its pods before this call, so that parts start their pods in parallel.
    pub async fn alone(&self) {
        self.turn.alone().await;
    }

    /// Lets other parts run alone beside the rest of this part, which disturbs no other part and tolerates any of them,
    /// such as a wait for deleted volumes.
    pub fn end_of_turn(&self) {
        self.turn.end();
    }

    /// Reports a case that no other case needs: the part continues if the case fails. A failed assertion (a panic)
    /// fails only this case.
    pub async fn shows(&self, behaviour: &str, shown: impl Future<Output = Result<(), Failure>>) {
        // The report contains the failure.
        _ = self.must_show(behaviour, shown).await;
    }

    /// Reports a case that the rest of the part needs, such as the start of a pod. Returns the result of the case.
    pub async fn must_show<T>(
        &self,
        behaviour: &str,
        shown: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Stopped> {
        let start = Instant::now();
        // The future is not polled again after a panic, so no code observes a broken state.
        let (found, failure) = match AssertUnwindSafe(shown).catch_unwind().await {
            Ok(Ok(found)) => (Ok(found), None),
            Ok(Err(failure)) => (Err(Stopped), Some(chain(&failure))),
            Err(panic) => (Err(Stopped), Some(message(panic.as_ref()))),
        };
        self.outcomes.add(behaviour, start, failure);
        found
    }
}

/// Outcomes of a suite, in the order in which its cases ended. Clones share the list.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcomes(Arc<Mutex<Vec<Test>>>);

impl Outcomes {
    pub(crate) fn add(&self, name: &str, start: Instant, failure: Option<String>) {
        let time = start.elapsed();
        let verdict = if failure.is_some() { "FAILED" } else { "ok" };
        println!("test {name} ... {verdict} ({})", seconds(time));
        if let Some(text) = &failure {
            println!("{text}\n");
        }
        let status = failure.map_or(Status::Passed(String::new()), Status::Failed);
        let test = Test { name: name.to_owned(), status, time };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(test);
    }

    pub(crate) fn all(&self) -> Vec<Test> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn has_failure(&self) -> bool {
        self.all().iter().any(Test::has_failed)
    }
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

pub(crate) fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
    text.unwrap_or_else(|| "the case panicked".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_message_of_an_assertion_is_reported() {
        let panic = AssertUnwindSafe(async {
            tokio::task::yield_now().await;
            assert_eq!(1, 2, "one is {}", 2);
        });
        let message = message(panic.catch_unwind().await.unwrap_err().as_ref());
        assert!(message.contains("one is 2"), "{message}");
    }
}
