//! Waiting for the disk together.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use dir::Dir;

/// A force of the log serves all who asked before it began: the first who asks does it, and who comes meanwhile waits
/// for one more, together (group commit).
#[derive(Debug)]
pub(crate) struct Group<E> {
    state: Mutex<State<E>>,
    ended: Condvar,
}

#[derive(Debug)]
struct State<E> {
    /// Those for whom the next force is.
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

    /// Returns when a run of `force` that began after this call has ended, with its result. All who call this pass the
    /// same.
    pub(crate) fn wait(&self, force: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        let mut state = self.lock();
        let mine = Arc::clone(&state.next);
        while state.running && mine.0.get().is_none() {
            state = self.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if let Some(result) = mine.0.get() {
            return result.clone();
        }
        // Later callers may have changed something that this run misses.
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

    /// How many runs there were.
    pub(crate) fn forces(&self) -> u64 {
        self.lock().forces
    }

    fn lock(&self) -> MutexGuard<'_, State<E>> {
        // Nothing that could panic happens while it is held.
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

    /// Returns when what was done to the names in this directory before the call is on the disk.
    ///
    /// XFS writes one log, in the order in which things were done: so all that was done before the last change of this
    /// directory is on the disk then, elsewhere too.
    pub(crate) fn sync(&self) -> Result<(), dir::Error> {
        self.group.wait(|| self.dir.sync())
    }

    /// How often the disk was asked.
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
    fn those_who_ask_during_a_run_share_the_next() {
        let group = Group::<()>::new();
        let (entered, running) = mpsc::channel();
        let (go, gate) = mpsc::channel::<()>();
        let asked = AtomicUsize::new(0);
        thread::scope(|scope| {
            let (group, asked) = (&group, &asked);
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
                    asked.fetch_add(1, Ordering::SeqCst);
                    group.wait(|| Ok(()))
                });
            }
            // Each holds the batch that is next, one reference more than the group itself.
            while Arc::strong_count(&group.lock().next) < 9 {
                thread::yield_now();
            }
            go.send(()).unwrap();
        });
        assert_eq!(asked.into_inner(), 8);
        assert_eq!(group.forces(), 2);
    }

    #[test]
    fn a_failure_is_everybodys_who_waited_for_it_and_not_the_nexts() {
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
