//! Directories of clusters that are kept.

use crate::error::LaunchError;
use crate::locks::is_unsupported;
use crate::name::ClusterName;
use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Number of attempts to lock a directory, which may be deleted between its creation and its lock.
const ATTEMPTS: u32 = 8;

/// Time for which a killed process may hold a lock: the kernel closes the descriptors of a process after freeing its
/// memory, when `/proc` no longer shows its arguments.
const EXIT: Duration = Duration::from_secs(2);

const PAUSE: Duration = Duration::from_millis(20);

/// The directory of all clusters of a user.
#[derive(Clone, Debug)]
pub(crate) struct Root(PathBuf);

/// The directory of a cluster, which may be missing.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) name: ClusterName,
    pub(crate) directory: PathBuf,
}

/// An exclusive lock on the directory of a cluster (flock(2)). The kernel releases the lock when the last process with
/// the descriptor ends, even if it is killed.
#[derive(Debug)]
pub(crate) struct Lock(File);

impl Root {
    /// `$XDG_STATE_HOME/granary`, or `~/.local/state/granary` (XDG Base Directory Specification).
    pub(crate) fn find(variable: impl Fn(&str) -> Option<OsString>) -> Result<Self, LaunchError> {
        // The XDG specification requires programs to ignore relative paths.
        let absolute = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let state = absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")));
        let missing = || io::Error::other("neither XDG_STATE_HOME nor HOME is an absolute path");
        let state = state.ok_or_else(missing).map_err(LaunchError::prepare("find the directory of the clusters"))?;
        Ok(Self(state.join("granary")))
    }

    pub(crate) fn place(&self, name: &ClusterName) -> Place {
        Place { name: name.clone(), directory: self.0.join(name.to_string()) }
    }

    /// Clusters that have a directory, sorted by name.
    pub(crate) fn places(&self) -> Result<Vec<Place>, LaunchError> {
        let names = || -> io::Result<Vec<ClusterName>> {
            let entries = match fs::read_dir(&self.0) {
                Ok(entries) => entries,
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
                Err(error) => return Err(error),
            };
            let mut names = Vec::new();
            for entry in entries {
                let entry = entry?;
                // The entry may be a link to a directory on a larger disk.
                if entry.path().is_dir() {
                    names.extend(entry.file_name().to_str().and_then(|name| name.parse().ok()));
                }
            }
            names.sort();
            Ok(names)
        };
        let names = names().map_err(LaunchError::prepare(format!("read {}", self.0.display())))?;
        Ok(names.iter().map(|name| self.place(name)).collect())
    }
}

impl Place {
    pub(crate) fn exists(&self) -> bool {
        self.directory.is_dir()
    }

    /// Path of the data disk of the control plane. Data disks of workers have a suffix.
    pub(crate) fn data(&self) -> PathBuf {
        self.directory.join("data.img")
    }

    pub(crate) fn record(&self) -> PathBuf {
        self.directory.join("cluster.json")
    }

    /// Path of the log of a launcher in the background.
    pub(crate) fn log(&self) -> PathBuf {
        self.directory.join("launcher.log")
    }

    /// Directory of the files of one run: the kubeconfig and configurations. A start removes the files of a killed
    /// launcher.
    pub(crate) fn run(&self) -> PathBuf {
        self.directory.join("run")
    }

    /// Creates the directory if it is missing, and locks it.
    pub(crate) fn lock(&self) -> Result<Lock, LaunchError> {
        let create = format!("create {}; name another place with XDG_STATE_HOME", self.directory.display());
        let start = Instant::now();
        let mut attempts = 0;
        while attempts < ATTEMPTS {
            create_private(&self.directory).map_err(LaunchError::prepare(&*create))?;
            match try_lock(&self.directory).map_err(|error| self.lock_error(error))? {
                Attempt::Locked(lock) => return Ok(lock),
                Attempt::InUse if start.elapsed() < EXIT => sleep(PAUSE),
                Attempt::InUse => return Err(LaunchError::InUse { name: self.name.clone() }),
                Attempt::Deleted => attempts += 1,
            }
        }
        let step =
            format!("lock {}; try again when other launchers of this cluster have ended", self.directory.display());
        Err(LaunchError::prepare(step)(io::Error::other("other launchers delete it again and again")))
    }

    fn lock_error(&self, source: io::Error) -> LaunchError {
        let directory = self.directory.clone();
        if is_unsupported(&source) {
            return LaunchError::NoLocks { directory, source };
        }
        let step = format!("lock {}; name a directory that you may read with XDG_STATE_HOME", directory.display());
        LaunchError::prepare(step)(source)
    }
}

pub(crate) fn create_private(directory: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(directory)
}

enum Attempt {
    Locked(Lock),
    InUse,
    /// The directory of this name is missing, or another directory has replaced it.
    Deleted,
}

fn try_lock(directory: &Path) -> io::Result<Attempt> {
    let is_missing = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
    let file = match File::open(directory) {
        Ok(file) => file,
        Err(error) if is_missing(&error) => return Ok(Attempt::Deleted),
        Err(error) => return Err(error),
    };
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(Attempt::InUse),
        Err(TryLockError::Error(error)) => return Err(error),
    }
    let locked = file.metadata()?;
    match fs::metadata(directory) {
        Ok(named) if (named.dev(), named.ino()) == (locked.dev(), locked.ino()) => Ok(Attempt::Locked(Lock(file))),
        Ok(_) => Ok(Attempt::Deleted),
        Err(error) if is_missing(&error) => Ok(Attempt::Deleted),
        Err(error) => Err(error),
    }
}

impl Lock {
    /// The locked descriptor, for the standard input of a process in the background, which then also holds the lock.
    pub(crate) fn into_file(self) -> File {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::errno::Errno;
    use std::os::unix::fs::symlink;

    #[test]
    fn the_directory_is_that_of_the_specification() {
        let root = |state: &str, home: &str| {
            Root::find(|name| {
                let value = if name == "HOME" { home } else { state };
                (!value.is_empty()).then(|| value.into())
            })
        };
        assert_eq!(root("/state", "/home/user").unwrap().0, Path::new("/state/granary"));
        for state in ["", "relative"] {
            assert_eq!(root(state, "/home/user").unwrap().0, Path::new("/home/user/.local/state/granary"));
        }
        assert!(root("", "").unwrap_err().to_string().starts_with("cannot find the directory of the clusters"));
    }

    #[test]
    fn clusters_are_listed_by_name() {
        let directory = tempfile::tempdir().unwrap();
        let root = Root(directory.path().join("granary"));
        assert!(root.places().unwrap().is_empty());
        for name in ["b", "a", "Not-A-Name"] {
            create_private(&root.0.join(name)).unwrap();
        }
        fs::write(root.0.join("file"), "").unwrap();
        // Regression test: `status` did not list a linked directory, which `start` uses. A dangling link is skipped.
        for (name, target) in [("linked", "b"), ("dangling", "not-mounted")] {
            symlink(target, root.0.join(name)).unwrap();
        }
        let places = root.places().unwrap();
        let names: Vec<String> = places.iter().map(|place| place.name.to_string()).collect();
        assert_eq!(names, ["a", "b", "linked"]);
        assert!(places.iter().all(Place::exists));
        assert_eq!(root.0.metadata().unwrap().mode() & 0o777, 0o700);
    }

    #[test]
    fn a_directory_that_cannot_be_created_is_reported_with_a_remedy() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = Root(file.path().to_owned()).place(&ClusterName::default()).lock().unwrap_err().to_string();
        let wanted = format!("cannot create {}/granary; name another place with XDG_STATE_HOME", file.path().display());
        assert_eq!(error, wanted);
    }

    /// Regression test: the error contained only the errno.
    #[test]
    fn a_file_system_without_locks_is_reported_with_a_remedy() {
        let place = Root("/home/user/granary".into()).place(&ClusterName::default());
        let error = |errno: Errno| place.lock_error(errno.into()).to_string();
        for errno in [Errno::ENOLCK, Errno::EOPNOTSUPP] {
            assert_eq!(
                error(errno),
                "the file system of /home/user/granary/granary does not support locks (flock); name a directory on a \
                 local disk with XDG_STATE_HOME"
            );
        }
        assert_eq!(
            error(Errno::EACCES),
            "cannot lock /home/user/granary/granary; name a directory that you may read with XDG_STATE_HOME"
        );
    }

    #[test]
    fn a_lock_is_held_by_one_and_ends_with_its_descriptor() {
        let directory = tempfile::tempdir().unwrap();
        let place = Root(directory.path().to_owned()).place(&ClusterName::default());
        let lock = place.lock().unwrap();
        assert!(matches!(place.lock(), Err(LaunchError::InUse { .. })));
        let inherited = lock.0.try_clone().unwrap();
        drop(lock);
        assert!(matches!(place.lock(), Err(LaunchError::InUse { .. })));
        drop(inherited);
        // A lock on a deleted directory does not block the lock of a new directory.
        let deleted = place.lock().unwrap();
        fs::remove_dir(&place.directory).unwrap();
        place.lock().unwrap();
        drop(deleted);
    }
}
