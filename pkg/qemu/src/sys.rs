//! Calls of a child between fork and exec.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::unistd::{Pid, getppid};

/// Lets the child die with the *thread* that starts it (`PR_SET_PDEATHSIG`, prctl(2)), and keep
/// `descriptors` under their numbers. The parent's copies close with `command`.
pub(crate) fn tie(command: &mut Command, descriptors: Vec<OwnedFd>) {
    let parent = Pid::this();
    let prepare = move || -> io::Result<()> {
        prctl::set_pdeathsig(Signal::SIGKILL)?;
        // The parent may have died before the call.
        if getppid() != parent {
            return Err(Errno::ESRCH.into());
        }
        for descriptor in &descriptors {
            fcntl(descriptor, FcntlArg::F_SETFD(FdFlag::empty()))?;
        }
        Ok(())
    };
    // SAFETY: between fork and exec the closure makes only the calls prctl, getppid and fcntl, which are
    // async-signal-safe; it allocates nothing (an `Errno` becomes an `io::Error` without) and takes no
    // lock. Its captures were moved into it before the fork.
    unsafe { command.pre_exec(prepare) };
}
