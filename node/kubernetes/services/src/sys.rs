//! What a program does before it is one: between fork(2) and execve(2).

use std::os::fd::OwnedFd;

use nix::unistd::write;
use tokio::process::Command;

/// Has the program begin in the cgroup whose `cgroup.procs` this is: what it takes and whom it starts counts there from
/// the first moment. If the kernel does not let it, it begins where its parent is.
///
/// cgroups(7): `0` stands for the process that writes.
pub(crate) fn begin_in(command: &mut Command, procs: OwnedFd) {
    let enter = move || {
        let _ = write(&procs, b"0");
        Ok(())
    };
    // SAFETY: in the child of a program with threads only async-signal-safe functions may be called before execve(2),
    // signal-safety(7). `enter` makes one write(2) to an open descriptor; it allocates, frees and locks nothing.
    unsafe { command.pre_exec(enter) };
}
