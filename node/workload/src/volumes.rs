//! The node's side of its volumes.

use crate::CheckError;
use crate::finding::{Entry, Project, Volumes};
use std::fs::{self, File};
use std::io;
use std::path::Path;

/// How deep directories are looked into: places of the store, and volumes in them.
const DEPTH: usize = 2;

/// Lists names and projects.
pub(crate) fn list(directory: &Path) -> Result<Volumes, CheckError> {
    let mut entries = Vec::new();
    walk(directory, directory, DEPTH, &mut entries)?;
    entries.sort_by(|one, other| one.path.cmp(&other.path));
    let open = File::open(directory).map_err(CheckError::of("open", directory))?;
    let projects = fsquota::report(&open)
        .and_then(|report| report.map(|quota| quota.map(project)).collect())
        .map_err(|error| CheckError::of("list the projects of", directory)(io::Error::other(error)))?;
    Ok(Volumes { entries, projects })
}

fn walk(root: &Path, directory: &Path, depth: usize, entries: &mut Vec<Entry>) -> Result<(), CheckError> {
    for entry in fs::read_dir(directory).map_err(CheckError::of("list", directory))? {
        let path = entry.map_err(CheckError::of("list", directory))?.path();
        let metadata = match path.symlink_metadata() {
            Ok(metadata) => metadata,
            // Volumes come and go meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(CheckError::of("stat", &path)(error)),
        };
        let name = path.strip_prefix(root).unwrap_or(&path).display().to_string();
        let mut project = None;
        if metadata.is_dir() {
            let open = File::open(&path).map_err(CheckError::of("open", &path))?;
            let found = fsquota::project(&open)
                .map_err(|error| CheckError::of("find the project of", &path)(io::Error::other(error)))?;
            project = found.map(fsquota::ProjectId::get);
            if depth > 1 {
                walk(root, &path, depth - 1, entries)?;
            }
        }
        entries.push(Entry { path: name, project });
    }
    Ok(())
}

fn project(quota: fsquota::Quota) -> Project {
    Project {
        id: quota.id.get(),
        bytes: quota.limits.bytes.map(units::Bytes::get),
        inodes: quota.limits.inodes.map(units::Inodes::get),
    }
}
