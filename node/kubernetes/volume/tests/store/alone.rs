//! Tests that run alone.

use std::sync::{Mutex, MutexGuard, PoisonError};

use ktest_support::Disk;

/// The disk that a test does not use. While a test has both disks, no other test runs. That is necessary for tests that
/// - start processes, which have a copy of all open files,
/// - detach or count loop devices: a list of the devices has each of them open for a moment, which defers a detach,
/// - have dirty pages that stay in memory, or a limit of time.
pub struct Alone {
    _disk: Disk,
    /// Otherwise, two of these tests could each wait for the disk of the other one.
    _turn: MutexGuard<'static, ()>,
}

impl Alone {
    pub fn new() -> Self {
        static TURN: Mutex<()> = Mutex::new(());
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        Self { _disk: Disk::take(), _turn: turn }
    }
}
