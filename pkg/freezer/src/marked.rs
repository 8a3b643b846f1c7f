//! Cgroups that an earlier run left frozen.

use std::fs::{self, DirEntry};
use std::io;
use std::path::{Path, PathBuf};

use crate::cgroup::{Cgroup, failed, is_gone};
use crate::error::{FreezeError, Operation};

/// Maximum number of levels below the root. Kubernetes uses four, container runtimes in pods a few more.
const LEVELS: usize = 16;

/// Thaws all cgroups below `root` that have [`MARK`](crate::MARK), up to 16 levels deep, and removes the mark. Calls
/// `thawed` with the path of each. Other cgroups stay as they are, frozen or not. Call this function at the start,
/// before the first [`freeze`](crate::freeze).
///
/// # Errors
/// The first error that occurred, on a cgroup or while a directory was read; all other cgroups are thawed nevertheless.
/// A missing `root` is not an error.
pub fn thaw_marked(root: &Path, mut thawed: impl FnMut(&Path)) -> Result<(), FreezeError> {
    thaw_below(root, LEVELS, &mut thawed)
}

/// Thaws the marked cgroups below `dir`, even after an error. Returns the first error.
fn thaw_below(dir: &Path, levels: usize, thawed: &mut dyn FnMut(&Path)) -> Result<(), FreezeError> {
    // The directory is closed before those below it are opened.
    let listed: Vec<io::Result<PathBuf>> = match fs::read_dir(dir) {
        Ok(entries) => entries.filter_map(directory).collect(),
        Err(error) => vec![Err(error)],
    };
    let mut first = Ok(());
    for path in listed {
        first = first.and(match path {
            Ok(path) => {
                let done = thaw(&path);
                if matches!(done, Ok(true)) {
                    thawed(&path);
                }
                done.and(if levels > 1 { thaw_below(&path, levels - 1, thawed) } else { Ok(()) })
            }
            // A cgroup that was removed meanwhile has nothing to thaw.
            Err(error) if is_gone(&error) => Ok(()),
            Err(error) => Err(failed(Operation::Open, dir, &error)),
        });
    }
    first
}

/// The path of the entry if it is a directory.
fn directory(entry: io::Result<DirEntry>) -> Option<io::Result<PathBuf>> {
    entry.and_then(|entry| Ok(entry.file_type()?.is_dir().then(|| entry.path()))).transpose()
}

fn thaw(path: &Path) -> Result<bool, FreezeError> {
    Cgroup::open(path)?.map_or(Ok(false), |cgroup| cgroup.thaw_marked())
}

#[cfg(test)]
mod tests {
    use nix::errno::Errno;

    use super::*;

    fn none(path: &Path) {
        panic!("{} was thawed", path.display());
    }

    /// Regression: a directory that could not be read counted as one without marked cgroups.
    #[test]
    fn a_directory_that_cannot_be_read_is_an_error() {
        let unreadable = thaw_marked(Path::new("/proc/self/status"), none);
        assert!(matches!(unreadable, Err(FreezeError::Cgroup { errno: Errno::ENOTDIR, .. })), "{unreadable:?}");
        thaw_marked(Path::new("/proc/self/missing"), none).unwrap();
    }
}
