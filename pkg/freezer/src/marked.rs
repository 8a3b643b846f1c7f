//! Cgroups that an earlier run left frozen.

use std::fs;
use std::path::{Path, PathBuf};

use crate::cgroup::Cgroup;
use crate::error::FreezeError;

/// Maximum number of levels below the root. Kubernetes uses four, container runtimes in pods a few more.
const LEVELS: usize = 16;

/// Thaws all cgroups below `root` that have [`MARK`](crate::MARK), up to 16 levels deep, and removes the mark. Returns
/// their paths. Other cgroups stay as they are, frozen or not. Call this function at the start, before the first
/// [`freeze`](crate::freeze).
///
/// # Errors
/// The first error that occurred; all other cgroups are thawed nevertheless.
pub fn thaw_marked(root: &Path) -> Result<Vec<PathBuf>, FreezeError> {
    let (mut thawed, mut first) = (Vec::new(), Ok(()));
    visit(root, LEVELS, &mut |path| {
        let done = thaw(path).map(|is_thawed| is_thawed.then(|| thawed.push(path.to_owned())));
        if first.is_ok() {
            first = done.map(drop);
        }
    });
    first.map(|()| thawed)
}

fn thaw(path: &Path) -> Result<bool, FreezeError> {
    match Cgroup::open(path)? {
        Some(cgroup) if cgroup.is_marked() => cgroup.thaw().map(|()| true),
        Some(_) | None => Ok(false),
    }
}

/// Calls `act` for each directory below `dir`. A directory that disappears meanwhile, or cannot be read, has nothing to
/// thaw.
fn visit(dir: &Path, levels: usize, act: &mut impl FnMut(&Path)) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    let directories = entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    for path in directories.map(|entry| entry.path()).collect::<Vec<_>>() {
        act(&path);
        if levels > 1 {
            visit(&path, levels - 1, act);
        }
    }
}
