//! Directories of volumes, mounted on directories.

use std::path::Path;

use dir::{Dir, Name};
use fsquota::FsError;
use mount::{Attributes, Detached, Identity};
use nix::errno::Errno;
use nix::fcntl::OFlag;
use volume::Announced;

use super::linux::{DIRECTORY, open};
use super::{ActError, LookError, PathContents};
use crate::plan::Elsewhere;
use crate::request::TargetPath;

pub(super) fn bind(volume: &Dir, parent: &Dir, name: &Name, attributes: Attributes) -> Result<(), ActError> {
    let mount = Detached::clone_of(volume)?;
    mount.set(attributes)?;
    Ok(mount.attach_at(parent, name.as_os_str())?)
}

/// Three system calls, whatever the number of mounts: only the volume's directory has its project.
pub(super) fn inspect(volume: &Announced, path: &TargetPath) -> Result<PathContents, LookError> {
    // Opened for reading, to read the project. Only a directory: opening it has no side effect.
    let target = match open(path.full(), OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC) {
        Ok(target) => target,
        Err(Errno::ENOENT | Errno::ENOTDIR) => return Ok(PathContents::Nothing),
        Err(Errno::ELOOP) => return Err(LookError::Link { parent: path.full().to_owned() }),
        Err(errno) => return Err(LookError::Target(errno)),
    };
    match volume.holds(&target) {
        Ok(true) => Ok(PathContents::Filesystem(volume.quota()?)),
        // Not of a file system with projects.
        Ok(false) | Err(FsError::System { source: Errno::ENOTTY | Errno::EOPNOTSUPP, .. }) => Ok(PathContents::Nothing),
        Err(error) => Err(error.into()),
    }
}

/// Whether the volume is mounted below the kubelet's directory at another path. Only the table of all mounts has that.
pub(super) fn elsewhere(kubelet: &Path, volume: Identity, target: &TargetPath) -> Result<Elsewhere, LookError> {
    let elsewhere = |entry: &&mount::Entry| {
        entry.device == volume.device && entry.point != target.full() && entry.point.starts_with(kubelet)
    };
    for entry in mount::table()?.iter().filter(elsewhere) {
        // Another mount may hide this one.
        let Ok(top) = open(&entry.point, DIRECTORY) else { continue };
        if mount::identity(&top)? == volume {
            return Ok(Elsewhere::Published);
        }
    }
    Ok(Elsewhere::Nowhere)
}
