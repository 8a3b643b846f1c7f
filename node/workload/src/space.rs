//! What a file system shows of itself, and the wait for the end.

use crate::CheckError;
use crate::finding::{Inspect, Space};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::statvfs::{FsFlags, Statvfs, statvfs};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Size and inodes of the file system that `path` is on.
pub(crate) fn of(path: &Path) -> Result<Space, CheckError> {
    Ok(space(&stat(path)?))
}

/// The path and the file system that it is on.
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

/// Returns at SIGTERM or SIGINT. PID 1 of a container gets neither unless it asks for them.
pub(crate) fn wait_for_the_end() -> Result<(), CheckError> {
    let signals = SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM]);
    let path = Path::new("signals");
    signals.thread_block().map_err(CheckError::of("block", path))?;
    signals.wait().map_err(CheckError::of("wait for", path))?;
    Ok(())
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
