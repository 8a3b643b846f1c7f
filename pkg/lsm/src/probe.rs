//! [`Probe`]: tries the denied calls.

use std::fmt;
use std::os::fd::BorrowedFd;

use nix::errno::Errno;

use crate::programs::{FSSETXATTR, SETFLAGS, SETFLAGS32};
use crate::sys::{self, Page};

/// `FS_IOC_FSGETXATTR` and `FS_IOC_GETFLAGS`.
const FSGETXATTR: u64 = 0x801c_581f;
const GETFLAGS: u64 = 0x8008_6601;

/// `FS_PROJINHERIT_FL`.
const PROJINHERIT: u32 = 0x2000_0000;

/// Upper half of a command, which the kernel does not read.
const UPPER: u64 = 0xdead_beef_0000_0000;

/// `QCMD(command, PRJQUOTA)` for each command that changes something.
const QUOTA_CHANGES: [(&str, u32); 5] = [
    ("Q_XSETQLIM", 0x5804 << 8 | 2),
    ("Q_SETQUOTA", 0x80_0008 << 8 | 2),
    ("Q_XQUOTAON", 0x5801 << 8 | 2),
    ("Q_XQUOTAOFF", 0x5802 << 8 | 2),
    ("Q_XQUOTARM", 0x5806 << 8 | 2),
];

/// The argument -1 is invalid for these calls, so that a call that is not denied changes nothing.
const LOOP_CONTROL: [(&str, u32); 1] = [("LOOP_CTL_REMOVE", 0x4c81)];
const LOOP_DEVICE: [(&str, u32); 3] =
    [("LOOP_CHANGE_FD", 0x4c06), ("LOOP_SET_STATUS64", 0x4c04), ("LOOP_CONFIGURE", 0x4c0a)];

/// Calling convention of a system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Abi {
    /// Calls of 64-bit programs.
    Native,
    /// Calls of 32-bit programs (`int 0x80`). A kernel without support for them kills the process with SIGSEGV.
    Compat,
}

/// Objects on which the denied calls are tried.
///
/// The caller is a child process with one thread, as root with all capabilities, that has entered a cgroup below the
/// restricted one:
///
/// ```no_run
/// # use std::fs::{self, File};
/// # use std::os::fd::AsFd;
/// # use lsm::{Abi, Probe};
/// fs::write("/sys/fs/cgroup/kubepods/self-test/cgroup.procs", "0")?;
/// let directory = File::open("/data/self-test")?;
/// let control = File::open("/dev/loop-control")?;
/// let probe = Probe { directory: directory.as_fd(), control: control.as_fd(), device: None };
/// for breach in probe.run(Abi::Native)? {
///     eprintln!("{breach}");
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Probe<'a> {
    /// An empty directory on the data disk.
    pub directory: BorrowedFd<'a>,
    /// `/dev/loop-control`.
    pub control: BorrowedFd<'a>,
    /// A published loop device, if there is one.
    pub device: Option<BorrowedFd<'a>>,
}

impl Probe<'_> {
    /// Tries each denied call and returns those that were not denied. Changes by these calls are reverted.
    /// [`ProbeError`] if the memory of the arguments cannot be mapped, or the attributes of the directory cannot be
    /// read.
    pub fn run(&self, abi: Abi) -> Result<Vec<Breach>, ProbeError> {
        let mut page = Page::new().map_err(ProbeError)?;
        let mut breaches = Vec::new();
        let mut note = |call, result| {
            let denied = result == Err(Errno::EPERM);
            if !denied {
                breaches.push(Breach { call, abi, result });
            }
        };
        self.try_project(abi, &mut page, &mut note)?;
        self.try_flags(abi, &mut page, &mut note)?;
        if abi == Abi::Native {
            // 32-bit programs reach the same hook with the same numbers.
            for (call, command) in QUOTA_CHANGES {
                note(call, sys::quotactl_invalid(self.directory, command, 1));
            }
        }
        let control = LOOP_CONTROL.map(|call| (self.control, call));
        let device = self.device.into_iter().flat_map(|device| LOOP_DEVICE.map(|call| (device, call)));
        for (file, (call, command)) in control.into_iter().chain(device) {
            let result = match abi {
                Abi::Native => sys::ioctl_invalid(file, command.into()),
                Abi::Compat => sys::ioctl32_invalid(file, command),
            };
            note(call, result);
        }
        Ok(breaches)
    }

    /// Tries to change the project ID.
    fn try_project(
        &self,
        abi: Abi,
        page: &mut Page,
        note: &mut impl FnMut(&'static str, Result<(), Errno>),
    ) -> Result<(), ProbeError> {
        sys::ioctl(self.directory, FSGETXATTR, page).map_err(ProbeError)?;
        // struct fsxattr: flags, extent size, extents, project, …
        let former: [u8; 28] = page.start();
        let mut changed = former;
        changed[12] ^= 1;
        let commands = match abi {
            Abi::Native => vec![("FS_IOC_FSSETXATTR", 0), ("FS_IOC_FSSETXATTR with upper bits", UPPER)],
            Abi::Compat => vec![("FS_IOC_FSSETXATTR", 0)],
        };
        for (call, upper) in commands {
            page.put(&changed);
            let result = match abi {
                Abi::Native => sys::ioctl(self.directory, upper | u64::from(FSSETXATTR), page),
                Abi::Compat => sys::ioctl32(self.directory, FSSETXATTR, page),
            };
            if result.is_ok() {
                page.put(&former);
                let _ = sys::ioctl(self.directory, FSSETXATTR.into(), page);
            }
            note(call, result);
        }
        if abi == Abi::Native {
            // struct file_attr: flags (64 bits), extent size, extents, project, size of copied extents.
            let mut attributes = [0; 24];
            attributes[..4].copy_from_slice(&changed[..4]);
            attributes[8..20].copy_from_slice(&changed[4..16]);
            attributes[20..].copy_from_slice(&changed[16..20]);
            page.put(&attributes);
            let result = sys::file_setattr(self.directory, page);
            if result.is_ok() {
                page.put(&former);
                let _ = sys::ioctl(self.directory, FSSETXATTR.into(), page);
            }
            // Kernels before Linux 6.17 have no file_setattr.
            if result != Err(Errno::ENOSYS) {
                note("file_setattr", result);
            }
        }
        Ok(())
    }

    /// Tries to change the inherit flag.
    fn try_flags(
        &self,
        abi: Abi,
        page: &mut Page,
        note: &mut impl FnMut(&'static str, Result<(), Errno>),
    ) -> Result<(), ProbeError> {
        sys::ioctl(self.directory, GETFLAGS, page).map_err(ProbeError)?;
        let former = u32::from_ne_bytes(page.start());
        let changed = former ^ PROJINHERIT;
        let mut set = |flags: u32, command: u64| {
            page.put(&flags.to_ne_bytes());
            match abi {
                Abi::Native => sys::ioctl(self.directory, command, page),
                Abi::Compat => sys::ioctl32(self.directory, SETFLAGS32, page),
            }
        };
        let commands = match abi {
            Abi::Native => vec![("FS_IOC_SETFLAGS", 0), ("FS_IOC_SETFLAGS with upper bits", UPPER)],
            Abi::Compat => vec![("FS_IOC_SETFLAGS", 0)],
        };
        for (call, upper) in commands {
            let result = set(changed, upper | u64::from(SETFLAGS));
            if result.is_ok() {
                let _ = set(former, SETFLAGS.into());
            }
            note(call, result);
        }
        Ok(())
    }
}

/// A call that was not denied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Breach {
    /// The call, such as `FS_IOC_FSSETXATTR`.
    pub call: &'static str,
    /// Calling convention of the call.
    pub abi: Abi,
    /// Result of the call, which is not `EPERM`.
    pub result: Result<(), Errno>,
}

impl fmt::Display for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { call, abi, result } = self;
        let program = match abi {
            Abi::Native => "",
            Abi::Compat => " of a 32-bit program",
        };
        match result {
            Ok(()) => write!(f, "{call}{program} succeeded and must fail with EPERM"),
            Err(error) => write!(f, "{call}{program} failed with {error} and must fail with EPERM"),
        }
    }
}

/// A [`Probe`] cannot map the memory of its arguments, or cannot read the attributes of its directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot read the attributes of the directory for the self-test; it must be on the data disk")]
pub struct ProbeError(#[source] Errno);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_breach_names_the_call_and_how_it_ended() {
        let breach = Breach { call: "FS_IOC_FSSETXATTR", abi: Abi::Compat, result: Ok(()) };
        assert_eq!(breach.to_string(), "FS_IOC_FSSETXATTR of a 32-bit program succeeded and must fail with EPERM");
        let breach = Breach { call: "Q_XSETQLIM", abi: Abi::Native, result: Err(Errno::EFAULT) };
        assert_eq!(breach.to_string(), "Q_XSETQLIM failed with EFAULT: Bad address and must fail with EPERM");
    }
}
