//! Temporary directory of a run. A second process removes it if the launcher is killed.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use tempfile::TempDir;

/// First argument of the sweeper process. The second argument is the directory.
const SWEEP: &str = "--sweep-up";
/// Prefix of the temporary directories. The sweeper removes no other directory.
const PREFIX: &str = "granary-";

/// A temporary directory. Only its owner can read it, and the sweeper process removes it if this process is killed,
/// because the directory contains keys of the cluster.
#[derive(Debug)]
pub(crate) struct Workspace {
    directory: TempDir,
    sweeper: Child,
}

impl Workspace {
    pub(crate) fn create(place: &Path) -> io::Result<Self> {
        let directory = private_directory(place)?;
        // Start the sweeper in another process group, which receives neither Ctrl-C nor SIGHUP.
        let sweeper = Command::new("/proc/self/exe")
            .arg(SWEEP)
            .arg(directory.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()?;
        Ok(Self { directory, sweeper })
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Removes the directory. If a thread still writes there, the sweeper removes the directory later.
    pub(crate) fn remove(mut self) {
        if self.directory.close().is_ok() {
            _ = self.sweeper.kill();
            _ = self.sweeper.wait();
        }
    }
}

/// Directory for temporary directories. bazelw passes the user's `TMPDIR` as `GRANARY_TMPDIR`.
pub(crate) fn temporary(variable: impl Fn(&str) -> Option<OsString>) -> PathBuf {
    let renamed = variable("GRANARY_TMPDIR").map(PathBuf::from).filter(|path| path.is_absolute());
    renamed.unwrap_or_else(env::temp_dir)
}

/// Creates a directory with mode 0700. By default, the umask would decide its mode.
fn private_directory(place: &Path) -> io::Result<TempDir> {
    tempfile::Builder::new().prefix(PREFIX).permissions(Permissions::from_mode(0o700)).tempdir_in(place)
}

/// Main function of the sweeper process; `None` in the launcher.
pub(crate) fn sweep() -> Option<ExitCode> {
    let mut arguments = env::args_os().skip(1);
    if arguments.next()? != SWEEP {
        return None;
    }
    let directory = arguments.next().map(PathBuf::from).filter(|path| has_prefix(path));
    Some(match directory.map(|path| remove_after(&mut io::stdin(), &path)) {
        Some(Ok(())) => ExitCode::SUCCESS,
        Some(Err(_)) | None => ExitCode::FAILURE,
    })
}

fn has_prefix(directory: &Path) -> bool {
    directory.file_name().and_then(OsStr::to_str).is_some_and(|name| name.starts_with(PREFIX))
}

/// Removes the directory when the launcher ends, which closes the stream.
fn remove_after(parent: &mut impl io::Read, directory: &Path) -> io::Result<()> {
    io::copy(parent, &mut io::sink())?;
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression test: other users of the machine could read the data disk, which contains the key of the cluster's
    /// CA.
    #[test]
    fn only_the_owner_can_read_the_directory() {
        let place = tempfile::tempdir().unwrap();
        let directory = private_directory(place.path()).unwrap();
        assert_eq!(directory.path().parent(), Some(place.path()));
        assert!(has_prefix(directory.path()));
        assert_eq!(directory.path().metadata().unwrap().permissions().mode() & 0o777, 0o700);
    }

    /// Regression test: the remedy for a full disk, another `TMPDIR`, had no effect with bazelw.
    #[test]
    fn the_place_is_that_of_bazelw_or_of_the_system() {
        let place =
            |renamed: Option<&str>| temporary(|name| renamed.filter(|_| name == "GRANARY_TMPDIR").map(OsString::from));
        assert_eq!(place(Some("/big")), Path::new("/big"));
        for other in [None, Some(""), Some("relative")] {
            assert_eq!(place(other), env::temp_dir(), "{other:?}");
        }
    }

    #[test]
    fn only_directories_with_the_prefix_are_removed() {
        assert!(has_prefix(Path::new("/tmp/granary-Xy0")));
        for other in ["/", "/etc", "/tmp/granary-a/..", "granary", ""] {
            assert!(!has_prefix(Path::new(other)), "{other:?}");
        }
    }
}
