//! A process of its own, and one that is stopped at each system call.

use nix::libc::{self, PTRACE_SYSCALL_INFO_ENTRY, user_regs_struct};
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{Signal, raise};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};

/// Status of a child whose work panicked.
const PANICKED: i32 = 101;

/// A copy of this process that does some work and ends. Everything it has open is closed when
/// [`Child::wait`] returns, however it ended.
pub struct Child(Pid);

impl Child {
    pub fn start(work: impl FnOnce()) -> Self {
        // SAFETY: the C library's allocator can be used after its fork. `work` uses files and memory, and no
        // lock that another thread of these tests holds: each test has the only disk for itself.
        match unsafe { fork() }.unwrap() {
            ForkResult::Parent { child } => Self(child),
            ForkResult::Child => {
                let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
                // SAFETY: ends the process without what the parent has registered for its own end.
                unsafe { libc::_exit(if done.is_ok() { 0 } else { PANICKED }) }
            }
        }
    }

    /// Waits for its end, which must not be a panic.
    pub fn wait(self) {
        assert_eq!(waitpid(self.0, None).unwrap(), WaitStatus::Exited(self.0, 0));
    }
}

/// A child that stands still before its next system call.
pub struct Traced(Pid);

impl Traced {
    pub fn start(work: impl FnOnce()) -> Self {
        let Child(pid) = Child::start(|| {
            ptrace::traceme().unwrap();
            raise(Signal::SIGSTOP).unwrap();
            work();
        });
        assert_eq!(waitpid(pid, None).unwrap(), WaitStatus::Stopped(pid, Signal::SIGSTOP));
        ptrace::setoptions(pid, Options::PTRACE_O_TRACESYSGOOD | Options::PTRACE_O_EXITKILL).unwrap();
        Self(pid)
    }

    /// Lets it run into its next system call, which is not carried out yet. `None` if it ended.
    pub fn next_call(&mut self) -> Option<user_regs_struct> {
        loop {
            if !self.go_on() {
                return None;
            }
            if ptrace::syscall_info(self.0).unwrap().op == PTRACE_SYSCALL_INFO_ENTRY {
                return Some(ptrace::getregs(self.0).unwrap());
            }
        }
    }

    /// The call that it stands before does not exist in this kernel.
    pub fn refuse_call(&mut self, mut registers: user_regs_struct) {
        registers.orig_rax = u64::MAX;
        ptrace::setregs(self.0, registers).unwrap();
        assert!(self.go_on());
    }

    /// Kills it before the call that it stands before.
    pub fn kill(self) {
        ptrace::kill(self.0).unwrap();
        assert_eq!(waitpid(self.0, None).unwrap(), WaitStatus::Signaled(self.0, Signal::SIGKILL, false));
    }

    fn go_on(&mut self) -> bool {
        ptrace::syscall(self.0, None).unwrap();
        match waitpid(self.0, None).unwrap() {
            WaitStatus::PtraceSyscall(_) => true,
            WaitStatus::Exited(_, 0) => false,
            other => panic!("the child ended in its own way: {other:?}"),
        }
    }
}

/// Calls that leave every file as it is. To be killed before one of them is to be killed before the next.
const HARMLESS: [i64; 16] = [
    libc::SYS_brk,
    libc::SYS_close,
    libc::SYS_fcntl,
    libc::SYS_fstat,
    libc::SYS_fstatfs,
    libc::SYS_futex,
    libc::SYS_getdents64,
    libc::SYS_getpid,
    libc::SYS_lseek,
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_munmap,
    libc::SYS_newfstatat,
    libc::SYS_openat2,
    libc::SYS_pread64,
    libc::SYS_statx,
];

/// Runs some work in a child and kills it before its `count`th system call that may change something,
/// counted from 0. Whether it got that far.
pub fn killed_before(count: usize, work: impl FnOnce()) -> bool {
    let mut child = Traced::start(work);
    let mut passed = 0;
    while let Some(call) = child.next_call() {
        if HARMLESS.contains(&call.orig_rax.cast_signed()) {
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

/// How many system calls some work takes.
pub fn calls(work: impl FnOnce()) -> usize {
    let mut child = Traced::start(work);
    std::iter::from_fn(|| child.next_call()).count()
}
