//! Properties of file systems.

use crate::CheckError;
use crate::finding::{Inspect, Space};
use nix::sys::statvfs::{FsFlags, Statvfs, statvfs};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

pub(crate) fn of(path: &Path) -> Result<Space, CheckError> {
    Ok(space(&stat(path)?))
}

pub(crate) fn inspect(path: &Path) -> Result<Inspect, CheckError> {
    let file_system = stat(path)?;
    let metadata = path.metadata().map_err(CheckError::of("stat", path))?;
    let flags = file_system.flags();
    let known = [
        (FsFlags::ST_RDONLY, "ro"),
        (FsFlags::ST_NOSUID, "nosuid"),
        (FsFlags::ST_NODEV, "nodev"),
        (FsFlags::ST_NOEXEC, "noexec"),
    ];
    Ok(Inspect {
        space: space(&file_system),
        flags: known.iter().filter(|(flag, _)| flags.contains(*flag)).map(|(_, name)| (*name).to_owned()).collect(),
        uid: metadata.uid(),
        gid: metadata.gid(),
        mode: format!("{:04o}", metadata.mode() & 0o7777),
    })
}

fn stat(path: &Path) -> Result<Statvfs, CheckError> {
    statvfs(path).map_err(CheckError::of("statvfs", path))
}

fn space(file_system: &Statvfs) -> Space {
    Space {
        size: file_system.blocks() * file_system.fragment_size(),
        free: file_system.blocks_available() * file_system.fragment_size(),
        inodes: file_system.files(),
        inodes_free: file_system.files_available(),
    }
}
