//! Forked copies of the test process that run one function, or are stopped at their system calls.
//!
//! ```no_run
//! use ktest_support::process::killed_before;
//!
//! let mut step = 0;
//! while killed_before(step, |call| call.may_change_files(), || std::fs::create_dir_all("a/b").unwrap()) {
//!     // The next copy continues from the state that this copy left.
//!     step += 1;
//! }
//! assert!(std::path::Path::new("a/b").exists());
//! ```
//!
//! A copy has only the thread that created it, so its work must not take a lock that another thread may hold. A copy
//! also has all open files, so no other test may unmount a file system meanwhile. A test program meets both conditions
//! if all its tests first take the only disk.

mod call;
mod child;
mod filter;
mod flush;
mod pinned;
#[expect(unsafe_code, reason = "a fork is as safe as the work that is done in it; seccomp(2) has no wrapper")]
mod sys;
mod traced;

use nix::libc;
use nix::sys::ptrace;

pub use self::call::Call;
pub use self::child::Child;
pub use self::flush::Flush;
pub use self::traced::Traced;

/// System calls for memory, locks, signals and the ends of threads and the process, and fcntl(2), because debug builds
/// check a descriptor with `F_GETFD` before they close it.
const OWN: [i64; 12] = [
    libc::SYS_brk,
    libc::SYS_exit,
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

/// Runs `work` in a copy of this process. Returns the numbers of its system calls in order, without those in [`OWN`].
pub fn calls(work: impl FnOnce()) -> Vec<i64> {
    let mut child = Traced::start(work);
    let made = std::iter::from_fn(|| child.next_call().map(|call| call.number()));
    made.filter(|call| !OWN.contains(call)).collect()
}

/// Runs `work` in a copy of this process, which is killed before the `count`th (from 0) system call for which `counted`
/// is true. Returns whether the copy reached that call; otherwise the work is done. A kill before a call that changes
/// no file has the same effect as a kill before the next call that does: see [`Call::may_change_files`].
///
/// The copy is stopped only at calls that may change a file by their number, and `counted` is not called for others,
/// which it must not count. The work may start threads, whose calls are not counted. It must not start processes: see
/// [`parent_killed_before`].
///
/// # Panics
/// If the work panics or starts a process.
pub fn killed_before(count: usize, counted: impl Fn(&Call<'_>) -> bool, work: impl FnOnce()) -> bool {
    kill_before(Traced::start_filtered(work), count, counted)
}

/// [`killed_before`] for work that starts processes, which run on after the kill. The copy is stopped twice at each
/// call, which is slower: processes would inherit the filter of [`killed_before`], and without a tracer, their calls
/// would fail with `ENOSYS`. Calls of threads of the copy are counted too: see [`Call::is_of_other_thread`].
pub fn parent_killed_before(count: usize, counted: impl Fn(&Call<'_>) -> bool, work: impl FnOnce()) -> bool {
    kill_before(Traced::start_with_threads(work), count, counted)
}

fn kill_before(mut child: Traced, count: usize, counted: impl Fn(&Call<'_>) -> bool) -> bool {
    let reached = child.reaches(count, counted);
    if reached {
        child.kill();
    }
    reached
}

/// Runs `work` in a copy of this process, in which the `count`th (from 0) system call for which `counted` is true fails
/// with `ENOSYS`. Returns whether the copy reached that call.
pub fn with_refused_call(count: usize, counted: impl Fn(&Call<'_>) -> bool, work: impl FnOnce()) -> bool {
    let mut child = Traced::start(work);
    let reached = child.reaches(count, counted);
    if reached {
        if let Some(registers) = child.request(ptrace::getregs) {
            Call::new(&mut child, registers).refuse();
        }
        while child.next_call().is_some() {}
    }
    reached
}

/// Runs `work` in a copy of this process and suppresses the effect of the `omitted`th (from 0) call that makes data
/// durable ([`Call::flush`]). Returns all of these calls in order. A test can remove each flush of a program in turn:
/// without a flush that the program needs, a recording ([`replay`](crate::replay)) must fail the checks.
pub fn without_flush(omitted: usize, work: impl FnOnce()) -> Vec<Flush> {
    let mut child = Traced::start(work);
    let mut flushes = Vec::new();
    while let Some(call) = child.next_call() {
        let Some(flush) = call.flush() else { continue };
        if flushes.len() == omitted {
            call.omit_flush(&flush);
        }
        flushes.push(flush);
    }
    flushes
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::fs::{self, File};
    use std::io::{self, Read as _, Write as _};
    use std::path::PathBuf;
    use std::process::Command;
    use std::thread;

    use super::call::HARMLESS;
    use super::*;
    use crate::eventually;

    fn scratch(test: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("{test}-{}", std::process::id()));
        fs::create_dir(&path).unwrap();
        fs::canonicalize(path).unwrap()
    }

    fn is_mkdir(call: &Call<'_>) -> bool {
        [libc::SYS_mkdir, libc::SYS_mkdirat].contains(&call.number())
    }

    #[test]
    fn flushes_are_found_in_order_and_can_be_omitted() {
        let scratch = scratch("without-flush");
        let path = scratch.join("file");
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

    #[test]
    fn a_kill_comes_before_the_effect_of_the_counted_call() {
        for count in 0..=3 {
            let scratch = scratch(&format!("killed-before-{count}"));
            let paths = ["a", "b", "c"].map(|name| scratch.join(name));
            let reported = RefCell::new(Vec::new());
            let counted = |call: &Call<'_>| {
                reported.borrow_mut().push(call.number());
                is_mkdir(call)
            };
            let reached = killed_before(count, counted, || {
                for path in &paths {
                    fs::create_dir(path).unwrap();
                    // Harmless calls: fstat or statx, and close.
                    assert!(File::open(path).unwrap().metadata().unwrap().is_dir());
                }
            });
            assert_eq!(reached, count < paths.len());
            assert_eq!(paths.each_ref().map(|path| path.exists()), [0, 1, 2].map(|number| number < count));
            let reported = reported.into_inner();
            assert!(!reported.iter().any(|number| HARMLESS.contains(number)), "{reported:?}");
            fs::remove_dir_all(&scratch).unwrap();
        }
    }

    /// A thread inherits the filter of its creator.
    #[test]
    fn threads_of_the_work_run_and_their_calls_are_not_counted() {
        for count in 0..=1 {
            let scratch = scratch(&format!("threads-{count}"));
            let [other, own] = ["other", "own"].map(|name| scratch.join(name));
            let reached = killed_before(count, is_mkdir, || {
                thread::scope(|scope| {
                    scope.spawn(|| fs::create_dir(&other).unwrap());
                });
                fs::create_dir(&own).unwrap();
            });
            assert_eq!((reached, other.exists(), own.exists()), (count == 0, true, count == 1));
            fs::remove_dir_all(&scratch).unwrap();
        }
    }

    #[test]
    fn a_parent_is_killed_before_calls_of_its_threads() {
        for count in 0..=3 {
            let scratch = scratch(&format!("parent-threads-{count}"));
            let paths = ["own", "first", "second"].map(|name| scratch.join(name));
            let threads = RefCell::new(Vec::new());
            let counted = |call: &Call<'_>| {
                let counts = is_mkdir(call);
                if counts {
                    threads.borrow_mut().push(call.is_of_other_thread());
                }
                counts
            };
            let reached = parent_killed_before(count, counted, || {
                let [own, others @ ..] = &paths;
                fs::create_dir(own).unwrap();
                thread::scope(|scope| {
                    scope.spawn(|| others.iter().for_each(|path| fs::create_dir(path).unwrap()));
                });
            });
            assert_eq!(reached, count < paths.len());
            assert_eq!(paths.each_ref().map(|path| path.exists()), [0, 1, 2].map(|number| number < count));
            let expected = &[false, true, true][..paths.len().min(count + 1)];
            assert_eq!(threads.into_inner(), expected);
            fs::remove_dir_all(&scratch).unwrap();
        }
    }

    /// Regression: the request panicked, as if the child were not stopped.
    #[test]
    fn a_call_of_a_thread_that_has_ended_is_refused() {
        let scratch = scratch("ended");
        let path = scratch.join("directory");
        let (receiver, mut sender) = io::pipe().unwrap();
        let mut child = Traced::start(|| {
            thread::scope(|scope| {
                scope.spawn(|| {
                    (&receiver).read_exact(&mut [0]).unwrap();
                    std::process::exit(0);
                });
                fs::create_dir(&path).unwrap();
            });
        });
        let stat = format!("/proc/{}/stat", child.pid());
        while let Some(call) = child.next_call() {
            if is_mkdir(&call) {
                sender.write_all(&[0]).unwrap();
                eventually("the other thread ends the process", || fs::read_to_string(&stat).unwrap().contains(") Z"));
                call.refuse();
            }
        }
        assert!(!path.exists());
        fs::remove_dir_all(&scratch).unwrap();
    }

    #[test]
    #[should_panic(expected = "use parent_killed_before")]
    fn a_process_that_the_work_starts_is_an_error() {
        killed_before(0, is_mkdir, || drop(Command::new("/missing").status()));
    }
}
