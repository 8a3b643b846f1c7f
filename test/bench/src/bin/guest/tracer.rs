//! The measured region in the tracing process: ptrace(2) stops the child and its threads at each system call.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::process::Command;

use nix::errno::Errno;
use nix::libc;
use nix::sys::ptrace::{self, Options};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::call::CallError;
use crate::names::name;
use crate::region;

#[derive(Debug)]
pub(crate) struct Seen<T> {
    /// Number of calls of each system call, by name, with those of threads that start in the region, until they end.
    pub(crate) syscalls: BTreeMap<String, u64>,
    /// Results of `observe` at the start and at the end of the region.
    pub(crate) observed: [T; 2],
}

enum Phase<T> {
    Before,
    Inside(T),
    /// The child waits at the end of the region for the end of its threads.
    Ended(T),
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
    // A process would not be counted, so that its start is an error.
    let others = Options::PTRACE_O_TRACECLONE | Options::PTRACE_O_TRACEFORK | Options::PTRACE_O_TRACEVFORK;
    let options = Options::PTRACE_O_TRACESYSGOOD | Options::PTRACE_O_EXITKILL | others;
    ptrace::setoptions(child, options).map_err(failed("PTRACE_SETOPTIONS"))?;
    let resume = |stopped, signal| ptrace::syscall(stopped, signal).map_err(failed("PTRACE_SYSCALL"));

    let (mut syscalls, mut phase, mut threads) = (BTreeMap::new(), Phase::Before, BTreeSet::new());
    resume(child, None)?;
    loop {
        phase = match phase {
            Phase::Ended(before) if threads.is_empty() => {
                let observed = [before, observe()];
                ptrace::detach(child, None).map_err(failed("PTRACE_DETACH"))?;
                return Ok(Seen { syscalls, observed });
            }
            phase => phase,
        };
        let event = waitpid(Pid::from_raw(-1), Some(WaitPidFlag::__WALL)).map_err(failed("waitpid"))?;
        let (stopped, signal) = match event {
            WaitStatus::Exited(thread, _) if threads.remove(&thread) => continue,
            // A signal stops a new thread before its first system call, perhaps before the event of its parent.
            WaitStatus::Stopped(new, _) if new != child && threads.insert(new) => (new, None),
            WaitStatus::Stopped(one, signal) => (one, Some(signal)),
            WaitStatus::PtraceEvent(one, _, libc::PTRACE_EVENT_CLONE) => (one, None),
            WaitStatus::PtraceEvent(..) => {
                return Err("the traced call starts a process, whose system calls would not be counted".into());
            }
            WaitStatus::PtraceSyscall(one) => {
                let enters = enters(one).map_err(failed("PTRACE_GET_SYSCALL_INFO"))?;
                let Call { number, first } = Call::of(one).map_err(failed("PTRACE_GETREGS"))?;
                let is_mark = |mark: i32| number == libc::SYS_getpgid && first == i64::from(mark);
                phase = match phase {
                    // The child returns from the mark; later calls count.
                    Phase::Before if !enters && is_mark(region::BEGIN) => Phase::Inside(observe()),
                    Phase::Inside(before) if enters && is_mark(region::END) => {
                        phase = Phase::Ended(before);
                        continue;
                    }
                    Phase::Before => Phase::Before,
                    phase => {
                        if enters {
                            *syscalls.entry(name(number)).or_default() += 1;
                        }
                        phase
                    }
                };
                (one, None)
            }
            ended => return Err(early(ended)),
        };
        resume(stopped, signal)?;
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
