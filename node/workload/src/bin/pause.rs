//! PID 1 of a pod sandbox: keeps the namespaces of the pod, reaps orphaned processes, and exits on SIGTERM or SIGINT.
#![forbid(unsafe_code)]

use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use std::process::ExitCode;

/// Signals of this program, which blocks them and receives them with `sigwait`, so that none is lost between two
/// calls. The kernel discards signals to PID 1 that it neither blocks nor handles.
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

fn hold() -> Result<(), Errno> {
    let signals = SigSet::from_iter(TAKEN);
    signals.thread_block()?;
    loop {
        match signals.wait()? {
            // One SIGCHLD may represent several children.
            Signal::SIGCHLD => while reap()? {},
            _ => return Ok(()),
        }
    }
}

/// Reaps one exited child; `false` if there is none.
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
    fn exited_children_are_reaped_without_waiting_for_others() {
        let child = Command::new("/bin/true").spawn().unwrap().id();
        let ended = Id::Pid(Pid::from_raw(i32::try_from(child).unwrap()));
        waitid(ended, WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT).unwrap();
        assert_eq!(reap(), Ok(true));
        assert_eq!(reap(), Ok(false));
    }
}
