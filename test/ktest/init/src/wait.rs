//! Waits for devices that the kernel finds by itself.

use std::thread;
use std::time::{Duration, Instant};

const STEP: Duration = Duration::from_millis(5);

/// Repeats `look` until it returns a value. `None` if it has not returned one within `limit`.
pub(crate) fn until<T>(limit: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return Some(found);
        }
        if start.elapsed() > limit {
            return None;
        }
        thread::sleep(STEP);
    }
}
