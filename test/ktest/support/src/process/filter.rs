//! A seccomp filter that reports system calls to the tracer. seccomp(2).

use std::mem::offset_of;

use nix::errno::Errno;
use nix::libc::{self, seccomp_data, sock_filter};
use nix::sys::prctl::set_no_new_privs;

use super::sys;

/// Stops this thread before each further system call whose number is not in `passed`; also threads and processes that
/// it starts. Without a tracer that has set `PTRACE_O_TRACESECCOMP`, these calls fail with `ENOSYS`. Linux 3.17.
pub(super) fn report_all_except(passed: &[i64]) -> Result<(), Errno> {
    // The kernel then accepts a filter without CAP_SYS_ADMIN.
    set_no_new_privs()?;
    sys::set_filter(&instructions(passed))
}

/// The architecture is not compared: the tests are 64-bit programs, and the filter is not a security boundary. Numbers
/// of x32 have a bit that no number in `passed` has.
fn instructions(passed: &[i64]) -> Vec<sock_filter> {
    let number = statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset_of!(seccomp_data, nr) as u32);
    // A jump skips the other jumps and the first of the two results.
    let distances = (1..=u8::try_from(passed.len()).expect("a jump skips at most 255 instructions")).rev();
    let jumps = distances.zip(passed).map(|(distance, &call)| {
        let jump = statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, call as u32);
        sock_filter { jt: distance, ..jump }
    });
    let result = |action| statement(libc::BPF_RET | libc::BPF_K, action);
    let results = [libc::SECCOMP_RET_TRACE, libc::SECCOMP_RET_ALLOW].map(result);
    [number].into_iter().chain(jumps).chain(results).collect()
}

const fn statement(code: u32, k: u32) -> sock_filter {
    sock_filter { code: code as u16, jt: 0, jf: 0, k }
}
