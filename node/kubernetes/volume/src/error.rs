//! Errors: one enum per operation.

use std::path::PathBuf;
use std::time::Duration;

use fsquota::ProjectId;
use nix::errno::Errno;
use units::{Bytes, Inodes};

use crate::VolumeId;
use crate::freezing::FreezeError;
use crate::io_limits::ThrottleError;
use crate::plan::{Step, VolumeRefusal};
use crate::record::{EncodeError, RecordError};

/// A change of a volume failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The disk has too little free space. The call undoes what it began.
    #[error(
        "volume {id} needs {wanted} (inodes and extent maps included), the data disk has {free} free; delete volumes, \
         or request less"
    )]
    Full { id: VolumeId, wanted: Bytes, free: Bytes },
    /// The file system cannot hold a volume of that size, however empty it is. Nothing was changed.
    #[error("volume {id} cannot have {wanted}: no file system can hold a volume of this size; request less")]
    TooLarge { id: VolumeId, wanted: Bytes },
    #[error("volume {id} does not exist on this node")]
    Unknown { id: VolumeId },
    #[error("cannot change volume {id}")]
    Refused { id: VolumeId, source: VolumeRefusal },
    #[error("volume {id} is closed")]
    Closed { id: VolumeId, source: RecordError },
    #[error("cannot read the state of volume {id}")]
    Look { id: VolumeId, source: LookError },
    #[error("cannot complete step {step:?} of volume {id}")]
    Act { id: VolumeId, step: Step, source: ActError },
    /// One pass does not remove all files of a volume in the trash. The next call continues.
    #[error(
        "volume {id} is partly removed: this pass freed {freed}, {left} remain; if passes free nothing, a process \
         still has a directory of the volume open and changes it: end that process"
    )]
    Unfinished { id: VolumeId, freed: Inodes, left: Inodes },
    /// A pod has the volume, or kubelet has not unpublished it yet. Nothing was changed.
    #[error("volume {id} is still published at {}; delete the pod that uses it", target.display())]
    Published { id: VolumeId, target: PathBuf },
    #[error("volume {id} has a PV; delete the PV to delete the volume")]
    Announced { id: VolumeId },
    /// A new snapshot would have a later instant than the others. Nothing was changed.
    #[error("snapshot {id} of the group was removed after others were ready; delete the group, and create it again")]
    Removed { id: VolumeId },
    /// Nothing was changed, or the change was undone.
    #[error("volume {id} cannot be cloned from its source")]
    Source { id: VolumeId, source: SourceError },
    /// One pass does not copy all blocks that the volume shares with its source. The next call continues, as
    /// [`Error::copying`] says.
    #[error("volume {id} is partly copied: at most {left} remain")]
    Copying { id: VolumeId, left: Bytes },
    /// The volume has its former content.
    #[error("volume {id} cannot be rolled back")]
    Rollback { id: VolumeId, source: RollbackError },
    #[error("cannot limit the I/O of volume {id}")]
    Throttle { id: VolumeId, source: ThrottleError },
    /// The call undoes what it began.
    #[error("the snapshots of {id} cannot be taken at one instant")]
    Freeze { id: VolumeId, source: FreezeError },
}

/// Why a volume cannot be the source of a clone.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    #[error("volume {volume} does not exist on this node")]
    Unknown { volume: VolumeId },
    #[error("volume {volume} is still being provisioned; try again")]
    NotAnnounced { volume: VolumeId },
    /// A complete snapshot, which shares blocks until they are copied.
    #[error("the blocks of snapshot {volume} are still being copied; the node tries again")]
    Copying { volume: VolumeId },
    #[error("volume {volume} is closed; see the node's log")]
    Closed { volume: VolumeId },
    #[error("volume {volume} is a filesystem volume; request volumeMode Filesystem")]
    Filesystem { volume: VolumeId },
    #[error("volume {volume} is a block volume; request volumeMode Block")]
    Block { volume: VolumeId },
    #[error(
        "volume {volume} is a filesystem volume, and this program cannot freeze the pods that use it; use a Granary \
         node, or a block volume"
    )]
    NoFreezer { volume: VolumeId },
    /// The limit of the source is raised while it is copied.
    #[error(
        "the files of volume {volume} change faster than they are copied, or exceed the limits of the new volume; \
         write less during the copy, delete files, or request more"
    )]
    Overfull { volume: VolumeId },
    #[error("volume {volume} has {has}; request at least as much instead of {size}")]
    Larger { volume: VolumeId, has: Bytes, size: Bytes },
    #[error("the file system of volume {volume} has no reflinks; use one that `mkfs.xfs -m reflink=1` created")]
    Unsupported { volume: VolumeId },
    #[error("volume {volume} was expanded before it was cloned; the clone starts again")]
    Grown { volume: VolumeId },
    #[error("cannot read the state of volume {volume}")]
    Look { volume: VolumeId, source: LookError },
}

/// Why the content of a volume cannot be exchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RollbackError {
    #[error("the volume does not exist on this node, or is being deleted")]
    Unknown,
    #[error("the volume is being published or unpublished; try again")]
    Opened,
    #[error("the volume is the source of an unfinished clone or snapshot; try again")]
    Shared,
    /// The copy stays, because its removal takes as long as it has files.
    #[error("the volume was expanded after the copy of the snapshot began; remove the copy to begin again")]
    Grown,
}

/// Why the state of the disk could not be read.
#[derive(Debug, thiserror::Error)]
pub enum LookError {
    #[error(transparent)]
    Dir(#[from] dir::Error),
    #[error("cannot read the project of a directory")]
    Quota(#[from] fsquota::FsError),
    #[error("cannot read the state of the image")]
    Image(#[source] Errno),
    #[error("cannot read the size of the data disk")]
    Size(#[source] Errno),
    #[error("cannot find the mounts of the volume")]
    Mounts(#[from] mount::TableError),
    #[error("cannot find the mounts of the volume")]
    Place(#[from] mount::LookError),
    #[error("cannot find the mounts of the volume")]
    Path(#[source] std::io::Error),
    #[error("the volumes directory is not in the mount table; restart the node's storage")]
    Hidden,
    #[error("cannot read the state of the image")]
    Backing(#[from] loopdev::BackingError),
    #[error("cannot find the loop devices of the image")]
    Loops(#[from] loopdev::ListError),
}

/// Why a step failed. The next call continues from there.
#[derive(Debug, thiserror::Error)]
pub enum ActError {
    #[error(transparent)]
    Dir(#[from] dir::Error),
    #[error("cannot allocate a project ID")]
    Allocate(#[from] fsquota::AllocateError),
    #[error("cannot set the limits of the volume")]
    Limit(#[from] fsquota::SetError),
    #[error("cannot clear the limits")]
    Clear(#[from] fsquota::RemoveError),
    #[error("cannot read the quota")]
    Quota(#[source] fsquota::FsError),
    #[error("cannot set the copy-on-write extent size of the image")]
    CowExtentSize(#[source] fsquota::FsError),
    #[error("cannot set the mode of the volume's directory")]
    Root(#[source] Errno),
    /// Becomes [`Error::Unfinished`]: one pass does not remove all files.
    #[error("freed {freed}, {left} remain")]
    Unfinished { freed: Inodes, left: Inodes },
    #[error("cannot write the record")]
    Record(#[source] Errno),
    /// Nothing was written.
    #[error(transparent)]
    Encode(#[from] EncodeError),
    #[error("cannot {step} the image")]
    Image {
        step: &'static str,
        #[source]
        errno: Errno,
    },
    #[error("cannot {step} the blocks of the clone")]
    Clone {
        step: &'static str,
        #[source]
        errno: Errno,
    },
    /// Error while files are cloned.
    #[error("cannot clone the files of the volume")]
    Tree(#[from] reflink::TreeError),
    #[error("cannot freeze the pods that use the volume")]
    Pods(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error(
        "the pods that use the volume would be frozen for more than {budget:?}; raise maxPause in the \
         VolumeSnapshotClass, or write to fewer files during the snapshot"
    )]
    Late { budget: Duration },
    #[error("this program cannot freeze the pods that use the volume")]
    NoFreezer,
    /// Becomes [`SourceError::Overfull`].
    #[error("the files exceed the limits of the volume")]
    Overfull,
    /// Becomes [`Error::Copying`].
    #[error("at most {left} remain")]
    Copying { left: Bytes },
    /// The limit of the source stays raised, so that no write to one of its holes fails.
    #[error("volume {volume} is being written, and XFS keeps blocks that it allocated for copy-on-write; try again")]
    Busy { volume: VolumeId },
    /// A snapshot or its copy ends only when no other operation has its source.
    #[error("another operation on volume {volume}, the source, is running; try again")]
    Locked { volume: VolumeId },
    #[error("the image has {found} instead of {wanted}")]
    Short { found: Bytes, wanted: Bytes },
    #[error("cannot find the loop devices of the image")]
    Loops(#[from] loopdev::ListError),
    #[error("cannot detach a loop device from the image")]
    Detach(#[from] loopdev::DetachError),
    /// No mount shows the loop device, but a process has it open. The kernel detaches the device when that process
    /// closes it.
    #[error("a process still has {device}, the volume's loop device, open; end that process")]
    InUse { device: loopdev::Number },
    #[error("the record is missing; another process has changed the volumes directory")]
    NoRecord,
}

/// Why [`Store::open_volume`](crate::Store::open_volume) fails.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("volume {id} does not exist on this node")]
    Unknown { id: VolumeId },
    #[error("volume {id} is still being provisioned; try again")]
    NotAnnounced { id: VolumeId },
    #[error("volume {id} is closed")]
    Record { id: VolumeId, source: RecordError },
    #[error("cannot open the image of volume {id}")]
    Image { id: VolumeId, source: dir::Error },
    #[error("cannot open volume {id}")]
    Dir { id: VolumeId, source: dir::Error },
}

/// Why the volumes directory cannot be used. The fault of a single volume is not such an error.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("cannot prepare the volumes directory")]
    Dir(#[from] dir::Error),
    #[error("the volumes directory has no project quotas")]
    Quota(#[from] fsquota::AllocateError),
    #[error("cannot use the quotas of the data disk")]
    Read(#[from] fsquota::FsError),
    #[error(transparent)]
    Look(#[from] LookError),
    #[error(
        "the volumes directory belongs to project {project}; remove the project with `xfs_quota -x -c 'project -C'`"
    )]
    Project { project: ProjectId },
}

/// Why volumes or projects on the disk cannot be listed.
#[derive(Debug, thiserror::Error)]
pub enum ListError {
    #[error("cannot list the volumes")]
    Dir(#[from] dir::Error),
    #[error("cannot read the quotas of the data disk")]
    Quota(#[from] fsquota::FsError),
}

#[derive(Debug, thiserror::Error)]
#[error("cannot read the quotas of the data disk")]
pub struct UsageError(#[from] fsquota::FsError);

impl Error {
    /// Whether the call keeps failing until something is deleted or less is requested. Kubernetes calls such a resize
    /// or modification infeasible.
    pub const fn is_infeasible(&self) -> bool {
        match self {
            Self::Full { .. }
            | Self::TooLarge { .. }
            | Self::Refused { source: VolumeRefusal::Io(_), .. }
            | Self::Throttle { source: ThrottleError::None | ThrottleError::Unsupported(_), .. } => true,
            Self::Throttle { source: ThrottleError::Apply(_), .. }
            | Self::Unknown { .. }
            | Self::Refused { .. }
            | Self::Closed { .. }
            | Self::Look { .. }
            | Self::Act { .. }
            | Self::Unfinished { .. }
            | Self::Published { .. }
            | Self::Announced { .. }
            | Self::Removed { .. }
            | Self::Source { .. }
            | Self::Rollback { .. }
            | Self::Copying { .. }
            | Self::Freeze { .. } => false,
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
            // The tenant of the source causes them: they are not faults of the disk, of which an alert counts `act`.
            Self::Act { source: ActError::Busy { .. } | ActError::Locked { .. }, .. } | Self::Unfinished { .. } => {
                "unfinished"
            }
            Self::Act { .. } => "act",
            Self::Announced { .. } => "announced",
            Self::Removed { .. } => "removed",
            Self::Source { .. } => "source",
            Self::Rollback { .. } => "rollback",
            Self::Copying { .. } => "copying",
            Self::Throttle { .. } => "throttle",
            Self::Freeze { .. } => "freeze",
        }
    }

    /// Whether a removal waits for another operation on the source of the snapshot. The next call continues.
    pub const fn is_locked(&self) -> bool {
        matches!(self, Self::Act { source: ActError::Locked { .. }, .. })
    }

    /// Whether a pod or another process still uses the volume: CSI's `VOLUME_IN_USE`.
    pub const fn is_in_use(&self) -> bool {
        matches!(self, Self::Published { .. } | Self::Act { source: ActError::InUse { .. }, .. })
    }
}

impl ActError {
    pub(crate) fn is_full(&self) -> bool {
        matches!(self.errno(), Some(Errno::ENOSPC | Errno::EDQUOT))
    }

    /// Whether the volume fits on no disk.
    pub(crate) fn is_too_large(&self) -> bool {
        match self {
            Self::Limit(fsquota::SetError::Limit(_)) => true,
            Self::Image { errno, .. } => matches!(errno, Errno::EFBIG | Errno::EINVAL),
            _ => false,
        }
    }

    /// Whether the file system cannot clone files.
    pub(crate) fn is_unsupported(&self) -> bool {
        matches!(self, Self::Clone { .. } | Self::Tree(_)) && self.errno() == Some(Errno::EOPNOTSUPP)
    }

    /// Whether the files that are cloned do not fit into the limits of their copy.
    pub(crate) fn is_overfull(&self) -> bool {
        matches!(self, Self::Overfull) || matches!(self, Self::Tree(_)) && self.is_full()
    }

    /// Whether an entry with the name exists already. Such an entry is unmanaged.
    pub(crate) fn is_foreign(&self) -> bool {
        self.errno() == Some(Errno::EEXIST)
    }

    fn errno(&self) -> Option<Errno> {
        use fsquota::{AllocateError, FsError, SetError};

        match self {
            Self::Dir(error) => Some(error.errno()),
            Self::Tree(reflink::TreeError::Entry { errno, .. }) => Some(*errno),
            Self::Record(errno) | Self::Root(errno) | Self::Image { errno, .. } | Self::Clone { errno, .. } => {
                Some(*errno)
            }
            Self::Allocate(AllocateError::Counter { source, .. }) => source.raw_os_error().map(Errno::from_raw),
            Self::Allocate(AllocateError::Fs(FsError::System { source, .. }))
            | Self::Limit(SetError::Fs(FsError::System { source, .. }))
            | Self::Quota(FsError::System { source, .. })
            | Self::CowExtentSize(FsError::System { source, .. }) => Some(*source),
            Self::Allocate(_)
            | Self::Limit(_)
            | Self::Clear(_)
            | Self::Quota(_)
            | Self::CowExtentSize(_)
            | Self::Encode(_)
            | Self::Unfinished { .. }
            | Self::Copying { .. }
            | Self::Tree(_)
            | Self::Pods(_)
            | Self::Late { .. }
            | Self::NoFreezer
            | Self::Overfull
            | Self::Busy { .. }
            | Self::Locked { .. }
            | Self::Short { .. }
            | Self::Loops(_)
            | Self::Detach(_)
            | Self::InUse { .. }
            | Self::NoRecord => None,
        }
    }
}

pub(crate) fn refused(id: &VolumeId) -> impl FnOnce(VolumeRefusal) -> Error {
    |source| Error::Refused { id: id.clone(), source }
}

/// Error of a step of a clone, or of the copy of its blocks.
pub(crate) fn clone_failed(step: &'static str) -> impl Fn(Errno) -> ActError {
    move |errno| ActError::Clone { step, errno }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a tenant that wrote to the source of a snapshot could cause the alert about a failing disk.
    #[test]
    fn a_removal_that_waits_for_the_source_is_not_a_fault_of_the_disk() {
        let id = || "pvc-1".parse::<VolumeId>().unwrap();
        let failed = |source| Error::Act { id: id(), step: Step::RemoveRecord, source };
        assert_eq!(failed(ActError::Busy { volume: id() }).kind(), "unfinished");
        assert_eq!(failed(ActError::Locked { volume: id() }).kind(), "unfinished");
        assert_eq!(failed(ActError::Record(Errno::EIO)).kind(), "act");
    }
}
