//! A child that is stopped at its system calls. ptrace(2).

use std::path::Path;

use nix::errno::Errno;
use nix::libc::{
    PTRACE_EVENT_CLONE, PTRACE_EVENT_FORK, PTRACE_EVENT_SECCOMP, PTRACE_EVENT_VFORK, PTRACE_SYSCALL_INFO_EXIT,
};
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{Signal, kill, raise};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{Pid, setpgid};

use super::call::{Call, HARMLESS};
use super::child::Child;
use super::filter;
use super::pinned::Pinned;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stops {
    /// Before and after each call of the first thread.
    AllCalls,
    /// Before and after each call of each thread.
    CallsOfThreads,
    /// Once, before each call that is not harmless.
    FilteredCalls,
}

impl Stops {
    fn options(self) -> Options {
        let always = Options::PTRACE_O_TRACESYSGOOD | Options::PTRACE_O_EXITKILL;
        match self {
            Self::AllCalls => always,
            // The start of a process has another event, so processes run without a tracer.
            Self::CallsOfThreads => always | Options::PTRACE_O_TRACECLONE,
            // Threads inherit the filter, so they need the tracer too. Processes are reported as errors.
            Self::FilteredCalls => {
                always
                    | Options::PTRACE_O_TRACESECCOMP
                    | Options::PTRACE_O_TRACECLONE
                    | Options::PTRACE_O_TRACEFORK
                    | Options::PTRACE_O_TRACEVFORK
            }
        }
    }
}

/// A [`Child`] that is stopped before its next system call. Only the thread that started the child may trace it. Calls
/// of other threads of the child are executed without a report, except by
/// [`parent_killed_before`](super::parent_killed_before).
///
/// Parent and child are pinned to one CPU, because they run in turns. On two CPUs, each turn wakes the other CPU, which
/// is slow in emulation, and a tracer that runs before its child has left the CPU sleeps for a tick.
#[derive(Debug)]
pub struct Traced {
    pid: Pid,
    /// The thread whose call was reported last.
    stopped: Pid,
    stops: Stops,
    _pinned: Pinned,
}

impl Traced {
    /// Starts a child, which is stopped before `work` begins.
    pub fn start(work: impl FnOnce()) -> Self {
        Self::begin(Stops::AllCalls, work)
    }

    /// [`Traced::start`], which also reports the calls of threads that `work` starts. While one thread is stopped, the
    /// others run. Processes that `work` starts are not traced.
    pub(super) fn start_with_threads(work: impl FnOnce()) -> Self {
        Self::begin(Stops::CallsOfThreads, work)
    }

    /// [`Traced::start`] with one stop for each call that is not harmless, and none for the others. `work` must not
    /// start a process: it would inherit the filter, and outlive its tracer.
    pub(super) fn start_filtered(work: impl FnOnce()) -> Self {
        Self::begin(Stops::FilteredCalls, || {
            filter::report_all_except(&HARMLESS).expect("the kernel supports seccomp filters");
            work();
        })
    }

    fn begin(stops: Stops, work: impl FnOnce()) -> Self {
        const THIS: Pid = Pid::from_raw(0);
        let pinned = Pinned::here().unwrap_or_else(|error| panic!("cannot stay on one CPU: {error}"));
        let Child(pid) = Child::start(|| {
            // Its group is the child with its threads, for which waitpid(2) can wait.
            setpgid(THIS, THIS).expect("it can lead a process group");
            ptrace::traceme().expect("it can be traced by its parent");
            // The tracer sets its options before the child sets a filter.
            raise(Signal::SIGSTOP).expect("it can stop itself");
            work();
        });
        assert_eq!(waitpid(pid, None), Ok(WaitStatus::Stopped(pid, Signal::SIGSTOP)));
        ptrace::setoptions(pid, stops.options()).expect("the child stands still");
        Self { pid, stopped: pid, stops, _pinned: pinned }
    }

    /// Continues the child until it enters its next system call, which has no effect yet. `None` if the child has
    /// ended.
    pub fn next_call(&mut self) -> Option<Call<'_>> {
        while self.go_on() {
            // `None` inside: the end of a call.
            let registers = self.request(|thread| {
                let is_end = ptrace::syscall_info(thread)?.op == PTRACE_SYSCALL_INFO_EXIT;
                if is_end { Ok(None) } else { ptrace::getregs(thread).map(Some) }
            });
            if let Some(registers) = registers.flatten() {
                return Some(Call::new(self, registers));
            }
        }
        None
    }

    /// Makes requests for the stopped thread. `None` if the process has begun to exit meanwhile, which ends the thread
    /// at its stop: the next stop that is reported is its end.
    pub(super) fn request<T>(&self, requests: impl FnOnce(Pid) -> Result<T, Errno>) -> Option<T> {
        match requests(self.stopped) {
            Ok(found) => Some(found),
            Err(Errno::ESRCH) => None,
            Err(error) => panic!("the stopped thread {} rejects a request: {error}", self.stopped),
        }
    }

    /// Continues the child until it enters the `count`th (from 0) call for which `counted` is true. Returns whether the
    /// child reached that call; otherwise it has ended.
    pub(super) fn reaches(&mut self, count: usize, counted: impl Fn(&Call<'_>) -> bool) -> bool {
        let mut passed = 0;
        while let Some(call) = self.next_call() {
            if !counted(&call) {
                continue;
            }
            if passed == count {
                return true;
            }
            passed += 1;
        }
        false
    }

    /// Kills the child before its current system call has an effect. The kernel skips the call if a fatal signal is
    /// pending after the stop: `__seccomp_filter`, kernel/seccomp.c; `ptrace_report_syscall`, include/linux/ptrace.h.
    pub fn kill(self) {
        kill(self.pid, Signal::SIGKILL).expect("it stands still");
        // The end of the process is reported after the ends of its other traced threads.
        loop {
            match waitpid(self.group(), None).expect("its end") {
                WaitStatus::Signaled(pid, Signal::SIGKILL, _) if pid == self.pid => break,
                WaitStatus::Exited(pid, status) if pid == self.pid => {
                    panic!("the process ended with status {status} before it was killed");
                }
                _ => {}
            }
        }
    }

    pub(super) const fn pid(&self) -> Pid {
        self.pid
    }

    /// The thread that is stopped at the call that was reported last.
    pub(super) const fn stopped(&self) -> Pid {
        self.stopped
    }

    /// The process group of the child, for waitpid(2).
    const fn group(&self) -> Pid {
        Pid::from_raw(-self.pid.as_raw())
    }

    fn has_thread(&self, thread: Pid) -> bool {
        Path::new(&format!("/proc/{}/task/{thread}", self.pid)).exists()
    }

    /// Continues the child to its next stop at a system call. Returns `false` if the child has ended.
    fn go_on(&mut self) -> bool {
        self.request(|thread| self.resume(thread));
        loop {
            match waitpid(self.group(), None) {
                Ok(WaitStatus::PtraceSyscall(thread)) => {
                    self.stopped = thread;
                    return true;
                }
                Ok(WaitStatus::PtraceEvent(pid, _, PTRACE_EVENT_SECCOMP)) if pid == self.pid => return true,
                Ok(WaitStatus::Exited(pid, 0)) if pid == self.pid => return false,
                Ok(WaitStatus::PtraceEvent(thread, _, PTRACE_EVENT_SECCOMP | PTRACE_EVENT_CLONE)) => self.pass(thread),
                // A new thread or process begins with SIGSTOP. Before or after that, its parent reports it.
                Ok(WaitStatus::Stopped(thread, Signal::SIGSTOP)) if self.has_thread(thread) => self.pass(thread),
                // The end of another thread.
                Ok(WaitStatus::Exited(_, 0)) => {}
                Ok(
                    WaitStatus::PtraceEvent(_, _, PTRACE_EVENT_FORK | PTRACE_EVENT_VFORK)
                    | WaitStatus::Stopped(_, Signal::SIGSTOP),
                ) => panic!("the work starts a process: use parent_killed_before"),
                other => panic!("the child ended in its own way: {other:?}"),
            }
        }
    }

    /// Continues a thread whose stop is not reported.
    fn pass(&self, thread: Pid) {
        // If the thread has been killed meanwhile, its end is reported next.
        let _ = self.resume(thread);
    }

    fn resume(&self, thread: Pid) -> Result<(), Errno> {
        match self.stops {
            Stops::AllCalls | Stops::CallsOfThreads => ptrace::syscall(thread, None),
            Stops::FilteredCalls => ptrace::cont(thread, None),
        }
    }
}
