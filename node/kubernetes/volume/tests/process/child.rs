//! A process of its own that is stopped at each system call.

use nix::libc::{self, PTRACE_SYSCALL_INFO_ENTRY, user_regs_struct};
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{Signal, raise};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};

/// Status of a child whose work panicked.
const PANICKED: i32 = 101;

/// A copy of this process that stands still before its next system call.
struct Traced(Pid);

impl Traced {
    fn start(work: impl FnOnce()) -> Self {
        // SAFETY: the C library's allocator can be used after its fork. `work` uses files and memory, and no lock that
        // another thread of these tests holds: each test has the only disk for itself.
        let child = match unsafe { fork() }.unwrap() {
            ForkResult::Parent { child } => child,
            ForkResult::Child => {
                let work = || {
                    ptrace::traceme().unwrap();
                    raise(Signal::SIGSTOP).unwrap();
                    work();
                };
                let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
                // SAFETY: ends the process without what the parent has registered for its own end.
                unsafe { libc::_exit(if done.is_ok() { 0 } else { PANICKED }) }
            }
        };
        assert_eq!(waitpid(child, None).unwrap(), WaitStatus::Stopped(child, Signal::SIGSTOP));
        ptrace::setoptions(child, Options::PTRACE_O_TRACESYSGOOD | Options::PTRACE_O_EXITKILL).unwrap();
        Self(child)
    }

    /// Lets it run into its next system call, which is not carried out yet. `None` if it ended.
    fn next_call(&mut self) -> Option<user_regs_struct> {
        loop {
            ptrace::syscall(self.0, None).unwrap();
            match waitpid(self.0, None).unwrap() {
                WaitStatus::PtraceSyscall(_) => {}
                WaitStatus::Exited(_, 0) => return None,
                other => panic!("the child ended in its own way: {other:?}"),
            }
            if ptrace::syscall_info(self.0).unwrap().op == PTRACE_SYSCALL_INFO_ENTRY {
                return Some(ptrace::getregs(self.0).unwrap());
            }
        }
    }

    /// Whether the call that it stands before may leave a file otherwise than it is. To be killed before one that does
    /// not is to be killed before the next.
    fn would_change(&self, call: &user_regs_struct) -> bool {
        const GET_FLAGS: u64 = 0x801c_581f; // FS_IOC_FSGETXATTR
        const SET_LIMITS: u64 = 0x5804; // Q_XSETQLIM
        match call.orig_rax.cast_signed() {
            libc::SYS_openat2 => {
                let how = usize::try_from(call.rdx).unwrap() as ptrace::AddressType;
                let flags = ptrace::read(self.0, how).unwrap();
                flags & i64::from(libc::O_CREAT) != 0
            }
            libc::SYS_ioctl => call.rsi != GET_FLAGS,
            libc::SYS_quotactl_fd => call.rsi >> 8 == SET_LIMITS,
            other => !HARMLESS.contains(&other),
        }
    }

    /// Kills it before the call that it stands before.
    fn kill(self) {
        ptrace::kill(self.0).unwrap();
        assert_eq!(waitpid(self.0, None).unwrap(), WaitStatus::Signaled(self.0, Signal::SIGKILL, false));
    }
}

/// The calls of some work, in their order, without those about its own memory and locks and its log, and without what a
/// build with debug assertions asks before it closes a descriptor.
pub fn calls(work: impl FnOnce()) -> Vec<i64> {
    const OWN: [i64; 9] = [
        libc::SYS_brk,
        libc::SYS_exit_group,
        libc::SYS_fcntl,
        libc::SYS_futex,
        libc::SYS_getpid,
        libc::SYS_madvise,
        libc::SYS_mmap,
        libc::SYS_munmap,
        libc::SYS_sigaltstack,
    ];
    let mut child = Traced::start(work);
    let made = std::iter::from_fn(|| child.next_call()).map(|call| call.orig_rax.cast_signed());
    made.filter(|call| !OWN.contains(call)).collect()
}

/// Calls that leave every file as it is, whatever their arguments.
const HARMLESS: [i64; 19] = [
    libc::SYS_brk,
    libc::SYS_close,
    libc::SYS_exit_group,
    libc::SYS_fcntl,
    libc::SYS_flock,
    libc::SYS_fstat,
    libc::SYS_fstatfs,
    libc::SYS_futex,
    libc::SYS_getdents64,
    libc::SYS_getpid,
    libc::SYS_lseek,
    libc::SYS_madvise,
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_munmap,
    libc::SYS_newfstatat,
    libc::SYS_pread64,
    libc::SYS_read,
    libc::SYS_statx,
];

/// Runs some work in a child and kills it before its `count`th system call that may change something, counted from 0.
/// Whether it got that far.
pub fn killed_before(count: usize, work: impl FnOnce()) -> bool {
    let mut child = Traced::start(work);
    let mut passed = 0;
    while let Some(call) = child.next_call() {
        if !child.would_change(&call) {
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
