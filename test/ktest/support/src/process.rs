//! Processes of a test's own: copies of it that do some work and end, and such that are stopped at each system call.
//!
//! ```no_run
//! use ktest_support::process::killed_before;
//!
//! let mut step = 0;
//! while killed_before(step, |call| call.may_change_files(), || std::fs::create_dir_all("a/b").unwrap()) {
//!     // Whatever the one before left, the next can go on from there.
//!     step += 1;
//! }
//! assert!(std::path::Path::new("a/b").exists());
//! ```
//!
//! A copy has only the thread that made it: its work must take no lock that another thread may hold at that moment.
//! It also has copies of all open files, so no other test may unmount something meanwhile. A program whose tests all
//! take the only disk first has both.

mod call;
mod child;
mod flush;
#[expect(unsafe_code, reason = "a fork is as safe as the work that is done in it")]
mod sys;
mod traced;

use nix::libc;

pub use self::call::Call;
pub use self::child::Child;
pub use self::flush::Flush;
pub use self::traced::Traced;

/// About a process' own memory, locks, signals and end; and what a build with debug assertions asks before it closes a
/// descriptor (`F_GETFD`).
const OWN: [i64; 11] = [
    libc::SYS_brk,
    libc::SYS_exit_group,
    libc::SYS_fcntl,
    libc::SYS_futex,
    libc::SYS_getpid,
    libc::SYS_madvise,
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_sigaltstack,
];

/// Does some work in a copy of this process. Returns the numbers of its system calls in their order, without those
/// that are only about the process itself: its memory, its locks, its end.
pub fn calls(work: impl FnOnce()) -> Vec<i64> {
    let mut child = Traced::start(work);
    let made = std::iter::from_fn(|| child.next_call().map(|call| call.number()));
    made.filter(|call| !OWN.contains(call)).collect()
}

/// Does some work in a copy of this process, which is killed before the `count`th of the system calls that are
/// `counted`, from 0. Whether it got that far; otherwise the work is done.
///
/// To be killed before a call that changes nothing is to be killed before the next that does: see
/// [`Call::may_change_files`].
pub fn killed_before(count: usize, counted: impl Fn(&Call<'_>) -> bool, work: impl FnOnce()) -> bool {
    let mut child = Traced::start(work);
    let mut passed = 0;
    while let Some(call) = child.next_call() {
        if !counted(&call) {
            continue;
        }
        if passed == count {
            child.kill();
            return true;
        }
        passed += 1;
    }
    false
}

/// Does some work in a copy of this process, in which the `omitted`th of the calls that make something durable
/// ([`Call::flush`]), from 0, makes nothing durable. Returns all of these calls in their order.
///
/// So a test removes each flush of a program in turn, without a change of the program: a recording
/// ([`replay`](crate::replay)) in which one is missing must not pass the checks.
pub fn without_flush(omitted: usize, work: impl FnOnce()) -> Vec<Flush> {
    let mut child = Traced::start(work);
    let mut flushes = Vec::new();
    while let Some(call) = child.next_call() {
        let Some(flush) = call.flush() else { continue };
        if flushes.len() == omitted {
            call.omit_flush();
        }
        flushes.push(flush);
    }
    flushes
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use super::*;

    #[test]
    fn flushes_are_found_in_their_order_and_a_missing_one_is_not_noticed() {
        let scratch = std::env::temp_dir().join(format!("without-flush-{}", std::process::id()));
        fs::create_dir(&scratch).unwrap();
        let path = fs::canonicalize(&scratch).unwrap().join("file");
        let work = || {
            let file = File::create(&path).unwrap();
            file.sync_all().unwrap();
            file.sync_data().unwrap();
        };
        for omitted in 0..3 {
            let flushes = without_flush(omitted, work);
            assert_eq!(flushes, [Flush::Fsync(path.clone()), Flush::Fdatasync(path.clone())], "{omitted}");
        }
        fs::remove_dir_all(&scratch).unwrap();
    }
}
