//! Lines that wait for the disk.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::files::Bounds;

/// Bytes that wait. What a boot says until its disk is mounted is a tenth of it.
const MOST: usize = 2 << 20;

/// With so many waiting, the disk is written to at once.
const ENOUGH: usize = 64 << 10;

/// Between those who log, which never wait here, and the thread that writes.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Debug, Default)]
struct State {
    lines: VecDeque<Vec<u8>>,
    bytes: usize,
    dropped: u64,
    place: Option<(PathBuf, Bounds)>,
    is_closed: bool,
}

/// What the thread finds.
#[derive(Debug, Default)]
pub(crate) struct Taken {
    pub(crate) lines: Vec<Vec<u8>>,
    /// Lines that did not fit.
    pub(crate) dropped: u64,
    /// Where to write from now on, once.
    pub(crate) place: Option<(PathBuf, Bounds)>,
    /// Nothing comes any more.
    pub(crate) is_closed: bool,
}

impl Queue {
    /// Adds a line, or drops it and says so.
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

    /// Tells the thread where to write.
    pub(crate) fn place(&self, directory: PathBuf, bounds: Bounds) {
        self.state().place = Some((directory, bounds));
        self.wake.notify_all();
    }

    /// The last word: what is said later goes nowhere.
    pub(crate) fn close(&self) {
        self.state().is_closed = true;
        self.wake.notify_all();
    }

    /// Waits until something is to be done, at most so long. Takes lines only if they are `wanted`.
    pub(crate) fn take(&self, limit: Duration, wanted: bool) -> Taken {
        let idle = |state: &mut State| !state.is_closed && state.place.is_none() && !(wanted && state.bytes >= ENOUGH);
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

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A line had no room.
#[derive(Debug)]
pub(crate) struct Dropped;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_room_is_dropped_and_counted() {
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

    #[test]
    fn after_the_end_nothing_is_kept() {
        let queue = Queue::default();
        queue.push(b"last\n".to_vec()).unwrap();
        queue.close();
        queue.push(b"late\n".to_vec()).unwrap();
        let taken = queue.take(Duration::from_secs(60), true);
        assert!(taken.is_closed);
        assert_eq!(taken.lines, [b"last\n".to_vec()]);
    }
}
