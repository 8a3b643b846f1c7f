//! One operation at a time per volume.

use std::collections::VecDeque;
use std::collections::hash_map::{Entry, HashMap};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::VolumeId;

/// A lock per volume, in order of arrival. Clones share the locks. A volume without operations takes no memory, and
/// waiters that were cancelled are removed when the next one arrives. The field `locks` of [`Store`](crate::Store)
/// defines the order in which a call locks several volumes.
#[derive(Clone, Debug, Default)]
pub struct VolumeLocks(Arc<Mutex<HashMap<VolumeId, VecDeque<Waiter>>>>);

/// Unlocks the volume on drop. The guard is owned, so a thread can hold it longer than the call that waited for it.
#[derive(Debug)]
#[must_use = "the volume is unlocked when this is dropped"]
pub struct VolumeGuard {
    locks: VolumeLocks,
    volume: VolumeId,
}

#[derive(Debug)]
enum Waiter {
    Task(oneshot::Sender<VolumeGuard>),
    /// With a token that exists while the thread waits.
    Thread(SyncSender<VolumeGuard>, Weak<()>),
}

impl Waiter {
    fn is_cancelled(&self) -> bool {
        match self {
            Self::Task(task) => task.is_closed(),
            Self::Thread(_, token) => token.strong_count() == 0,
        }
    }

    /// Passes the guard to the waiter. A waiter that has given up returns the guard, and its drop passes it to the next
    /// waiter.
    fn wake(self, guard: VolumeGuard) {
        match self {
            Self::Task(task) => drop(task.send(guard)),
            Self::Thread(thread, _) => drop(thread.send(guard)),
        }
    }
}

impl VolumeLocks {
    /// Waits until all earlier operations on the volume have ended. Cancel-safe.
    pub async fn lock(&self, volume: &VolumeId) -> VolumeGuard {
        let (sender, guard) = oneshot::channel();
        self.enqueue(volume, Waiter::Task(sender));
        guard.await.expect("only `wake` consumes a waiter")
    }

    /// As [`VolumeLocks::lock`], but blocks the thread.
    pub fn blocking_lock(&self, volume: &VolumeId) -> VolumeGuard {
        let (guard, _token) = self.enqueue_thread(volume);
        guard.recv().expect("only `wake` consumes a waiter")
    }

    /// As [`VolumeLocks::blocking_lock`], but `None` if earlier operations on the volume have not ended in this time.
    pub fn lock_within(&self, volume: &VolumeId, time: Duration) -> Option<VolumeGuard> {
        let (guard, _token) = self.enqueue_thread(volume);
        guard.recv_timeout(time).ok()
    }

    /// As [`VolumeLocks::blocking_lock`], but repeats a check after each pause, and gives up with its error.
    pub(crate) fn lock_while<T, E>(
        &self,
        volume: &VolumeId,
        pause: Duration,
        check: impl Fn() -> Result<T, E>,
    ) -> Result<VolumeGuard, E> {
        let (guard, _token) = self.enqueue_thread(volume);
        loop {
            if let Ok(guard) = guard.recv_timeout(pause) {
                return Ok(guard);
            }
            check()?;
        }
    }

    /// `None` while another operation has the volume.
    pub fn try_lock(&self, volume: &VolumeId) -> Option<VolumeGuard> {
        match self.table().entry(volume.clone()) {
            Entry::Occupied(_) => None,
            Entry::Vacant(unlocked) => {
                unlocked.insert(VecDeque::new());
                Some(self.guard(volume))
            }
        }
    }

    /// Waits for all operations that run or wait now.
    pub async fn finish(&self) {
        let volumes: Vec<_> = self.table().keys().cloned().collect();
        for volume in volumes {
            drop(self.lock(&volume).await);
        }
    }

    /// Returns the receiver of the guard, and the token of the waiter.
    fn enqueue_thread(&self, volume: &VolumeId) -> (Receiver<VolumeGuard>, Arc<()>) {
        let ((sender, guard), token) = (sync_channel(1), Arc::new(()));
        self.enqueue(volume, Waiter::Thread(sender, Arc::downgrade(&token)));
        (guard, token)
    }

    fn enqueue(&self, volume: &VolumeId, waiter: Waiter) {
        match self.table().entry(volume.clone()) {
            Entry::Occupied(mut locked) => {
                let waiters = locked.get_mut();
                waiters.retain(|waiter| !waiter.is_cancelled());
                return waiters.push_back(waiter);
            }
            Entry::Vacant(unlocked) => drop(unlocked.insert(VecDeque::new())),
        }
        waiter.wake(self.guard(volume));
    }

    fn guard(&self, volume: &VolumeId) -> VolumeGuard {
        VolumeGuard { locks: self.clone(), volume: volume.clone() }
    }

    fn table(&self) -> MutexGuard<'_, HashMap<VolumeId, VecDeque<Waiter>>> {
        // No code panics while it holds the table.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for VolumeGuard {
    fn drop(&mut self) {
        let next = {
            let mut table = self.locks.table();
            let next = table.get_mut(&self.volume).and_then(VecDeque::pop_front);
            if next.is_none() {
                table.remove(&self.volume);
            }
            next
        };
        if let Some(waiter) = next {
            waiter.wake(self.locks.guard(&self.volume));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::Future;
    use std::pin::{Pin, pin};
    use std::sync::mpsc;
    use std::task::{Context, Poll, Waker};
    use std::thread;

    use super::*;

    fn id(text: &str) -> VolumeId {
        text.parse().expect("an identifier")
    }

    /// Polls once, without a runtime.
    fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    fn lock(locks: &VolumeLocks, volume: &VolumeId) -> VolumeGuard {
        match poll(pin!(locks.lock(volume))) {
            Poll::Ready(guard) => guard,
            Poll::Pending => panic!("{volume} is locked"),
        }
    }

    #[test]
    fn only_operations_on_the_same_volume_wait() {
        let (locks, volume, other) = (VolumeLocks::default(), id("pvc-1"), id("pvc-2"));
        let first = lock(&locks, &volume);
        let mut second = pin!(locks.lock(&volume));
        assert!(poll(second.as_mut()).is_pending());
        assert!(locks.try_lock(&volume).is_none());
        drop(lock(&locks, &other));
        drop(locks.blocking_lock(&other));
        drop(locks.try_lock(&other).unwrap());
        drop(first);
        assert!(locks.try_lock(&volume).is_none(), "the second has it");
        assert!(poll(second.as_mut()).is_ready());
        assert!(locks.try_lock(&volume).is_some());
    }

    #[test]
    fn operations_run_in_order_of_arrival() {
        let (locks, volume) = (VolumeLocks::default(), id("pvc-1"));
        let first = lock(&locks, &volume);
        let (mut second, mut third) = (pin!(locks.lock(&volume)), pin!(locks.lock(&volume)));
        assert!(poll(second.as_mut()).is_pending() && poll(third.as_mut()).is_pending());
        drop(first);
        assert!(poll(third.as_mut()).is_pending());
        let Poll::Ready(guard) = poll(second.as_mut()) else { panic!("the second is next") };
        assert!(poll(third.as_mut()).is_pending());
        drop(guard);
        assert!(poll(third.as_mut()).is_ready());
    }

    #[test]
    fn a_thread_waits_for_the_operation_before() {
        let (locks, volume) = (VolumeLocks::default(), id("pvc-1"));
        let (sender, events) = mpsc::channel();
        let first = lock(&locks, &volume);
        thread::scope(|scope| {
            let second = sender.clone();
            let (locks, volume) = (&locks, &volume);
            scope.spawn(move || {
                let _guard = locks.blocking_lock(volume);
                second.send("second")
            });
            while locks.table()[volume].is_empty() {
                thread::yield_now();
            }
            sender.send("first").unwrap();
            drop(first);
        });
        assert_eq!(events.try_iter().collect::<Vec<_>>(), ["first", "second"]);
    }

    /// Regression: a removal that did not queue starved while clones of its source followed each other.
    #[test]
    fn a_thread_with_a_limit_waits_in_the_queue_and_leaves_nothing_behind() {
        let (locks, volume) = (VolumeLocks::default(), id("pvc-1"));
        let first = lock(&locks, &volume);
        for _ in 0..9 {
            assert!(locks.lock_within(&volume, Duration::ZERO).is_none());
        }
        assert_eq!(locks.table()[&volume].len(), 1, "the last one");
        let mut third = thread::scope(|scope| {
            let second = scope.spawn(|| locks.lock_within(&volume, Duration::from_secs(60)).is_some());
            while locks.table()[&volume].iter().all(Waiter::is_cancelled) {
                thread::yield_now();
            }
            let mut third = Box::pin(locks.lock(&volume));
            assert!(poll(third.as_mut()).is_pending());
            drop(first);
            assert!(second.join().unwrap());
            third
        });
        assert!(poll(third.as_mut()).is_ready());
        assert_eq!(locks.table().len(), 0);
    }

    #[test]
    fn a_wait_ends_when_its_check_fails_and_the_next_operation_gets_the_lock() {
        let (locks, volume) = (VolumeLocks::default(), id("pvc-1"));
        assert!(locks.lock_while(&volume, Duration::ZERO, || Err::<(), _>("deleted")).is_ok(), "it is unlocked");
        let (first, checks) = (lock(&locks, &volume), Cell::new(0));
        let check = || {
            checks.set(checks.get() + 1);
            if checks.get() < 3 { Ok(()) } else { Err("deleted") }
        };
        assert_eq!(locks.lock_while(&volume, Duration::ZERO, check).err(), Some("deleted"));
        assert_eq!(checks.get(), 3);
        for _ in 0..9 {
            assert!(locks.lock_while(&volume, Duration::ZERO, || Err::<(), _>("deleted")).is_err());
        }
        assert_eq!(locks.table()[&volume].len(), 1, "the last one");
        let mut next = pin!(locks.lock(&volume));
        assert!(poll(next.as_mut()).is_pending());
        drop(first);
        assert!(poll(next.as_mut()).is_ready());
        assert_eq!(locks.table().len(), 0);
    }

    #[test]
    fn cancelled_waiters_leave_nothing_behind() {
        let (locks, volume) = (VolumeLocks::default(), id("pvc-1"));
        let first = lock(&locks, &volume);
        {
            let mut cancelled = pin!(locks.lock(&volume));
            assert!(poll(cancelled.as_mut()).is_pending());
        }
        let mut woken = Box::pin(locks.lock(&volume));
        assert!(poll(woken.as_mut()).is_pending());
        drop(first);
        // The waiter has the guard, and is cancelled before it is polled again.
        drop(woken);
        assert_eq!(locks.table().len(), 0);
    }

    /// Regression: a client that repeated and cancelled its calls for a volume that hangs filled the memory.
    #[test]
    fn cancelled_waiters_do_not_accumulate_while_the_volume_is_locked() {
        let (locks, volume) = (VolumeLocks::default(), id("pvc-1"));
        let first = lock(&locks, &volume);
        let mut second = pin!(locks.lock(&volume));
        assert!(poll(second.as_mut()).is_pending());
        for _ in 0..9 {
            assert!(poll(pin!(locks.lock(&volume))).is_pending());
        }
        assert_eq!(locks.table()[&volume].len(), 2, "the second, and the last cancelled one");
        drop(first);
        assert!(poll(second.as_mut()).is_ready());
    }

    #[test]
    fn a_panic_unlocks_the_volume() {
        let (locks, volume) = (VolumeLocks::default(), id("pvc-1"));
        let panicked = thread::scope(|scope| {
            let (locks, volume) = (&locks, &volume);
            let thread = scope.spawn(move || {
                let _guard = locks.blocking_lock(volume);
                panic!("on purpose")
            });
            thread.join()
        });
        assert!(panicked.is_err());
        assert!(locks.try_lock(&volume).is_some());
    }

    #[test]
    fn finish_waits_for_operations_that_run_or_wait() {
        let (locks, volume) = (VolumeLocks::default(), id("pvc-1"));
        let first = lock(&locks, &volume);
        let mut second = pin!(locks.lock(&volume));
        assert!(poll(second.as_mut()).is_pending());
        let mut finish = pin!(locks.finish());
        assert!(poll(finish.as_mut()).is_pending());
        drop(first);
        assert!(poll(finish.as_mut()).is_pending());
        assert!(poll(second.as_mut()).is_ready());
        assert!(poll(finish.as_mut()).is_ready());
    }
}
