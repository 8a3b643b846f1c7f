//! The directory of one run, which is gone afterwards, however the run ends.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use tempfile::TempDir;

/// First argument of the copy of this program that sweeps up. A directory follows.
const SWEEP: &str = "--sweep-up";
/// Directories of this name are swept up, and no others.
const PREFIX: &str = "granary-";

/// A temporary directory. A second process removes it if this one is killed: there is an administrator's key in it.
#[derive(Debug)]
pub(crate) struct Workspace {
    directory: TempDir,
    sweeper: Child,
}

impl Workspace {
    pub(crate) fn make() -> io::Result<Self> {
        let directory = tempfile::Builder::new().prefix(PREFIX).tempdir()?;
        // In a process group of its own: neither Ctrl-C nor a terminal's end are for it.
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

    /// Removes the directory. What a thread still writes there is swept up when this process has ended.
    pub(crate) fn remove(mut self) {
        if self.directory.close().is_ok() {
            // Nothing is left to sweep.
            _ = self.sweeper.kill();
            _ = self.sweeper.wait();
        }
    }
}

/// What the second process does; `None` in the first.
pub(crate) fn sweep() -> Option<ExitCode> {
    let mut arguments = env::args_os().skip(1);
    if arguments.next()? != SWEEP {
        return None;
    }
    let directory = arguments.next().map(PathBuf::from).filter(|path| is_ours(path));
    Some(match directory.map(|path| until_orphaned(&mut io::stdin(), &path)) {
        Some(Ok(())) => ExitCode::SUCCESS,
        Some(Err(_)) | None => ExitCode::FAILURE,
    })
}

fn is_ours(directory: &Path) -> bool {
    directory.file_name().and_then(OsStr::to_str).is_some_and(|name| name.starts_with(PREFIX))
}

/// The stream ends with the process that holds its other end.
fn until_orphaned(parent: &mut impl io::Read, directory: &Path) -> io::Result<()> {
    io::copy(parent, &mut io::sink())?;
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_directories_of_this_program_are_swept_up() {
        assert!(is_ours(Path::new("/tmp/granary-Xy0")));
        for other in ["/", "/etc", "/tmp/granary-a/..", "granary", ""] {
            assert!(!is_ours(Path::new(other)), "{other:?}");
        }
    }

    #[test]
    fn the_directory_is_swept_up_when_the_stream_ends() {
        let directory = tempfile::tempdir().unwrap().keep();
        fs::write(directory.join("kubeconfig"), "key").unwrap();
        until_orphaned(&mut io::empty(), &directory).unwrap();
        assert!(!directory.exists());
        until_orphaned(&mut io::empty(), &directory).unwrap();
    }
}
