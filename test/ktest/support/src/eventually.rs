//! Waits for changes by the kernel or another process.

use std::fmt::Debug;
use std::thread;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(5);

/// Repeats `check` until it returns `true`. Panics after a minute.
#[track_caller]
pub fn eventually(what: &str, mut check: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !check() {
        assert!(Instant::now() < end, "waited {LIMIT:?} for {what}");
        thread::sleep(PAUSE);
    }
}

/// Repeats `look` until it returns the expected value. Panics after a minute, with the last value.
#[track_caller]
pub fn eventually_is<T: PartialEq + Debug>(expected: &T, mut look: impl FnMut() -> T) {
    let (end, mut seen) = (Instant::now() + LIMIT, look());
    while seen != *expected {
        assert!(Instant::now() < end, "expected {expected:?}, last seen {seen:?}");
        thread::sleep(PAUSE);
        seen = look();
    }
}
