//! The system calls of some work.

use nix::libc::{self, PTRACE_SYSCALL_INFO_ENTRY};
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{Signal, raise};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};

/// About a process' own memory and locks; and closing, with what a build with debug assertions asks before it.
const OWN: [i64; 10] = [
    libc::SYS_brk,
    libc::SYS_close,
    libc::SYS_exit_group,
    libc::SYS_fcntl,
    libc::SYS_futex,
    libc::SYS_getpid,
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_munmap,
];

/// Does some work in a copy of this process. Returns the numbers of its system calls in their order, without those about
/// its own memory, locks and the end of descriptors.
pub fn calls(work: impl FnOnce()) -> Vec<i64> {
    // SAFETY: the C library's allocator can be used after its fork. `work` uses files and memory, and no lock that
    // another thread of the test holds: nobody calls the plugin meanwhile.
    let pid = match unsafe { fork() }.expect("fork") {
        ForkResult::Parent { child } => child,
        ForkResult::Child => {
            let traced = || {
                ptrace::traceme().expect("traced by the parent");
                raise(Signal::SIGSTOP).expect("stop");
                work();
            };
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(traced));
            // SAFETY: ends the process without what the parent has registered for its own end.
            unsafe { libc::_exit(i32::from(done.is_err())) }
        }
    };
    assert_eq!(waitpid(pid, None), Ok(WaitStatus::Stopped(pid, Signal::SIGSTOP)));
    ptrace::setoptions(pid, Options::PTRACE_O_TRACESYSGOOD | Options::PTRACE_O_EXITKILL).expect("options");
    let mut calls = Vec::new();
    loop {
        ptrace::syscall(pid, None).expect("go on");
        match waitpid(pid, None).expect("wait") {
            WaitStatus::PtraceSyscall(_) => {}
            WaitStatus::Exited(_, 0) => return calls,
            other => panic!("the work failed: {other:?}"),
        }
        if ptrace::syscall_info(pid).expect("a system call").op == PTRACE_SYSCALL_INFO_ENTRY {
            calls.push(ptrace::getregs(pid).expect("its number").orig_rax.cast_signed());
            calls.retain(|call| !OWN.contains(call));
        }
    }
}
