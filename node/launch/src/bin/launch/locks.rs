//! Locks of kubeconfigs. Launchers lock the directory, kubectl creates a lock file.

use crate::kubeconfig_error::Cause;
use nix::errno::Errno;
use std::collections::BTreeSet;
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Time limit of a lock. kubectl and launchers hold their locks for milliseconds.
pub(crate) const LOCK_LIMIT: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(20);

/// Locks the directory of a kubeconfig (flock(2)). The lock also excludes other descriptors of this process.
pub(crate) fn turn(directory: &Path, limit: Duration) -> Result<File, Cause> {
    let file = File::open(directory)?;
    let start = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::Error(error)) if is_unsupported(&error) => {
                return Err(Cause::NoLocks { directory: directory.to_owned(), source: error });
            }
            Err(TryLockError::Error(error)) => return Err(Cause::File(error)),
            Err(TryLockError::WouldBlock) if start.elapsed() < limit => sleep(PAUSE),
            Err(TryLockError::WouldBlock) => return Err(Cause::Directory { directory: directory.to_owned() }),
        }
    }
}

/// Whether the file system does not support flock(2), such as NFS from a server without locks, or FUSE.
pub(crate) fn is_unsupported(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw);
    matches!(errno, Some(Errno::ENOLCK | Errno::EOPNOTSUPP | Errno::ENOSYS))
}

/// Lock file of a kubeconfig for kubectl and other programs with client-go: `lockFile` in
/// client-go/tools/clientcmd/loader.go.
pub(crate) struct KubectlLock(PathBuf);

impl Drop for KubectlLock {
    fn drop(&mut self) {
        _ = fs::remove_file(&self.0);
    }
}

/// Locks the file and the link that leads to it, in the order of their names, because kubectl locks the path that it is
/// given.
pub(crate) fn lock(named: &Path, target: &Path, limit: Duration) -> Result<Vec<KubectlLock>, Cause> {
    let mut paths = BTreeSet::new();
    for path in [named, target] {
        let found = path.parent().zip(path.file_name());
        let (directory, name) = found.ok_or(io::ErrorKind::InvalidInput).map_err(io::Error::from)?;
        let mut name = name.to_owned();
        name.push(".lock");
        paths.insert(fs::canonicalize(directory)?.join(name));
    }
    let start = Instant::now();
    let take = |path: PathBuf| loop {
        match File::create_new(&path) {
            Ok(_) => return Ok(KubectlLock(path)),
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(Cause::File(error)),
            Err(_) if start.elapsed() >= limit => return Err(Cause::Locked { lock: path }),
            Err(_) => sleep(PAUSE),
        }
    };
    paths.into_iter().map(take).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn errors_of_file_systems_without_locks_are_recognized() {
        for errno in [Errno::ENOLCK, Errno::EOPNOTSUPP, Errno::ENOSYS] {
            assert!(is_unsupported(&errno.into()), "{errno}");
        }
        for errno in [Errno::EINTR, Errno::EBADF, Errno::EIO] {
            assert!(!is_unsupported(&errno.into()), "{errno}");
        }
    }

    #[test]
    fn link_and_file_are_locked_once_each() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        let path = |name: &str| root.join(name);
        fs::create_dir(path("dotfiles")).unwrap();
        symlink("dotfiles", path("alias")).unwrap();
        symlink("dotfiles/config", path("config")).unwrap();
        let (file, lock_of_file, lock_of_link) =
            (path("dotfiles/config"), path("dotfiles/config.lock"), path("config.lock"));
        for (named, wanted) in [
            (path("config"), vec![lock_of_link.clone(), lock_of_file.clone()]),
            (path("alias/config"), vec![lock_of_file.clone()]),
            (file.clone(), vec![lock_of_file.clone()]),
        ] {
            let locks = lock(&named, &file, Duration::ZERO).unwrap();
            assert_eq!(locks.iter().map(|lock| lock.0.clone()).collect::<Vec<_>>(), wanted, "{named:?}");
            assert!(wanted.iter().all(|lock| lock.exists()), "{named:?}");
            let Err(Cause::Locked { lock: found }) = lock(&named, &file, Duration::ZERO) else { panic!("{named:?}") };
            assert_eq!(found, wanted[0]);
            drop(locks);
            assert!(!wanted.iter().any(|lock| lock.exists()), "{named:?}");
        }
        // The lock of the link, which was taken first, is released when the second lock fails.
        fs::write(&lock_of_file, "").unwrap();
        let error = lock(&path("config"), &file, Duration::ZERO).err().unwrap().to_string();
        assert!(error.contains(&format!("{} exists", lock_of_file.display())), "{error}");
        assert!(lock_of_file.exists() && !lock_of_link.exists());
    }
}
