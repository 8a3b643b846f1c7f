//! A system call of a child.

use std::fs;

use nix::libc::{self, user_regs_struct};
use nix::sys::ptrace;

use super::flush::Flush;
use super::traced::Traced;

/// System calls that never change a file, whatever their arguments.
pub(super) const HARMLESS: [i64; 22] = [
    libc::SYS_brk,
    libc::SYS_clock_nanosleep,
    libc::SYS_close,
    libc::SYS_exit,
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
    libc::SYS_nanosleep,
    libc::SYS_newfstatat,
    libc::SYS_pread64,
    libc::SYS_read,
    libc::SYS_statx,
];

/// A system call that a [`Traced`] child has entered. The kernel executes the call when the child continues.
#[derive(Debug)]
pub struct Call<'a> {
    child: &'a mut Traced,
    registers: user_regs_struct,
}

impl<'a> Call<'a> {
    pub(super) const fn new(child: &'a mut Traced, registers: user_regs_struct) -> Self {
        Self { child, registers }
    }

    pub const fn number(&self) -> i64 {
        self.registers.orig_rax.cast_signed()
    }

    /// Whether a thread that the work has started makes the call.
    pub fn is_of_other_thread(&self) -> bool {
        self.child.stopped() != self.child.pid()
    }

    /// Values of all six argument registers, including those that the call does not use. syscall(2).
    pub const fn arguments(&self) -> [u64; 6] {
        let user_regs_struct { rdi, rsi, rdx, r10, r8, r9, .. } = self.registers;
        [rdi, rsi, rdx, r10, r8, r9]
    }

    /// Whether the call may change a file, judged by its number and by the flags of `openat2`. True for unknown calls.
    pub fn may_change_files(&self) -> bool {
        match self.number() {
            libc::SYS_openat2 => {
                let [_, _, how, ..] = self.arguments();
                self.how(how) & i64::from(libc::O_CREAT | libc::O_TRUNC) != 0
            }
            other => !HARMLESS.contains(&other),
        }
    }

    /// The object that the call makes durable, if any.
    pub fn flush(&self) -> Option<Flush> {
        let [first, _, how, ..] = self.arguments();
        // A descriptor is an `int`: the upper half of the register may hold anything.
        let descriptor =
            || fs::read_link(format!("/proc/{}/fd/{}", self.child.pid(), first as u32)).unwrap_or_default();
        match self.number() {
            libc::SYS_fsync => Some(Flush::Fsync(descriptor())),
            libc::SYS_fdatasync => Some(Flush::Fdatasync(descriptor())),
            libc::SYS_syncfs => Some(Flush::Syncfs(descriptor())),
            libc::SYS_openat2 if self.how(how) & i64::from(libc::O_DIRECT) != 0 => Some(Flush::Direct(descriptor())),
            _ => None,
        }
    }

    /// Makes the call fail with `ENOSYS`, as if the kernel did not support it.
    pub fn refuse(self) {
        self.skip(-i64::from(libc::ENOSYS));
    }

    /// Removes the durability of the call, whose [`Call::flush`] is `flush`, without an error in the child: a sync
    /// returns 0 and does nothing, and `O_DIRECT` is removed from the flags of `openat2`.
    pub fn omit_flush(self, flush: &Flush) {
        match flush {
            Flush::Direct(_) => {
                let [_, _, how, ..] = self.arguments();
                let flags = self.how(how) & !i64::from(libc::O_DIRECT);
                self.child.request(|thread| ptrace::write(thread, how as ptrace::AddressType, flags));
            }
            Flush::Fsync(_) | Flush::Fdatasync(_) | Flush::Syncfs(_) => self.skip(0),
        }
    }

    /// Flags of `openat2`: the first field of `struct open_how`, include/uapi/linux/openat2.h. 0 if the thread has
    /// ended: the kernel does not execute its call.
    fn how(&self, address: u64) -> i64 {
        self.child.request(|thread| ptrace::read(thread, address as ptrace::AddressType)).unwrap_or(0)
    }

    /// Lets the call return `result`, and the kernel not execute it: `do_syscall_64` in arch/x86/entry skips the number
    /// -1, and leaves the register of the result as it is.
    fn skip(self, result: i64) {
        let registers = user_regs_struct { orig_rax: u64::MAX, rax: result.cast_unsigned(), ..self.registers };
        self.child.request(|thread| ptrace::setregs(thread, registers));
    }
}
