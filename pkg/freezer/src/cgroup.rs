//! A cgroup with its open files.

use std::fs::{File, TryLockError};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use rustix::fs::XattrFlags;

use crate::error::{FreezeError, Operation};

/// Extended attribute of cgroups that [`freeze`](crate::freeze) has frozen. xattr(7), kernfs since Linux 3.13.
pub const MARK: &str = "trusted.granary.frozen";

/// Buffer size, above the length of `cgroup.freeze` and `cgroup.events`.
const LONGEST: usize = 256;

/// A cgroup with its open files. Operations on a cgroup that was removed succeed: the cgroup had no processes.
#[derive(Debug)]
pub(crate) struct Cgroup {
    path: PathBuf,
    dir: File,
    freeze: File,
    events: File,
}

impl Cgroup {
    /// Opens the files of the cgroup; `None` if the cgroup does not exist.
    pub(crate) fn open(path: &Path) -> Result<Option<Self>, FreezeError> {
        let opened = || {
            let dir = File::open(path)?;
            let freeze = File::options().read(true).write(true).open(path.join("cgroup.freeze"))?;
            let events = File::open(path.join("cgroup.events"))?;
            Ok(Self { path: path.to_owned(), dir, freeze, events })
        };
        match opened() {
            Ok(cgroup) => Ok(Some(cgroup)),
            // ENOENT of a file in an existing directory: the directory is not a cgroup, is the root, or was removed
            // meanwhile.
            Err(error) if is_gone(&error) && !path.exists() => Ok(None),
            Err(error) => Err(failed(Operation::Open, path, &error)),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// A descriptor that is readable with `POLLPRI` when the state of the cgroup has changed since
    /// [`Cgroup::is_frozen`].
    pub(crate) fn events(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }

    /// Locks the cgroup until this value is dropped or the process ends. `false`: another guard has the lock.
    ///
    /// flock(2) of the directory, which every file system supports.
    pub(crate) fn try_lock(&self) -> Result<bool, FreezeError> {
        match self.dir.try_lock() {
            Ok(()) => Ok(true),
            Err(TryLockError::WouldBlock) => Ok(false),
            Err(TryLockError::Error(error)) => Err(failed(Operation::Open, &self.path, &error)),
        }
    }

    /// Whether a process requested the freeze of the cgroup; `None` if the cgroup was removed.
    pub(crate) fn is_requested(&self) -> Result<Option<bool>, FreezeError> {
        self.done(Operation::Read, read(&self.freeze).map(|content| Some(content.trim() == "1")), None)
    }

    /// Whether no process of the cgroup and of those below it runs. The next change wakes a poll of [`Cgroup::events`].
    pub(crate) fn is_frozen(&self) -> Result<bool, FreezeError> {
        let frozen = read(&self.events).map(|content| content.lines().any(|line| line == "frozen 1"));
        self.done(Operation::Read, frozen, true)
    }

    pub(crate) fn is_marked(&self) -> Result<bool, FreezeError> {
        match rustix::fs::fgetxattr(&self.dir, MARK, &mut [0; 1][..]) {
            Err(rustix::io::Errno::NODATA) => Ok(false),
            read => self.done(Operation::Mark, read.map(|_| true).map_err(io::Error::from), false),
        }
    }

    pub(crate) fn mark(&self) -> Result<(), FreezeError> {
        let set = rustix::fs::fsetxattr(&self.dir, MARK, b"1", XattrFlags::empty());
        self.done(Operation::Mark, set.map_err(io::Error::from), ())
    }

    pub(crate) fn freeze(&self) -> Result<(), FreezeError> {
        self.done(Operation::Freeze, self.freeze.write_all_at(b"1", 0), ())
    }

    /// Thaws the cgroup. Removes the mark last, so that a cgroup without a mark is thawed. Returns before the processes
    /// run.
    pub(crate) fn thaw(&self) -> Result<(), FreezeError> {
        self.done(Operation::Thaw, self.freeze.write_all_at(b"0", 0), ())?;
        match rustix::fs::fremovexattr(&self.dir, MARK) {
            Err(rustix::io::Errno::NODATA) => Ok(()),
            removed => self.done(Operation::Mark, removed.map_err(io::Error::from), ()),
        }
    }

    /// Thaws the cgroup if it has the mark, and returns whether it had. A guard thaws its own cgroups by
    /// [`Cgroup::thaw`]: a program that starts may have removed the mark before the guard wrote `1`.
    pub(crate) fn thaw_marked(&self) -> Result<bool, FreezeError> {
        let is_marked = self.is_marked()?;
        if is_marked {
            self.thaw()?;
        }
        Ok(is_marked)
    }

    fn done<T>(&self, operation: Operation, result: io::Result<T>, gone: T) -> Result<T, FreezeError> {
        match result {
            Ok(value) => Ok(value),
            Err(error) if is_gone(&error) => Ok(gone),
            Err(error) => Err(failed(operation, &self.path, &error)),
        }
    }
}

/// Thaws all cgroups, even after an error. Returns the first error.
pub(crate) fn thaw_all(cgroups: &[Cgroup]) -> Result<(), FreezeError> {
    let mut thawed = Ok(());
    for cgroup in cgroups {
        thawed = thawed.and(cgroup.thaw());
    }
    thawed
}

fn read(file: &File) -> io::Result<String> {
    let mut content = [0; LONGEST];
    let length = file.read_at(&mut content, 0)?;
    Ok(String::from_utf8_lossy(&content[..length]).into_owned())
}

/// Whether the cgroup was removed. Its open files return `ENODEV` then.
pub(crate) fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error().map(Errno::from_raw), Some(Errno::ENOENT | Errno::ENODEV))
}

pub(crate) fn failed(operation: Operation, path: &Path, error: &io::Error) -> FreezeError {
    let errno = error.raw_os_error().map_or(Errno::EIO, Errno::from_raw);
    FreezeError::Cgroup { operation, path: path.to_owned(), errno }
}
