//! PID 1 of a pod's sandbox: keeps the pod's namespaces, reaps what its containers leave behind, and
//! ends when it is asked to.
#![forbid(unsafe_code)]

use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use std::process::ExitCode;

/// Signals that arrive are taken with `sigwait`: blocked, they wait, so that none is missed between
/// two turns. A PID 1 ignores every signal that it neither blocks nor handles.
const TAKEN: [Signal; 3] = [Signal::SIGCHLD, Signal::SIGINT, Signal::SIGTERM];

fn main() -> ExitCode {
    match hold() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: cannot wait for signals\ncaused by: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns when the runtime asks for the end of the pod.
fn hold() -> Result<(), Errno> {
    let signals = SigSet::from_iter(TAKEN);
    signals.thread_block()?;
    loop {
        match signals.wait()? {
            // One SIGCHLD may stand for many children.
            Signal::SIGCHLD => while reap()? {},
            _ => return Ok(()),
        }
    }
}

/// Takes the status of one child that ended; `false` if there is none.
fn reap() -> Result<bool, Errno> {
    match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
        Ok(WaitStatus::StillAlive) | Err(Errno::ECHILD) => Ok(false),
        Ok(_) | Err(Errno::EINTR) => Ok(true),
        Err(errno) => Err(errno),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::wait::{Id, waitid};
    use nix::unistd::Pid;
    use std::process::Command;

    #[test]
    fn children_that_ended_are_reaped_and_none_is_waited_for() {
        let child = Command::new("/bin/true").spawn().unwrap().id();
        let ended = Id::Pid(Pid::from_raw(i32::try_from(child).unwrap()));
        waitid(ended, WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT).unwrap();
        assert_eq!(reap(), Ok(true));
        assert_eq!(reap(), Ok(false));
    }
}
