//! The measured region, from outside: ptrace(2) stops the child at each system call.

use std::collections::BTreeMap;
use std::process::{Command, ExitStatus};
use std::{env, io};

use nix::errno::Errno;
use nix::libc;
use nix::sys::ptrace::{self, Options};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::names::name;
use crate::region;

#[derive(Debug)]
pub(crate) struct Seen<T> {
    /// Number of calls of each system call, by name.
    pub(crate) syscalls: BTreeMap<String, u64>,
    /// Results of `observe` at the begin and at the end of the region.
    pub(crate) observed: [T; 2],
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum TraceError {
    #[error("cannot start the call that is to be traced")]
    Start(#[source] io::Error),
    #[error("cannot wait for the traced call")]
    Wait(#[source] io::Error),
    #[error("cannot trace: {step} failed")]
    Trace { step: &'static str, source: Errno },
    #[error("the traced call ended before its region did: {0:?}")]
    Early(WaitStatus),
    #[error("the traced call starts a process or thread ({0}), whose system calls would not be counted")]
    Starts(String),
    #[error("the traced call failed after its region: {0}")]
    Late(ExitStatus),
}

enum Phase<T> {
    Before,
    Inside(T),
}

/// Runs this program with `arguments`, counts the system calls of its region, and calls `observe` at the begin and the
/// end.
pub(crate) fn trace<T>(arguments: &[String], observe: impl Fn() -> T) -> Result<Seen<T>, TraceError> {
    let program = env::current_exe().map_err(TraceError::Start)?;
    let mut child = Command::new(program).args(arguments).spawn().map_err(TraceError::Start)?;
    // After a failure the child may stand still: it ends with this process (`PTRACE_O_EXITKILL`).
    let seen = follow(Pid::from_raw(child.id().cast_signed()), observe)?;
    let status = child.wait().map_err(TraceError::Wait)?;
    if status.success() { Ok(seen) } else { Err(TraceError::Late(status)) }
}

fn follow<T>(child: Pid, observe: impl Fn() -> T) -> Result<Seen<T>, TraceError> {
    let failed = |step| move |source| TraceError::Trace { step, source };
    match waitpid(child, None).map_err(failed("waitpid"))? {
        WaitStatus::Stopped(..) => {}
        ended => return Err(TraceError::Early(ended)),
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
            ended => return Err(TraceError::Early(ended)),
        }
        let enters = enters(child).map_err(failed("PTRACE_GET_SYSCALL_INFO"))?;
        let Call { number, first } = Call::of(child).map_err(failed("PTRACE_GETREGS"))?;
        let is_mark = |mark: i32| number == libc::SYS_getpgid && first == i64::from(mark);
        phase = match phase {
            // On its way back from the mark: what follows counts.
            Phase::Before if !enters && is_mark(region::BEGIN) => Phase::Inside(observe()),
            Phase::Inside(before) if enters && is_mark(region::END) => {
                let observed = [before, observe()];
                ptrace::detach(child, None).map_err(failed("PTRACE_DETACH"))?;
                return Ok(Seen { syscalls, observed });
            }
            Phase::Inside(before) => {
                if enters {
                    if starts_another(number) {
                        return Err(TraceError::Starts(name(number)));
                    }
                    *syscalls.entry(name(number)).or_default() += 1;
                }
                Phase::Inside(before)
            }
            Phase::Before => Phase::Before,
        };
    }
}

/// Each system call stops twice: before the kernel acts and after it.
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
