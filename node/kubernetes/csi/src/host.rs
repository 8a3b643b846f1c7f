//! The disk and the mounts: looks, and does single steps. Decides nothing.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use dir::{Dir, Mode, Name};
use fsquota::{FsError, GetError, Quota};
use mount::{AttachError, Attributes, CloneError, Detached, Identity, Kind, SetError, TableError, UnmountError};
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, openat2};
use nix::sys::stat::mkdirat;
use volume::{OpenError, Store};

use crate::plan::{Elsewhere, Seen, Step, Target, Volume};
use crate::request::{Question, Sharing, TargetPath};

/// What a call needs of the machine. All of it waits for the disk or the kernel.
pub trait Host: Send + Sync + 'static {
    /// What was opened by a look, so that the steps after it are done to what was looked at.
    type At: Send;

    /// Whether volumes can be served now.
    ///
    /// # Errors
    /// [`ReadyError`]: the volumes directory cannot be used.
    fn ready(&self) -> Result<(), ReadyError>;

    /// Looks at a volume and a target.
    ///
    /// # Errors
    /// [`LookError`].
    fn look(&self, question: Question<'_>) -> Result<(Self::At, Seen), LookError>;

    /// Does one step.
    ///
    /// # Errors
    /// [`ActError`].
    fn act(&self, at: &Self::At, step: Step) -> Result<(), ActError>;

    /// Limits and usage of the volume that was looked at.
    ///
    /// # Errors
    /// [`QuotaError`].
    fn quota(&self, at: &Self::At) -> Result<Quota, QuotaError>;
}

/// The volumes directory cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("the volumes directory cannot be used")]
pub struct ReadyError(#[from] volume::LookError);

/// Nothing can be said about a volume or its target.
#[derive(Debug, thiserror::Error)]
pub enum LookError {
    /// kubelet's own directory cannot be opened.
    #[error("cannot open kubelet's directory")]
    Kubelet(#[source] Errno),
    /// The volume's directory cannot be opened.
    #[error(transparent)]
    Volume(OpenError),
    /// The way to the target leads through a symbolic link, or out of kubelet's directory.
    #[error("{} is, or leads through, a symbolic link", parent.display())]
    Link {
        /// The directory that should hold the target, relative to kubelet's.
        parent: PathBuf,
    },
    /// The directory that should hold the target cannot be opened.
    #[error("cannot open the directory that should hold it")]
    Parent(#[source] Errno),
    /// The target cannot be opened.
    #[error("cannot open it")]
    Target(#[source] Errno),
    /// The kernel does not say what is mounted there.
    #[error("cannot see what is mounted")]
    Place(#[from] mount::LookError),
    /// The table of mounts cannot be read.
    #[error("cannot see where else the volume is mounted")]
    Mounts(#[from] TableError),
}

/// A step failed.
#[derive(Debug, thiserror::Error)]
pub enum ActError {
    /// The volume was deleted since it was looked at.
    #[error("the volume was deleted meanwhile")]
    VolumeGone,
    /// The directory that holds the target was deleted since it was looked at.
    #[error("the directory that holds the target was deleted meanwhile")]
    ParentGone,
    /// The target directory cannot be made.
    #[error("cannot make the target directory")]
    Make(#[source] Errno),
    /// The target cannot be opened.
    #[error("cannot open the target")]
    Open(#[source] Errno),
    /// The volume's mount cannot be made.
    #[error("cannot prepare the mount")]
    Clone(#[from] CloneError),
    /// The mount does not take its flags.
    #[error("cannot set the mount's flags")]
    Set(#[from] SetError),
    /// The mount cannot be attached.
    #[error("cannot attach the mount")]
    Attach(#[from] AttachError),
    /// Programs on the node still use the volume through this target.
    #[error("the volume is still in use there")]
    Busy,
    /// The mount cannot be taken away.
    #[error("cannot unmount it")]
    Unmount(#[source] UnmountError),
    /// Files that are not the volume's are in the target directory.
    #[error("the target directory holds files that are not the volume's; look at them, then remove them")]
    NotEmpty,
    /// The target directory cannot be removed.
    #[error("cannot remove the target directory")]
    Remove(#[source] dir::Error),
}

/// There is no telling how full a volume is.
#[derive(Debug, thiserror::Error)]
pub enum QuotaError {
    /// The volume was deleted since it was looked at.
    #[error("the volume was deleted meanwhile")]
    Gone,
    /// The file system does not say.
    #[error("the file system does not say")]
    Read(#[source] GetError),
}

/// The node that this runs on.
#[derive(Clone, Debug)]
pub struct Linux {
    kubelet: PathBuf,
    volumes: Arc<Store>,
}

/// What [`Linux`] opened: everything after the look goes through these.
#[derive(Debug)]
pub struct Opened {
    volume: Option<Dir>,
    parent: Option<Dir>,
    name: Name,
}

const HANDLE: OFlag = OFlag::O_PATH.union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);
/// Without `O_NOFOLLOW`, so that `RESOLVE_NO_SYMLINKS` tells a link (`ELOOP`) from a file (`ENOTDIR`).
const DIRECTORY: OFlag = OFlag::O_PATH.union(OFlag::O_DIRECTORY).union(OFlag::O_CLOEXEC);
/// Of the target directory, until something is mounted on it.
const TARGET_MODE: Mode = Mode::S_IRWXU.union(Mode::S_IRGRP).union(Mode::S_IXGRP);

impl Linux {
    /// `kubelet` is kubelet's root directory. It lies on the file system that the volumes are on.
    pub fn new(kubelet: impl Into<PathBuf>, volumes: Arc<Store>) -> Self {
        Self { kubelet: kubelet.into(), volumes }
    }

    /// kubelet may mount its directory on itself when it starts: a descriptor from before would be below that mount,
    /// and what is mounted there out of kubelet's sight. So it is opened for every call.
    fn kubelet(&self) -> Result<OwnedFd, LookError> {
        let how = OpenHow::new().flags(DIRECTORY).resolve(ResolveFlag::RESOLVE_NO_SYMLINKS);
        openat2(AT_FDCWD, &self.kubelet, how).map_err(LookError::Kubelet)
    }

    /// Whether the volume is mounted beneath kubelet's directory at another path than this.
    fn elsewhere(&self, kubelet: &OwnedFd, volume: Identity, target: &TargetPath) -> Result<Elsewhere, LookError> {
        let elsewhere = |entry: &&mount::Entry| entry.device == volume.device && entry.point != target.full();
        for entry in mount::table()?.iter().filter(elsewhere) {
            let Ok(beneath) = entry.point.strip_prefix(&self.kubelet) else { continue };
            // The table says what is mounted there, not what can be seen there.
            let Ok(top) = resolve(kubelet, beneath, DIRECTORY) else { continue };
            if mount::identity(&top)? == volume {
                return Ok(Elsewhere::Published);
            }
        }
        Ok(Elsewhere::Nowhere)
    }
}

impl Host for Linux {
    type At = Opened;

    fn ready(&self) -> Result<(), ReadyError> {
        self.volumes.space().map(drop).map_err(ReadyError)
    }

    fn look(&self, Question { volume, target, sharing }: Question<'_>) -> Result<(Opened, Seen), LookError> {
        let kubelet = self.kubelet()?;
        let found = match self.volumes.open_volume(volume) {
            Ok(opened) => Some((mount::identity(&opened)?, opened)),
            Err(OpenError::Unknown { .. }) => None,
            Err(error @ OpenError::Dir { .. }) => return Err(LookError::Volume(error)),
        };
        let parent = match resolve(&kubelet, target.parent(), DIRECTORY) {
            Ok(parent) => Some(parent),
            Err(Errno::ENOENT | Errno::ENOTDIR) => None,
            Err(Errno::ELOOP | Errno::EXDEV) => return Err(LookError::Link { parent: target.parent().to_owned() }),
            Err(errno) => return Err(LookError::Parent(errno)),
        };
        let identity = found.as_ref().map(|(identity, _)| *identity);
        let elsewhere = match (sharing, identity) {
            (Sharing::OneTarget, Some(identity)) => self.elsewhere(&kubelet, identity, target)?,
            (Sharing::ManyTargets, _) | (Sharing::OneTarget, None) => Elsewhere::Nowhere,
        };
        let seen = Seen {
            volume: if found.is_some() { Volume::Known } else { Volume::Unknown },
            target: parent
                .as_ref()
                .map_or(Ok(Target::NoParent), |parent| at_target(parent, target.name(), identity))?,
            elsewhere,
        };
        let volume = found.map(|(_, opened)| opened);
        Ok((Opened { volume, parent: parent.map(Dir::from), name: target.name().clone() }, seen))
    }

    fn act(&self, at: &Opened, step: Step) -> Result<(), ActError> {
        let parent = at.parent.as_ref().ok_or(ActError::ParentGone)?;
        match step {
            Step::MakeTarget => match mkdirat(parent, at.name.as_os_str(), TARGET_MODE) {
                Ok(()) | Err(Errno::EEXIST) => Ok(()),
                Err(Errno::ENOENT) => Err(ActError::ParentGone),
                Err(errno) => Err(ActError::Make(errno)),
            },
            Step::Bind(attributes) => {
                bind(at.volume.as_ref().ok_or(ActError::VolumeGone)?, parent, &at.name, attributes)
            }
            Step::Unmount => match mount::unmount_beneath(parent, at.name.as_os_str()) {
                Ok(()) | Err(UnmountError::NotMounted | UnmountError::Absent) => Ok(()),
                Err(UnmountError::Busy) => Err(ActError::Busy),
                Err(error @ (UnmountError::Name | UnmountError::Kernel(_))) => Err(ActError::Unmount(error)),
            },
            Step::RemoveTarget => match parent.remove_dir(&at.name) {
                Ok(()) => Ok(()),
                Err(error) => match error.errno() {
                    Errno::ENOENT => Ok(()),
                    Errno::ENOTEMPTY | Errno::EEXIST => Err(ActError::NotEmpty),
                    Errno::EBUSY => Err(ActError::Busy),
                    _ => Err(ActError::Remove(error)),
                },
            },
        }
    }

    fn quota(&self, at: &Opened) -> Result<Quota, QuotaError> {
        fsquota::get(at.volume.as_ref().ok_or(QuotaError::Gone)?).map_err(|error| match error {
            GetError::Fs(FsError::Gone) => QuotaError::Gone,
            other => QuotaError::Read(other),
        })
    }
}

/// Opens beneath a directory, through mounts but never through a symbolic link. As [`HANDLE`] a link is opened itself.
fn resolve(beneath: impl AsFd, path: &Path, flags: OFlag) -> Result<OwnedFd, Errno> {
    let scope = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_MAGICLINKS;
    openat2(beneath, path, OpenHow::new().flags(flags).resolve(scope))
}

fn at_target(parent: &OwnedFd, name: &Name, volume: Option<Identity>) -> Result<Target, LookError> {
    let target = match resolve(parent, Path::new(name.as_os_str()), HANDLE) {
        Ok(target) => target,
        Err(Errno::ENOENT) => return Ok(Target::Absent),
        Err(errno) => return Err(LookError::Target(errno)),
    };
    let place = mount::at(&target)?;
    Ok(match (place.mounted, place.kind) {
        (_, Kind::File | Kind::Link) => Target::Obstructed,
        (None, Kind::Directory) => Target::Bare,
        (Some(attributes), Kind::Directory) if Some(place.identity) == volume => Target::Published(attributes),
        // Volumes and targets are on one file system, and nobody else mounts parts of it on a target.
        (Some(_), Kind::Directory) if mount::identity(parent)?.device == place.identity.device => Target::OtherVolume,
        (Some(_), Kind::Directory) => Target::Foreign,
    })
}

fn bind(volume: &Dir, parent: &Dir, name: &Name, attributes: Attributes) -> Result<(), ActError> {
    let target = resolve(parent, Path::new(name.as_os_str()), DIRECTORY).map_err(ActError::Open)?;
    let mount = Detached::clone_of(volume)?;
    mount.set(attributes)?;
    Ok(mount.attach(&target)?)
}
