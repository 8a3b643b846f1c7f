//! The measured region in the tracing process: ptrace(2) stops the child at each system call.

use std::collections::BTreeMap;
use std::env;
use std::process::Command;

use nix::errno::Errno;
use nix::libc;
use nix::sys::ptrace::{self, Options};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::call::CallError;
use crate::names::name;
use crate::region;

#[derive(Debug)]
pub(crate) struct Seen<T> {
    /// Number of calls of each system call, by name.
    pub(crate) syscalls: BTreeMap<String, u64>,
    /// Results of `observe` at the start and at the end of the region.
    pub(crate) observed: [T; 2],
}

enum Phase<T> {
    Before,
    Inside(T),
}

/// Runs this program with `arguments`, counts the system calls of its region, and calls `observe` at the region's start
/// and end.
pub(crate) fn trace<T>(arguments: &[String], observe: impl Fn() -> T) -> Result<Seen<T>, CallError> {
    let child = env::current_exe().and_then(|program| Command::new(program).args(arguments).spawn());
    let mut child = child.map_err(|error| format!("cannot start the call that is to be traced: {error}"))?;
    // After a failure the child may stay stopped. It ends with this process (`PTRACE_O_EXITKILL`).
    let seen = follow(Pid::from_raw(child.id().cast_signed()), observe)?;
    let status = child.wait().map_err(|error| format!("cannot wait for the traced call: {error}"))?;
    if status.success() { Ok(seen) } else { Err(format!("the traced call failed after its region: {status}").into()) }
}

fn follow<T>(child: Pid, observe: impl Fn() -> T) -> Result<Seen<T>, CallError> {
    let failed = |step: &'static str| move |errno: Errno| format!("cannot trace: {step} failed: {errno}");
    let early = |ended: WaitStatus| CallError::from(format!("the traced call ended before its region did: {ended:?}"));
    match waitpid(child, None).map_err(failed("waitpid"))? {
        WaitStatus::Stopped(..) => {}
        ended => return Err(early(ended)),
    }
    let options = Options::PTRACE_O_TRACESYSGOOD | Options::PTRACE_O_EXITKILL;
    ptrace::setoptions(child, options).map_err(failed("PTRACE_SETOPTIONS"))?;

    let mut syscalls = BTreeMap::new();
    let mut phase = Phase::Before;
    let mut signal = None;
    loop {
        ptrace::syscall(child, signal.take()).map_err(failed("PTRACE_SYSCALL"))?;
        match waitpid(child, None).map_err(failed("waitpid"))? {
            WaitStatus::PtraceSyscall(_) => {}
            WaitStatus::Stopped(_, other) => {
                signal = Some(other);
                continue;
            }
            ended => return Err(early(ended)),
        }
        let enters = enters(child).map_err(failed("PTRACE_GET_SYSCALL_INFO"))?;
        let Call { number, first } = Call::of(child).map_err(failed("PTRACE_GETREGS"))?;
        let is_mark = |mark: i32| number == libc::SYS_getpgid && first == i64::from(mark);
        phase = match phase {
            // The child returns from the mark; later calls count.
            Phase::Before if !enters && is_mark(region::BEGIN) => Phase::Inside(observe()),
            Phase::Inside(before) if enters && is_mark(region::END) => {
                let observed = [before, observe()];
                ptrace::detach(child, None).map_err(failed("PTRACE_DETACH"))?;
                return Ok(Seen { syscalls, observed });
            }
            Phase::Inside(before) => {
                if enters {
                    if starts_another(number) {
                        let what = format!("the traced call starts a process or thread ({})", name(number));
                        return Err((what + ", whose system calls would not be counted").into());
                    }
                    *syscalls.entry(name(number)).or_default() += 1;
                }
                Phase::Inside(before)
            }
            Phase::Before => Phase::Before,
        };
    }
}

/// Whether the stop is the entry of a system call. Each system call stops twice: at its entry and at its exit.
fn enters(child: Pid) -> Result<bool, Errno> {
    Ok(ptrace::syscall_info(child)?.op == libc::PTRACE_SYSCALL_INFO_ENTRY)
}

struct Call {
    number: libc::c_long,
    first: i64,
}

impl Call {
    fn of(child: Pid) -> Result<Self, Errno> {
        let registers = ptrace::getregs(child)?;
        Ok(Self { number: registers.orig_rax.cast_signed(), first: registers.rdi.cast_signed() })
    }
}

fn starts_another(number: libc::c_long) -> bool {
    [libc::SYS_clone, libc::SYS_clone3, libc::SYS_fork, libc::SYS_vfork].contains(&number)
}
