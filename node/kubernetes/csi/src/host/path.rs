//! Opens paths of the kubelet, and creates, unmounts and removes targets.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use dir::{Dir, Name};
use mount::{Kind, UnmountError};
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, openat2};
use nix::sys::stat::{Mode as Permissions, mkdirat};

use super::{ActError, LookError};
use crate::plan::Shape;
use crate::request::TargetPath;

pub(super) const HANDLE: OFlag = OFlag::O_PATH.union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);
/// Without `O_NOFOLLOW`, so that links (`ELOOP`) differ from files (`ENOTDIR`).
pub(super) const DIRECTORY: OFlag = OFlag::O_PATH.union(OFlag::O_DIRECTORY).union(OFlag::O_CLOEXEC);
const TARGET_DIRECTORY: Permissions = Permissions::S_IRWXU.union(Permissions::S_IRGRP).union(Permissions::S_IXGRP);
const TARGET_FILE: Permissions = Permissions::S_IRUSR.union(Permissions::S_IWUSR);
/// Time for other processes to close their files at the target, and the interval of attempts.
const BUSY: Duration = Duration::from_millis(200);
const PAUSE: Duration = Duration::from_millis(5);

/// Opens a path, through mounts but never through a symbolic link. With [`HANDLE`], a final link itself is opened.
pub(super) fn open(path: &Path, flags: OFlag) -> Result<OwnedFd, Errno> {
    let scope = ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_MAGICLINKS;
    openat2(AT_FDCWD, path, OpenHow::new().flags(flags).resolve(scope))
}

/// Like [`open`], but never outside the directory `beneath`.
pub(super) fn resolve(beneath: impl AsFd, path: &Path, flags: OFlag) -> Result<OwnedFd, Errno> {
    let scope = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_MAGICLINKS;
    openat2(beneath, path, OpenHow::new().flags(flags).resolve(scope))
}

/// Resolves the whole path for each call: the kubelet may mount its directory on itself when it starts, which hides
/// mounts below an older descriptor.
pub(super) fn parent(target: &TargetPath) -> Result<Option<OwnedFd>, LookError> {
    let Some(parent) = target.full().parent() else { return Ok(None) };
    match open(parent, DIRECTORY) {
        Ok(parent) => Ok(Some(parent)),
        Err(Errno::ENOENT | Errno::ENOTDIR) => Ok(None),
        Err(Errno::ELOOP) => Err(LookError::Link { parent: parent.to_owned() }),
        Err(errno) => Err(LookError::Parent(errno)),
    }
}

pub(super) fn create(parent: &Dir, name: &Name, shape: Shape) -> Result<(), ActError> {
    let made = match shape {
        Shape::Directory => mkdirat(parent, name.as_os_str(), TARGET_DIRECTORY),
        Shape::File => {
            let flags = OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_RDONLY | OFlag::O_CLOEXEC;
            parent.open_file(name, flags, TARGET_FILE).map(drop).map_err(|error| error.errno())
        }
    };
    match made {
        Ok(()) | Err(Errno::EEXIST) => Ok(()),
        Err(Errno::ENOENT) => Err(ActError::ParentGone),
        Err(errno) => Err(ActError::Create(errno)),
    }
}

/// Retries: reading the statistics of a target keeps it busy for a moment.
pub(super) fn unmount(parent: &Dir, name: &Name) -> Result<(), ActError> {
    let begin = Instant::now();
    loop {
        match mount::unmount_beneath(parent, name.as_os_str()) {
            Ok(()) | Err(UnmountError::NotMounted | UnmountError::Absent) => return Ok(()),
            Err(UnmountError::Busy) if begin.elapsed() < BUSY => sleep(PAUSE),
            Err(UnmountError::Busy) => return Err(ActError::Busy),
            Err(error @ (UnmountError::Name | UnmountError::Kernel(_))) => return Err(ActError::Unmount(error)),
        }
    }
}

/// Removes a directory or file that is empty.
pub(super) fn remove(parent: &Dir, name: &Name) -> Result<(), ActError> {
    let removed = match parent.remove_dir(name) {
        Err(error) if error.errno() == Errno::ENOTDIR => {
            let empty = resolve(parent, Path::new(name.as_os_str()), HANDLE).map_err(ActError::Open)?;
            let place = mount::at(&empty)?;
            drop(empty);
            match place {
                mount::Place { mounted: Some(_), .. } => return Err(ActError::Busy),
                mount::Place { kind: Kind::File, size: 0, .. } => parent.remove_file(name),
                _ => return Err(ActError::NotEmpty),
            }
        }
        other => other,
    };
    removed.or_else(|error| match error.errno() {
        Errno::ENOENT => Ok(()),
        Errno::ENOTEMPTY | Errno::EEXIST => Err(ActError::NotEmpty),
        Errno::EBUSY => Err(ActError::Busy),
        _ => Err(ActError::Remove(error)),
    })
}
