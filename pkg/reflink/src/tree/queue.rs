//! Queue of the work that the threads of a pass share. The queue is bounded: a thread that finds it full does the work
//! itself.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::error::TreeError;

#[derive(Debug)]
pub(super) struct Queue<W> {
    state: Mutex<QueueState<W>>,
    changed: Condvar,
    limit: usize,
}

/// The next step of a thread with a list of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// All threads have work.
    Continue,
    /// Another thread waits: offer a part.
    Share,
    /// Something has failed.
    Stop,
}

#[derive(Debug)]
struct QueueState<W> {
    /// Waiting work. The last piece is done first, so that deeper directories are closed sooner.
    waiting: Vec<W>,
    /// Number of threads that have work and may add more.
    busy: usize,
    /// Number of threads that wait for work.
    idle: usize,
    failure: Option<TreeError>,
}

impl<W> Queue<W> {
    pub(super) fn new(first: W, limit: usize) -> Self {
        Self {
            state: Mutex::new(QueueState { waiting: vec![first], busy: 0, idle: 0, failure: None }),
            changed: Condvar::new(),
            limit,
        }
    }

    /// Adds the work to the queue, or returns it if the queue is full.
    pub(super) fn offer(&self, work: W) -> Option<W> {
        let mut state = self.lock();
        if state.waiting.len() >= self.limit {
            return Some(work);
        }
        state.waiting.push(work);
        drop(state);
        self.changed.notify_one();
        None
    }

    /// Waits for work. `None`: all is done, or something has failed.
    pub(super) fn next(&self) -> Option<W> {
        let mut state = self.lock();
        loop {
            if state.failure.is_some() {
                return None;
            }
            if let Some(work) = state.waiting.pop() {
                state.busy += 1;
                return Some(work);
            }
            if state.busy == 0 {
                return None;
            }
            state.idle += 1;
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.idle -= 1;
        }
    }

    /// Reports the result of work from [`Queue::next`]. The queue keeps the first failure.
    pub(super) fn done(&self, result: Result<(), TreeError>) {
        let mut state = self.lock();
        state.busy = state.busy.saturating_sub(1);
        if let Err(error) = result {
            state.failure.get_or_insert(error);
        }
        drop(state);
        self.changed.notify_all();
    }

    pub(super) fn check(&self) -> Next {
        let state = self.lock();
        if state.failure.is_some() {
            return Next::Stop;
        }
        // A thread that was woken for work in the queue counts as idle until it runs.
        if state.idle > state.waiting.len() { Next::Share } else { Next::Continue }
    }

    pub(super) fn result(self) -> Result<(), TreeError> {
        let state = self.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        state.failure.map_or(Ok(()), Err)
    }

    fn lock(&self) -> MutexGuard<'_, QueueState<W>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::thread;
    use std::time::{Duration, Instant};

    use super::*;

    /// Splits a number into ones, and counts them.
    fn split(queue: &Queue<u64>, number: u64, count: &AtomicU64) {
        if number == 1 {
            count.fetch_add(1, Ordering::Relaxed);
            return;
        }
        for half in [number / 2, number - number / 2] {
            if let Some(half) = queue.offer(half) {
                split(queue, half, count);
            }
        }
    }

    #[test]
    fn all_work_is_done_once_by_any_number_of_threads() {
        for threads in 1..5 {
            let (queue, count) = (Queue::new(1000, 3), AtomicU64::new(0));
            thread::scope(|scope| {
                for _ in 0..threads {
                    scope.spawn(|| {
                        while let Some(number) = queue.next() {
                            split(&queue, number, &count);
                            queue.done(Ok(()));
                        }
                    });
                }
            });
            assert_eq!(count.into_inner(), 1000);
            queue.result().unwrap();
        }
    }

    #[test]
    fn a_thread_shares_its_work_while_another_one_waits() {
        let queue = Queue::new(1, 3);
        assert_eq!((queue.next(), queue.check()), (Some(1), Next::Continue));
        let end = Instant::now() + Duration::from_secs(60);
        let found = thread::scope(|scope| {
            let other = scope.spawn(|| queue.next());
            while queue.check() == Next::Continue && Instant::now() < end {
                thread::yield_now();
            }
            // The other thread has the work or will receive it, so it ends even if it did not wait in time.
            (queue.check(), queue.offer(2), queue.check(), other.join().unwrap())
        });
        assert_eq!(found, (Next::Share, None, Next::Continue, Some(2)));
        queue.done(Ok(()));
        queue.done(Ok(()));
        assert_eq!(queue.next(), None);
    }

    #[test]
    fn a_failure_ends_all_threads_and_the_first_one_is_returned() {
        let queue = Queue::new((), 3);
        assert!(queue.offer(()).is_none() && queue.offer(()).is_none() && queue.offer(()).is_some());
        assert!(queue.next().is_some() && queue.next().is_some());
        assert_eq!(queue.check(), Next::Continue);
        queue.done(Err(TreeError::Late));
        queue.done(Err(TreeError::NotEmpty));
        assert!(queue.check() == Next::Stop && queue.next().is_none());
        assert!(matches!(queue.result(), Err(TreeError::Late)));
    }
}
