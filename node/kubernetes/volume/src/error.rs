//! What can go wrong, an enum per operation.

use std::path::PathBuf;

use fsquota::ProjectId;
use nix::errno::Errno;
use units::{Bytes, Inodes};

use crate::VolumeId;
use crate::acting::PASS;
use crate::plan::{Refusal, Step};
use crate::record::RecordError;

/// Why a volume was not made, changed, put away or removed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The disk has no room for the promise. What was begun is undone.
    #[error(
        "volume {id} needs {wanted} (files and maps included), the data disk has {free} to promise; delete volumes or \
         ask for less"
    )]
    Full {
        /// The volume.
        id: VolumeId,
        /// What it would be promised, in addition to what it is already.
        wanted: Bytes,
        /// What could be.
        free: Bytes,
    },
    /// The file system cannot hold a volume of that size, however empty it is. Nothing was changed.
    #[error("volume {id} cannot have {wanted}: no file system holds that; ask for less")]
    TooLarge {
        /// The volume.
        id: VolumeId,
        /// What was asked for.
        wanted: Bytes,
    },
    /// There is no record of the volume.
    #[error("there is no volume {id} on this node")]
    Unknown {
        /// The volume.
        id: VolumeId,
    },
    /// What stands on the disk must be kept.
    #[error("volume {id} cannot be touched")]
    Refused {
        /// The volume.
        id: VolumeId,
        /// Why.
        #[source]
        source: Refusal,
    },
    /// The volume's record cannot be read, or not be fulfilled: the volume is closed, and nothing deletes it.
    #[error("volume {id} is closed")]
    Closed {
        /// The volume.
        id: VolumeId,
        /// Why.
        #[source]
        source: RecordError,
    },
    /// The disk could not be read.
    #[error("cannot look at volume {id}")]
    Look {
        /// The volume.
        id: VolumeId,
        /// Why.
        #[source]
        source: LookError,
    },
    /// The disk could not be changed.
    #[error("cannot finish the step {step:?} of volume {id}")]
    Act {
        /// The volume.
        id: VolumeId,
        /// Where it stopped.
        step: Step,
        /// Why.
        #[source]
        source: ActError,
    },
    /// One pass does not remove all files of a volume in the trash. The next call continues.
    #[error(
        "volume {id} is removed in part: this pass freed {freed}, {left} are left; if passes free nothing, a process \
         still has a directory of the volume open and changes it: end that process"
    )]
    Unfinished {
        /// The volume.
        id: VolumeId,
        /// What this pass freed.
        freed: Inodes,
        /// What the volume has left.
        left: Inodes,
    },
    /// A pod has the volume, or kubelet has not unpublished it yet. Nothing was changed.
    #[error("volume {id} is still published at {}; delete the pod that uses it", target.display())]
    Published {
        /// The volume.
        id: VolumeId,
        /// A mount that shows it.
        target: PathBuf,
    },
    /// A volume with a PV is no one's to undo.
    #[error("volume {id} is announced; it goes when its PV is deleted")]
    Announced {
        /// The volume.
        id: VolumeId,
    },
}

/// Why the disk could not be looked at.
#[derive(Debug, thiserror::Error)]
pub enum LookError {
    /// A directory could not be opened.
    #[error(transparent)]
    Dir(#[from] dir::Error),
    /// A project could not be read.
    #[error("cannot read the project of a directory")]
    Quota(#[from] fsquota::FsError),
    /// The image could not be found.
    #[error("cannot look at the image")]
    Image(#[source] Errno),
    /// The size of the file system could not be read.
    #[error("cannot read the size of the data disk")]
    Size(#[source] Errno),
    /// The table of mounts could not be read.
    #[error("cannot see where the volume is mounted")]
    Mounts(#[from] mount::TableError),
    /// A place could not be found in the table of mounts.
    #[error("cannot see where the volume is mounted")]
    Place(#[from] mount::LookError),
    /// `/dev` or `/proc` could not be read.
    #[error("cannot see where the volume is mounted")]
    Path(#[source] std::io::Error),
    /// The volumes directory is not part of any mount that this process can see.
    #[error("the volumes directory is not in the table of mounts; start the node's storage again")]
    Hidden,
    /// The image cannot be compared with those of loop devices.
    #[error("cannot look at the image")]
    Backing(#[from] loopdev::BackingError),
    /// The loop devices cannot be listed.
    #[error("cannot look for loop devices of the image")]
    Loops(#[from] loopdev::ListError),
}

/// Why a step failed. The next call goes on from there.
#[derive(Debug, thiserror::Error)]
pub enum ActError {
    /// A file or directory.
    #[error(transparent)]
    Dir(#[from] dir::Error),
    /// No project.
    #[error("cannot allocate a project")]
    Allocate(#[from] fsquota::AllocateError),
    /// No limits.
    #[error("cannot limit the volume")]
    Limit(#[from] fsquota::SetError),
    /// The limits cannot be cleared.
    #[error("cannot clear the limits")]
    Clear(#[from] fsquota::RemoveError),
    /// The limits cannot be made durable.
    #[error("cannot make the limits durable")]
    Sync(#[from] fsquota::FsError),
    /// What a project has in use cannot be read.
    #[error("cannot read the quota")]
    Quota(#[source] fsquota::FsError),
    /// Owner and mode of the volume's directory.
    #[error("cannot set the mode of the volume's directory")]
    Root(#[source] Errno),
    /// One pass does not remove all files. It becomes [`Error::Unfinished`].
    #[error("freed {freed}, {left} are left")]
    Unfinished {
        /// What this pass freed.
        freed: Inodes,
        /// What the volume has left.
        left: Inodes,
    },
    /// The record cannot be written.
    #[error("cannot write the record")]
    Record(#[source] Errno),
    /// The image.
    #[error("cannot {step} the image")]
    Image {
        /// What was tried.
        step: &'static str,
        /// What the kernel said.
        #[source]
        errno: Errno,
    },
    /// The image has not got the size that it was given.
    #[error("the image has {found} instead of {wanted}")]
    Short {
        /// Its size.
        found: Bytes,
        /// What it was to have.
        wanted: Bytes,
    },
    /// The loop devices cannot be listed.
    #[error("cannot look for loop devices of the image")]
    Loops(#[from] loopdev::ListError),
    /// A loop device cannot be detached.
    #[error("cannot detach a loop device from the image")]
    Detach(#[from] loopdev::DetachError),
    /// No target shows the loop device, and some process has it open. It is detached when that process closes it.
    #[error("a process still has {device}, the volume's loop device, open; end that process")]
    InUse {
        /// The device.
        device: loopdev::Number,
    },
    /// A record vanished between two steps.
    #[error("the record vanished; someone else writes to the volumes directory")]
    NoRecord,
}

/// Why [`Store::open_volume`](crate::Store::open_volume) opens nothing.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// No such volume is live.
    #[error("there is no volume {id} on this node")]
    Unknown {
        /// The volume.
        id: VolumeId,
    },
    /// It is being made, its PV is not there yet.
    #[error("volume {id} is not announced yet; try again")]
    NotAnnounced {
        /// The volume.
        id: VolumeId,
    },
    /// Its record cannot be read, or not be fulfilled.
    #[error("volume {id} is closed")]
    Record {
        /// The volume.
        id: VolumeId,
        /// Why.
        #[source]
        source: RecordError,
    },
    /// The image cannot be opened.
    #[error("cannot open the image of volume {id}")]
    Image {
        /// The volume.
        id: VolumeId,
        /// What failed.
        #[source]
        source: dir::Error,
    },
    /// The disk failed.
    #[error("cannot open volume {id}")]
    Dir {
        /// The volume.
        id: VolumeId,
        /// What failed.
        #[source]
        source: dir::Error,
    },
}

/// Why the volumes directory cannot be used. No single volume stops the others.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A directory of the store.
    #[error("cannot prepare the volumes directory")]
    Dir(#[from] dir::Error),
    /// Project quotas.
    #[error("the volumes directory has no project quotas")]
    Quota(#[from] fsquota::AllocateError),
    /// Project quotas.
    #[error("cannot use the quotas of the data disk")]
    Read(#[from] fsquota::FsError),
    /// The size of the file system.
    #[error(transparent)]
    Look(#[from] LookError),
    /// The whole volumes directory belongs to a project: what is in it could not get one.
    #[error("the volumes directory belongs to project {project}; take it off")]
    Project {
        /// The project.
        project: ProjectId,
    },
}

/// Why what is on the disk cannot be listed.
#[derive(Debug, thiserror::Error)]
pub enum ListError {
    /// A directory of the store.
    #[error("cannot list the volumes")]
    Dir(#[from] dir::Error),
    /// The quotas.
    #[error("cannot read the quotas of the data disk")]
    Quota(#[from] fsquota::FsError),
}

/// The quotas could not be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read the quotas of the data disk")]
pub struct UsageError(#[from] fsquota::FsError);

impl Error {
    /// Whether asking again is in vain as long as nothing is deleted or less is asked for: what Kubernetes calls an
    /// infeasible resize.
    pub const fn is_infeasible(&self) -> bool {
        match self {
            Self::Full { .. } | Self::TooLarge { .. } => true,
            Self::Unknown { .. }
            | Self::Refused { .. }
            | Self::Closed { .. }
            | Self::Look { .. }
            | Self::Act { .. }
            | Self::Unfinished { .. }
            | Self::Published { .. }
            | Self::Announced { .. } => false,
        }
    }

    /// The label `result` of the metrics.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Full { .. } => "full",
            Self::TooLarge { .. } => "too_large",
            Self::Unknown { .. } => "unknown",
            Self::Refused { .. } => "refused",
            Self::Closed { .. } => "closed",
            Self::Look { .. } => "look",
            Self::Act { source: ActError::InUse { .. }, .. } | Self::Published { .. } => "in_use",
            Self::Act { .. } => "act",
            Self::Unfinished { .. } => "unfinished",
            Self::Announced { .. } => "announced",
        }
    }

    /// Whether this is a removal that needs more passes only because the volume is large: the next one need not wait.
    pub const fn is_shrinking(&self) -> bool {
        match self {
            // Since nothing can be created, this many passes end: processes that link and rename free nothing.
            Self::Unfinished { freed, .. } => freed.get() >= PASS / 100,
            _ => false,
        }
    }

    /// Whether a pod or another process still uses the volume: CSI's `VOLUME_IN_USE`.
    pub const fn is_in_use(&self) -> bool {
        matches!(self, Self::Published { .. } | Self::Act { source: ActError::InUse { .. }, .. })
    }
}

impl ActError {
    /// Whether the disk has no room.
    pub(crate) fn is_full(&self) -> bool {
        matches!(self.errno(), Some(Errno::ENOSPC | Errno::EDQUOT))
    }

    /// Whether no disk has room for it.
    pub(crate) fn is_too_large(&self) -> bool {
        match self {
            Self::Limit(fsquota::SetError::Limit(_)) => true,
            Self::Image { errno, .. } => matches!(errno, Errno::EFBIG | Errno::EINVAL),
            _ => false,
        }
    }

    /// Whether something is in the place where something was to be made.
    pub(crate) fn is_foreign(&self) -> bool {
        self.errno() == Some(Errno::EEXIST)
    }

    fn errno(&self) -> Option<Errno> {
        use fsquota::{AllocateError, FsError, SetError};

        match self {
            Self::Dir(error) => Some(error.errno()),
            Self::Record(errno) | Self::Root(errno) | Self::Image { errno, .. } => Some(*errno),
            Self::Allocate(AllocateError::Counter { source, .. }) => source.raw_os_error().map(Errno::from_raw),
            Self::Allocate(AllocateError::Fs(FsError::System { source, .. }))
            | Self::Limit(SetError::Fs(FsError::System { source, .. }))
            | Self::Quota(FsError::System { source, .. })
            | Self::Sync(FsError::System { source, .. }) => Some(*source),
            Self::Allocate(_)
            | Self::Limit(_)
            | Self::Clear(_)
            | Self::Sync(_)
            | Self::Quota(_)
            | Self::Unfinished { .. }
            | Self::Short { .. }
            | Self::Loops(_)
            | Self::Detach(_)
            | Self::InUse { .. }
            | Self::NoRecord => None,
        }
    }
}
