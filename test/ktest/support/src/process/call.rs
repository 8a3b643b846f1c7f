//! A system call of a child.

use std::fs;

use nix::libc::{self, user_regs_struct};
use nix::sys::ptrace;

use super::flush::Flush;
use super::traced::Traced;

/// Calls that leave every file as it is, whatever their arguments.
const HARMLESS: [i64; 21] = [
    libc::SYS_brk,
    libc::SYS_clock_nanosleep,
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
    libc::SYS_nanosleep,
    libc::SYS_newfstatat,
    libc::SYS_pread64,
    libc::SYS_read,
    libc::SYS_statx,
];

/// A system call that a [`Traced`] child stands before. It is carried out when the child goes on.
#[derive(Debug)]
pub struct Call<'a> {
    child: &'a mut Traced,
    registers: user_regs_struct,
}

impl<'a> Call<'a> {
    pub(super) fn new(child: &'a mut Traced) -> Self {
        let registers = ptrace::getregs(child.pid()).expect("the child stands still");
        Self { child, registers }
    }

    pub const fn number(&self) -> i64 {
        self.registers.orig_rax.cast_signed()
    }

    /// Its arguments as the kernel finds them in the registers, those that it does not have included. syscall(2).
    pub const fn arguments(&self) -> [u64; 6] {
        let user_regs_struct { rdi, rsi, rdx, r10, r8, r9, .. } = self.registers;
        [rdi, rsi, rdx, r10, r8, r9]
    }

    /// Whether the call may change a file, by its number and the flags of an opening. Unknown calls may.
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

    /// The call does not exist in this kernel: the child gets `ENOSYS`.
    pub fn refuse(mut self) {
        self.skip();
    }

    /// Suppresses the durability without notice for the child: a sync returns 0 and does nothing, and `O_DIRECT` is
    /// removed from an opening.
    pub fn omit_flush(mut self) {
        let pid = self.child.pid();
        match self.flush().expect("a call that makes something durable") {
            Flush::Direct(_) => {
                let [_, _, how, ..] = self.arguments();
                let flags = self.how(how) & !i64::from(libc::O_DIRECT);
                ptrace::write(pid, how as ptrace::AddressType, flags).expect("a struct open_how");
            }
            Flush::Fsync(_) | Flush::Fdatasync(_) | Flush::Syncfs(_) => {
                self.skip();
                let mut registers = ptrace::getregs(pid).expect("the child stands still");
                registers.rax = 0;
                ptrace::setregs(pid, registers).expect("the child stands still");
            }
        }
    }

    /// The first field of `struct open_how`, include/uapi/linux/openat2.h: the flags of an opening.
    fn how(&self, address: u64) -> i64 {
        ptrace::read(self.child.pid(), address as ptrace::AddressType).expect("a struct open_how")
    }

    /// Lets the child run to the end of the call, which is not carried out: no call has this number.
    fn skip(&mut self) {
        self.registers.orig_rax = u64::MAX;
        ptrace::setregs(self.child.pid(), self.registers).expect("the child stands still");
        assert!(self.child.go_on(), "it ended in a call that does not exist");
    }
}
