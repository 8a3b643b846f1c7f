//! One operation at a time per volume.

use std::collections::BTreeSet;
use std::sync::{Condvar, Mutex, PoisonError};

use crate::VolumeId;

/// Who is being worked on.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    busy: Mutex<BTreeSet<VolumeId>>,
    freed: Condvar,
}

/// Ends the turn when dropped.
#[derive(Debug)]
pub(crate) struct Turn<'a> {
    turns: &'a Turns,
    id: &'a VolumeId,
}

impl Turns {
    /// Waits until nobody else works on the volume.
    pub(crate) fn take<'a>(&'a self, id: &'a VolumeId) -> Turn<'a> {
        // A set of names stays right if a thread panics beside it.
        let busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        let mut busy = self.freed.wait_while(busy, |busy| busy.contains(id)).unwrap_or_else(PoisonError::into_inner);
        busy.insert(id.clone());
        Turn { turns: self, id }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.turns.busy.lock().unwrap_or_else(PoisonError::into_inner).remove(self.id);
        self.turns.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    #[test]
    fn a_second_operation_on_one_volume_waits_for_the_first() {
        let turns = Turns::default();
        let id: VolumeId = "pvc-1".parse().unwrap();
        let ended = AtomicBool::new(false);
        thread::scope(|scope| {
            let turn = turns.take(&id);
            let second = scope.spawn(|| {
                let _turn = turns.take(&id);
                ended.load(Ordering::SeqCst)
            });
            ended.store(true, Ordering::SeqCst);
            drop(turn);
            assert!(second.join().unwrap());
        });
    }

    #[test]
    fn other_volumes_do_not_wait() {
        let turns = Turns::default();
        let (one, two): (VolumeId, VolumeId) = ("pvc-1".parse().unwrap(), "pvc-2".parse().unwrap());
        let _turn = turns.take(&one);
        let (sender, done) = mpsc::channel();
        thread::scope(|scope| {
            scope.spawn(|| {
                drop(turns.take(&two));
                sender.send(())
            });
            done.recv().unwrap();
        });
    }

    #[test]
    fn a_panic_ends_the_turn() {
        let turns = Turns::default();
        let id: VolumeId = "pvc-1".parse().unwrap();
        let panicked = thread::scope(|scope| {
            scope
                .spawn(|| {
                    let _turn = turns.take(&id);
                    panic!("on purpose")
                })
                .join()
        });
        assert!(panicked.is_err());
        drop(turns.take(&id));
    }
}
