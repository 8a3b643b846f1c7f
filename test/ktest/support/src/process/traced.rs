//! A child that is stopped at each system call. ptrace(2).

use nix::libc::PTRACE_SYSCALL_INFO_ENTRY;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{Signal, raise};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

use super::call::Call;
use super::child::Child;
use super::pinned::Pinned;

/// A [`Child`] that is stopped before its next system call. Only the thread that started the child may trace it.
///
/// Parent and child are pinned to one CPU. They run in turns, and each call stops the child twice. On two CPUs, each
/// turn wakes the other CPU, which is slow in emulation, and a tracer that runs before its child has left the CPU
/// sleeps for a tick.
#[derive(Debug)]
pub struct Traced {
    pid: Pid,
    _pinned: Pinned,
}

impl Traced {
    /// Starts a child, which is stopped before `work` begins.
    pub fn start(work: impl FnOnce()) -> Self {
        let pinned = Pinned::here().unwrap_or_else(|error| panic!("cannot stay on one CPU: {error}"));
        let Child(pid) = Child::start(|| {
            ptrace::traceme().expect("it can be traced by its parent");
            raise(Signal::SIGSTOP).expect("it can stop itself");
            work();
        });
        assert_eq!(waitpid(pid, None), Ok(WaitStatus::Stopped(pid, Signal::SIGSTOP)));
        let options = Options::PTRACE_O_TRACESYSGOOD | Options::PTRACE_O_EXITKILL;
        ptrace::setoptions(pid, options).expect("the child stands still");
        Self { pid, _pinned: pinned }
    }

    /// Continues the child until it enters its next system call, which has no effect yet. `None` if the child has
    /// ended.
    pub fn next_call(&mut self) -> Option<Call<'_>> {
        while self.go_on() {
            if ptrace::syscall_info(self.pid).expect("it stands at a call").op == PTRACE_SYSCALL_INFO_ENTRY {
                return Some(Call::new(self));
            }
        }
        None
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

    /// Kills the child before its current system call has an effect.
    pub fn kill(self) {
        ptrace::kill(self.pid).expect("it stands still");
        assert_eq!(waitpid(self.pid, None), Ok(WaitStatus::Signaled(self.pid, Signal::SIGKILL, false)));
    }

    pub(super) const fn pid(&self) -> Pid {
        self.pid
    }

    /// Continues the child until it enters or leaves a system call. Returns `false` if the child has ended.
    pub(super) fn go_on(&mut self) -> bool {
        ptrace::syscall(self.pid, None).expect("it stands still");
        match waitpid(self.pid, None) {
            Ok(WaitStatus::PtraceSyscall(_)) => true,
            Ok(WaitStatus::Exited(_, 0)) => false,
            other => panic!("the child ended in its own way: {other:?}"),
        }
    }
}
