//! Group commit: callers share forces of the log.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use dir::Dir;

/// Runs one force of the log for all callers that arrived before it began. The first of them runs it; callers that
/// arrive meanwhile share the next one.
#[derive(Debug)]
pub(crate) struct Group<E> {
    state: Mutex<State<E>>,
    ended: Condvar,
}

#[derive(Debug)]
struct State<E> {
    /// Callers of the next force.
    next: Arc<Batch<E>>,
    running: bool,
    forces: u64,
}

#[derive(Debug)]
struct Batch<E>(OnceLock<Result<(), E>>);

impl<E> Batch<E> {
    fn new() -> Arc<Self> {
        Arc::new(Self(OnceLock::new()))
    }
}

impl<E: Clone> Group<E> {
    pub(crate) fn new() -> Self {
        Self { state: Mutex::new(State { next: Batch::new(), running: false, forces: 0 }), ended: Condvar::new() }
    }

    /// Returns the result of a run of `force` that began after this call. All callers pass an equivalent `force`.
    pub(crate) fn wait(&self, force: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        let mut state = self.lock();
        let mine = Arc::clone(&state.next);
        while state.running && mine.0.get().is_none() {
            state = self.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if let Some(result) = mine.0.get() {
            return result.clone();
        }
        // This run may miss the changes of later callers.
        state.next = Batch::new();
        state.running = true;
        state.forces += 1;
        drop(state);
        let result = force();
        let _ = mine.0.set(result.clone());
        self.lock().running = false;
        self.ended.notify_all();
        result
    }

    /// Number of runs.
    pub(crate) fn forces(&self) -> u64 {
        self.lock().forces
    }

    fn lock(&self) -> MutexGuard<'_, State<E>> {
        // No code panics while it holds the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
pub(crate) struct Shared {
    dir: Dir,
    group: Group<dir::Error>,
}

impl Shared {
    pub(crate) fn new(dir: Dir) -> Self {
        Self { dir, group: Group::new() }
    }

    /// Returns when all earlier changes of the names in this directory are on the disk.
    ///
    /// XFS writes one log, in the order of the operations. All operations before the last change of this directory are
    /// then on the disk, in other directories too.
    pub(crate) fn sync(&self) -> Result<(), dir::Error> {
        self.group.wait(|| self.dir.sync())
    }

    /// Number of forces of the log.
    pub(crate) fn forces(&self) -> u64 {
        self.group.forces()
    }
}

impl std::ops::Deref for Shared {
    type Target = Dir;

    fn deref(&self) -> &Dir {
        &self.dir
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    #[test]
    fn callers_during_a_run_share_the_next_run() {
        let group = Group::<()>::new();
        let (entered, running) = mpsc::channel();
        let (go, gate) = mpsc::channel::<()>();
        let calls = AtomicUsize::new(0);
        thread::scope(|scope| {
            let (group, calls) = (&group, &calls);
            scope.spawn(move || {
                group.wait(|| {
                    entered.send(()).unwrap();
                    gate.recv().unwrap();
                    Ok(())
                })
            });
            running.recv().unwrap();
            for _ in 0..8 {
                scope.spawn(move || {
                    calls.fetch_add(1, Ordering::SeqCst);
                    group.wait(|| Ok(()))
                });
            }
            // Each waiter has a reference to the next batch, and the group has one more.
            while Arc::strong_count(&group.lock().next) < 9 {
                thread::yield_now();
            }
            go.send(()).unwrap();
        });
        assert_eq!(calls.into_inner(), 8);
        assert_eq!(group.forces(), 2);
    }

    #[test]
    fn a_failure_reaches_its_waiters_and_not_the_next_caller() {
        let group = Group::new();
        assert_eq!(group.wait(|| Err("EIO")), Err("EIO"));
        assert_eq!(group.wait(|| Ok(())), Ok(()));
    }

    #[test]
    fn callers_return_after_a_run_that_began_after_the_call() {
        let group = Group::<()>::new();
        let written = AtomicUsize::new(0);
        let durable = AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let mine = written.fetch_add(1, Ordering::SeqCst) + 1;
                        let force = || {
                            durable.fetch_max(written.load(Ordering::SeqCst), Ordering::SeqCst);
                            Ok(())
                        };
                        group.wait(force).unwrap();
                        assert!(durable.load(Ordering::SeqCst) >= mine);
                    }
                });
            }
        });
    }
}
