//! Queue of lines for the disk.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::files::Bounds;

/// Capacity in bytes, ten times the output of a boot before the disk is mounted.
const MOST: usize = 2 << 20;

/// Size of the queue at which it is written immediately.
const ENOUGH: usize = 64 << 10;

/// Queue between the threads that log, which never wait, and the thread that writes.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    state: Mutex<Lines>,
    wake: Condvar,
}

#[derive(Debug, Default)]
struct Lines {
    lines: VecDeque<Vec<u8>>,
    bytes: usize,
    dropped: u64,
    place: Option<(PathBuf, Bounds)>,
    is_closed: bool,
}

/// The content of the queue, for the writing thread.
#[derive(Debug, Default)]
pub(crate) struct Taken {
    pub(crate) lines: Vec<Vec<u8>>,
    pub(crate) dropped: u64,
    /// New directory, set once per change.
    pub(crate) place: Option<(PathBuf, Bounds)>,
    pub(crate) is_closed: bool,
}

impl Queue {
    /// Queues a line, or drops it if the queue is full.
    pub(crate) fn push(&self, line: Vec<u8>) -> Result<(), Dropped> {
        let mut state = self.state();
        if state.is_closed {
            return Ok(());
        }
        if state.bytes + line.len() > MOST {
            state.dropped += 1;
            return Err(Dropped);
        }
        let before = state.bytes;
        state.bytes += line.len();
        state.lines.push_back(line);
        if before < ENOUGH && state.bytes >= ENOUGH {
            self.wake.notify_all();
        }
        Ok(())
    }

    pub(crate) fn place(&self, directory: PathBuf, bounds: Bounds) {
        self.state().place = Some((directory, bounds));
        self.wake.notify_all();
    }

    /// Closes the queue; later lines are ignored.
    pub(crate) fn close(&self) {
        self.state().is_closed = true;
        self.wake.notify_all();
    }

    /// Waits for work, at most `limit`. Takes lines only if `wanted`.
    pub(crate) fn take(&self, limit: Duration, wanted: bool) -> Taken {
        let idle = |state: &mut Lines| !state.is_closed && state.place.is_none() && !(wanted && state.bytes >= ENOUGH);
        let waited = self.wake.wait_timeout_while(self.state(), limit, idle);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let mut taken = Taken { is_closed: state.is_closed, place: state.place.take(), ..Taken::default() };
        if wanted || taken.place.is_some() {
            taken.lines = state.lines.drain(..).collect();
            state.bytes = 0;
            taken.dropped = std::mem::take(&mut state.dropped);
        }
        taken
    }

    fn state(&self) -> MutexGuard<'_, Lines> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
pub(crate) struct Dropped;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_beyond_the_capacity_are_dropped_and_counted() {
        let queue = Queue::default();
        let line = vec![b'x'; 1 << 10];
        let kept = (0..4096).filter(|_| queue.push(line.clone()).is_ok()).count();
        assert_eq!(kept, MOST >> 10);
        let taken = queue.take(Duration::ZERO, true);
        assert_eq!((taken.lines.len(), taken.dropped), (kept, 4096 - kept as u64));
        assert!(queue.push(line).is_ok());
    }

    #[test]
    fn lines_wait_until_they_are_wanted() {
        let queue = Queue::default();
        queue.push(b"early\n".to_vec()).unwrap();
        assert!(queue.take(Duration::ZERO, false).lines.is_empty());
        queue.place("/data/log/node".into(), Bounds::within(units::Bytes::MIB));
        let taken = queue.take(Duration::ZERO, false);
        assert!(taken.place.is_some());
        assert_eq!(taken.lines, [b"early\n".to_vec()]);
    }
}
