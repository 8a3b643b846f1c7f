//! Steps of a child between fork(2) and execve(2).

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::ptr;

use nix::errno::Errno;
use nix::libc::{self, c_long, c_uint, c_ulong};
use nix::unistd::write;
use tokio::process::Command;

use crate::sandbox::Sandbox;

/// Starts the program without the descriptors of this process, except for its standard streams. Other threads may have
/// opened descriptors without `FD_CLOEXEC`, which some calls of the kernel cannot set. The start fails if the kernel
/// rejects the call.
///
/// close_range(2), `CLOSE_RANGE_CLOEXEC`, Linux 5.11: the descriptors of later `pre_exec` steps, and that by which the
/// standard library reports their errors, stay open until execve(2).
pub(crate) fn inherit_no_descriptors(command: &mut Command) {
    let mark = || {
        // SAFETY: close_range(2) takes numbers, and `CLOSE_RANGE_CLOEXEC` closes no descriptor before execve(2).
        check(unsafe { libc::syscall(libc::SYS_close_range, 3, c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) })
    };
    // SAFETY: `mark` makes one system call by syscall(2), which is async-signal-safe; it allocates, frees and locks
    // nothing; an `io::Error` of the kernel's is a number.
    unsafe { command.pre_exec(mark) };
}

/// Starts the program in the cgroup with this `cgroup.procs`, which accounts its memory and its children from the
/// beginning. If the kernel rejects the write, the program starts in its parent's cgroup.
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

/// Starts the program in a sandbox, after earlier `pre_exec` steps. The start fails if the kernel rejects a part of the
/// sandbox.
pub(crate) fn confine(command: &mut Command, sandbox: Sandbox) {
    // SAFETY: `enter` makes system calls alone, by syscall(2) and prctl(2), which are async-signal-safe: the wrappers
    // of setresuid(2) in C libraries signal other threads and take locks. It allocates and frees nothing; an
    // `io::Error` of the kernel's is a number.
    unsafe { command.pre_exec(move || enter(&sandbox)) };
}

pub(crate) fn has_seccomp() -> io::Result<()> {
    let action = libc::SECCOMP_RET_ERRNO;
    // SAFETY: seccomp(2) reads one u32 through the pointer, which is valid during the call, and keeps nothing.
    check(unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_GET_ACTION_AVAIL, 0, &raw const action) })
}

/// `struct __user_cap_header_struct`, include/uapi/linux/capability.h.
#[repr(C)]
struct CapabilityHeader {
    version: u32,
    process: i32,
}

/// `struct __user_cap_data_struct`: the lower, then the upper 32 capabilities.
#[repr(C)]
#[derive(Clone, Copy)]
struct CapabilityData {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

const CAPABILITY_VERSION: u32 = 0x2008_0522;

/// Drops all privileges, in the order in which the kernel requires privileges for the next steps.
fn enter(sandbox: &Sandbox) -> io::Result<()> {
    for number in 0..64 {
        if sandbox.capabilities & 1 << number != 0 {
            continue;
        }
        match prctl(libc::PR_CAPBSET_DROP, number, 0) {
            // The kernel supports fewer capabilities.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => break,
            dropped => dropped?,
        }
    }
    // Keeps the capabilities until execve(2).
    prctl(libc::PR_SET_KEEPCAPS, 1, 0)?;
    let id = c_long::from(sandbox.user.id());
    // SAFETY: setgroups(2) reads no element of an empty list; setresgid(2) and setresuid(2) take numbers.
    check(unsafe { libc::syscall(libc::SYS_setgroups, 0, ptr::null::<libc::gid_t>()) })?;
    // SAFETY: as above.
    check(unsafe { libc::syscall(libc::SYS_setresgid, id, id, id) })?;
    // SAFETY: as above.
    check(unsafe { libc::syscall(libc::SYS_setresuid, id, id, id) })?;
    set_capabilities(sandbox.capabilities)?;
    prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0)?;
    let rules = sandbox.rules.as_raw_fd();
    // SAFETY: landlock_restrict_self(2) takes a descriptor, which the sandbox keeps open, and flags.
    check(unsafe { libc::syscall(libc::SYS_landlock_restrict_self, rules, 0) })?;
    let length = u16::try_from(sandbox.filter.len()).map_err(|_| io::Error::from(Errno::EINVAL))?;
    let filter = libc::sock_fprog { len: length, filter: sandbox.filter.as_ptr().cast_mut() };
    // SAFETY: the kernel reads `len` instructions through the pointer, which are the sandbox's, writes and keeps
    // nothing.
    check(unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const filter) })
}

/// Sets exactly these capabilities, also after execve(2) (ambient).
fn set_capabilities(wanted: u64) -> io::Result<()> {
    let header = CapabilityHeader { version: CAPABILITY_VERSION, process: 0 };
    #[expect(clippy::cast_possible_truncation, reason = "the halves")]
    let data = [wanted as u32, (wanted >> 32) as u32].map(|half| CapabilityData {
        effective: half,
        permitted: half,
        inheritable: half,
    });
    // SAFETY: capset(2) reads the header, and two elements of the data for this version; both are valid during the
    // call.
    check(unsafe { libc::syscall(libc::SYS_capset, &raw const header, data.as_ptr()) })?;
    for number in (0..64).filter(|number| wanted & 1 << number != 0) {
        prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_RAISE as c_ulong, number)?;
    }
    Ok(())
}

fn prctl(option: i32, second: c_ulong, third: c_ulong) -> io::Result<()> {
    // SAFETY: the options of this file take numbers.
    check(c_long::from(unsafe { libc::prctl(option, second, third, 0, 0) }))
}

fn check(result: c_long) -> io::Result<()> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use nix::fcntl::{FcntlArg, FdFlag, fcntl};

    use super::*;
    use crate::program::tests::{error_of, start_once};
    use crate::{Paths, Program};

    /// Regression: a program kept descriptors without `FD_CLOEXEC` that another thread had just opened.
    #[tokio::test]
    async fn a_program_inherits_no_descriptor() {
        let scratch = tempfile::tempdir().unwrap();
        let open = File::open("/dev/null").unwrap();
        fcntl(&open, FcntlArg::F_SETFD(FdFlag::empty())).unwrap();
        let script = format!("cd /proc/$$/fd && [ -e 2 ] && [ ! -e {} ] && exit 3", open.as_raw_fd());
        let paths = Paths {
            programs: "/bin".into(),
            ephemeral: scratch.path().join("ephemeral"),
            cgroups: None,
            ..Paths::default()
        };
        let program = Program { name: "sh", arguments: vec!["-c".to_owned(), script], ..Program::default() };
        let tree = start_once(program.service(&paths, std::future::pending));
        assert_eq!(error_of(&tree).await, "sh ended with exit status: 3; last output: nothing");
    }
}
