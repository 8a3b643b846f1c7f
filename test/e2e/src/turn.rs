//! Turns of the parts of a suite: in parallel, or alone.

use std::mem;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Permits of one part. A part that runs in parallel holds one permit; a part that runs alone holds the permits of all
/// parts.
#[derive(Clone, Debug)]
pub(crate) struct Turn {
    permits: Arc<Semaphore>,
    parts: u32,
    /// The permit is returned when the last clone is dropped.
    held: Arc<Mutex<Option<OwnedSemaphorePermit>>>,
}

impl Turn {
    /// Turns of parts that start in parallel.
    pub(crate) fn beside(parts: usize) -> Vec<Self> {
        let permits = Arc::new(Semaphore::new(parts));
        let turn = |_| Self {
            permits: Arc::clone(&permits),
            parts: u32::try_from(parts).unwrap_or(u32::MAX),
            held: Arc::new(Mutex::new(Arc::clone(&permits).try_acquire_owned().ok())),
        };
        (0..parts).map(turn).collect()
    }

    /// Waits until each other part has ended, has returned its permits, or also waits. Waiting parts run one after the
    /// other, in the order of their calls.
    pub(crate) async fn alone(&self) {
        // A part that kept its permit during the wait would block the other parts.
        self.end();
        // The semaphore is never closed.
        let all = Arc::clone(&self.permits).acquire_many_owned(self.parts).await.ok();
        drop(self.hold(all));
    }

    /// Returns all permits. Other parts may run alone beside the rest of this part.
    pub(crate) fn end(&self) {
        drop(self.hold(None));
    }

    /// Replaces the held permit and returns the previous one.
    fn hold(&self, permit: Option<OwnedSemaphorePermit>) -> Option<OwnedSemaphorePermit> {
        mem::replace(&mut *self.held.lock().unwrap_or_else(PoisonError::into_inner), permit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;

    #[tokio::test]
    async fn parts_that_wait_run_one_after_the_other_when_the_rest_has_ended() {
        let mut turns = Turn::beside(3).into_iter();
        let [first, second, other] = [(); 3].map(|()| turns.next().unwrap());
        let mut first_waits = Box::pin(first.alone());
        let mut second_waits = Box::pin(second.alone());
        assert_eq!((&mut first_waits).now_or_never(), None);
        assert_eq!((&mut second_waits).now_or_never(), None);
        drop(other);
        assert_eq!((&mut second_waits).now_or_never(), None);
        first_waits.await;
        assert_eq!((&mut second_waits).now_or_never(), None);
        drop(first);
        second_waits.await;
    }

    #[tokio::test]
    async fn a_part_whose_turn_is_over_keeps_no_other_part_waiting() {
        let turns = Turn::beside(2);
        let mut second_waits = Box::pin(turns[1].alone());
        assert_eq!((&mut second_waits).now_or_never(), None);
        let mut first_waits = Box::pin(turns[0].alone());
        assert_eq!((&mut first_waits).now_or_never(), None);
        second_waits.await;
        turns[1].end();
        first_waits.await;
    }

    #[tokio::test]
    async fn a_single_part_does_not_wait() {
        let turns = Turn::beside(1);
        turns[0].alone().await;
        turns[0].alone().await;
    }
}
