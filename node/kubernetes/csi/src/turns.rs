//! One operation at a time for each volume.

use std::collections::HashMap;
use std::sync::{Arc, Mutex as Lock, PoisonError, Weak};

use tokio::sync::{Mutex, OwnedMutexGuard};
use volume::VolumeId;

/// Who works on which volume. Holds nothing of volumes that nobody works on.
#[derive(Clone, Debug, Default)]
pub(crate) struct Turns(Arc<Lock<HashMap<VolumeId, Weak<Mutex<()>>>>>);

/// The right to work on a volume, until it is dropped. It is owned, so that the thread that works can hold it: kubelet
/// may give up on a call, the system calls do not.
#[derive(Debug)]
#[must_use = "a turn ends when it is dropped"]
pub(crate) struct Turn {
    turns: Turns,
    volume: VolumeId,
    /// Before `lock` in this order: the guard goes first.
    guard: Option<OwnedMutexGuard<()>>,
    lock: Option<Arc<Mutex<()>>>,
}

impl Turns {
    /// Waits until nobody else works on the volume. In order of arrival.
    pub(crate) async fn take(&self, volume: &VolumeId) -> Turn {
        let lock = {
            let mut waiting = self.table();
            let known = waiting.get(volume).and_then(Weak::upgrade);
            known.unwrap_or_else(|| {
                let new = Arc::new(Mutex::new(()));
                waiting.insert(volume.clone(), Arc::downgrade(&new));
                new
            })
        };
        // Made before the wait: a call that is given up while it waits cleans up too.
        let mut turn = Turn { turns: self.clone(), volume: volume.clone(), guard: None, lock: Some(Arc::clone(&lock)) };
        turn.guard = Some(lock.lock_owned().await);
        turn
    }

    /// Waits for every operation that runs or waits now.
    pub(crate) async fn finish(&self) {
        let volumes: Vec<_> = self.table().keys().cloned().collect();
        for volume in volumes {
            drop(self.take(&volume).await);
        }
    }

    fn table(&self) -> std::sync::MutexGuard<'_, HashMap<VolumeId, Weak<Mutex<()>>>> {
        // Nothing panics while it is held, and every state of the table is a good one.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut waiting = self.turns.table();
        self.guard = None;
        self.lock = None;
        if waiting.get(&self.volume).is_some_and(|lock| lock.strong_count() == 0) {
            waiting.remove(&self.volume);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn id(text: &str) -> VolumeId {
        text.parse().expect("an identifier")
    }

    /// Whether a future is done after one poll, without any runtime.
    fn poll<F: Future>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[tokio::test]
    async fn the_same_volume_waits_and_another_does_not() {
        let turns = Turns::default();
        let first = turns.take(&id("pvc-1")).await;
        let volume = id("pvc-1");
        let mut second = pin!(turns.take(&volume));
        assert!(poll(second.as_mut()).is_pending());
        drop(turns.take(&id("pvc-2")).await);
        drop(first);
        assert!(poll(second.as_mut()).is_ready());
    }

    #[tokio::test]
    async fn nothing_is_left_when_nobody_works() {
        let turns = Turns::default();
        let volume = id("pvc-1");
        let first = turns.take(&volume).await;
        {
            let mut given_up = pin!(turns.take(&volume));
            assert!(poll(given_up.as_mut()).is_pending());
        }
        assert_eq!(turns.table().len(), 1);
        drop(first);
        assert_eq!(turns.table().len(), 0);
    }

    #[tokio::test]
    async fn one_that_gives_up_after_the_holder_left_cleans_up() {
        let turns = Turns::default();
        let volume = id("pvc-1");
        let first = turns.take(&volume).await;
        {
            let mut given_up = pin!(turns.take(&volume));
            assert!(poll(given_up.as_mut()).is_pending());
            drop(first);
        }
        assert_eq!(turns.table().len(), 0);
    }

    #[tokio::test]
    async fn finish_waits_for_those_who_work() {
        let turns = Turns::default();
        let first = turns.take(&id("pvc-1")).await;
        let mut finish = pin!(turns.finish());
        assert!(poll(finish.as_mut()).is_pending());
        drop(first);
        assert!(poll(finish.as_mut()).is_ready());
    }
}
