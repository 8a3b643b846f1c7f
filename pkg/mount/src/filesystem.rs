use std::path::Path;

use nix::errno::Errno;
use nix::mount::{MsFlags, mount};

use crate::error::FilesystemError;

/// Arguments of mount(2).
#[derive(Clone, Copy, Debug)]
pub struct Filesystem<'a> {
    /// Type: `xfs`, `tmpfs`, `proc`.
    pub kind: &'a str,
    /// Device, or the name that `/proc/mounts` shows for file systems without one.
    pub source: &'a Path,
    /// Mount point, an existing directory.
    pub target: &'a Path,
    /// Flags that apply to all file systems.
    pub flags: MsFlags,
    /// Options of the file system type, separated by commas.
    pub data: &'a str,
}

/// Mounts a file system. mount(2).
pub fn filesystem(what: Filesystem<'_>) -> Result<(), FilesystemError> {
    let Filesystem { kind, source, target, flags, data } = what;
    let data = (!data.is_empty()).then_some(data);
    mount(Some(source), target, Some(kind), flags, data).map_err(|errno| {
        let (kind, target) = (kind.to_owned(), target.to_owned());
        match errno {
            Errno::ENODEV => FilesystemError::UnknownKind { kind },
            Errno::ENOENT => FilesystemError::Absent { kind, target },
            Errno::EBUSY => FilesystemError::Busy { kind, target },
            Errno::EINVAL => FilesystemError::Rejected { kind, target },
            errno => FilesystemError::Kernel { kind, target, errno },
        }
    })
}
