//! Directories of volumes, mounted on directories.

use std::path::Path;

use dir::{Dir, Name};
use fsquota::FsError;
use mount::{Attributes, Detached, Identity};
use nix::errno::Errno;
use nix::fcntl::OFlag;
use volume::Announced;

use super::linux::{DIRECTORY, open};
use super::{ActError, Found, LookError};
use crate::plan::Elsewhere;
use crate::request::TargetPath;

/// Mounts the directory of a volume on another one.
pub(super) fn bind(volume: &Dir, parent: &Dir, name: &Name, attributes: Attributes) -> Result<(), ActError> {
    let mount = Detached::clone_of(volume)?;
    mount.set(attributes)?;
    Ok(mount.attach_at(parent, name.as_os_str())?)
}

/// Three system calls, whatever else there is: no other directory below kubelet's has the volume's project.
pub(super) fn inspect(volume: &Announced, path: &TargetPath) -> Result<Found, LookError> {
    // Open for reading, for the project. What hangs or does something when it is opened is no directory.
    let target = match open(path.full(), OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC) {
        Ok(target) => target,
        Err(Errno::ENOENT | Errno::ENOTDIR) => return Ok(Found::Nothing),
        Err(Errno::ELOOP) => return Err(LookError::Link { parent: path.full().to_owned() }),
        Err(errno) => return Err(LookError::Target(errno)),
    };
    match volume.holds(&target) {
        Ok(true) => Ok(Found::Filesystem(volume.quota()?)),
        // Not of a file system with projects.
        Ok(false) | Err(FsError::System { source: Errno::ENOTTY | Errno::EOPNOTSUPP, .. }) => Ok(Found::Nothing),
        Err(error) => Err(error.into()),
    }
}

/// Whether the volume is mounted beneath kubelet's directory at another path than this. The kernel has no question for
/// that but its table of all mounts.
pub(super) fn elsewhere(kubelet: &Path, volume: Identity, target: &TargetPath) -> Result<Elsewhere, LookError> {
    let elsewhere = |entry: &&mount::Entry| {
        entry.device == volume.device && entry.point != target.full() && entry.point.starts_with(kubelet)
    };
    for entry in mount::table()?.iter().filter(elsewhere) {
        // The table says what is mounted there, not what can be seen there.
        let Ok(top) = open(&entry.point, DIRECTORY) else { continue };
        if mount::identity(&top)? == volume {
            return Ok(Elsewhere::Published);
        }
    }
    Ok(Elsewhere::Nowhere)
}
