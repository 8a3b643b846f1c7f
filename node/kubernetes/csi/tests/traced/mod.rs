//! The system calls of a function.

use ktest_support::process;
use nix::libc;

/// Runs `work` in a copy of this process, without other calls of the plugin. Returns the numbers of its system calls in
/// their order, without those for memory, for locks and for the close of descriptors.
pub fn calls(work: impl FnOnce()) -> Vec<i64> {
    let mut calls = process::calls(work);
    calls.retain(|call| *call != libc::SYS_close);
    calls
}
