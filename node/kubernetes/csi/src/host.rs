//! The host interface: what calls read and change on the machine, and its errors.

mod block;
mod cgroup;
mod devices;
mod filesystem;
mod freezing;
mod linux;
mod path;
mod targets;

use std::collections::BTreeSet;
use std::path::PathBuf;

use fsquota::{FsError, Quota};
use loopdev::Number;
use mount::{CloneError, SetError, TableError, UnmountError};
use nix::errno::Errno;
use units::Bytes;
use volume::{DiskFault, VolumeId};

pub use cgroup::CgroupError;
pub use devices::DeviceObserver;
pub use freezing::guard;
pub use linux::{Linux, Opened};

use crate::plan::{Step, Volume, VolumeView};
use crate::request::{LookRequest, TargetPath};

/// The machine, as calls use it. Every method blocks on the disk or the kernel.
pub trait Host: Send + Sync + 'static {
    /// Descriptors that [`Host::look`] opened. Steps use them, so that they change the objects that the look read.
    type At: Send;

    /// Fails if volumes cannot be served now.
    fn ready(&self) -> Result<(), volume::LookError>;

    fn look(&self, request: LookRequest<'_>) -> Result<(Self::At, VolumeView), LookError>;

    fn act(&self, at: &mut Self::At, step: Step) -> Result<(), ActError>;

    /// Announces that a target of the volume is removed, and that its device is detached if no other target has it. If
    /// another process has the device open, the kernel detaches it later, which nothing announces. After a detach that
    /// failed, the caller announces nothing: the volume is still in use.
    fn unpublished(&self, volume: &VolumeId);

    /// Limits and usage of a volume, if it is at this path.
    fn inspect(&self, volume: &VolumeId, path: &TargetPath) -> Result<Inspection, LookError>;

    fn volume(&self, volume: &VolumeId) -> Result<Volume, LookError>;

    /// Faults of the volumes' disk, from the last read.
    fn disk_faults(&self) -> Vec<DiskFault>;

    fn read_faults(&self) -> Result<(), FsError>;

    /// Whether another program changed the limits of the volume to those of `found`.
    fn limits_changed(&self, volume: &VolumeId, found: &Quota) -> bool;

    /// Refreshes the size of all loop devices of a block volume. Returns the smallest size; `None` without a device.
    fn grow(&self, volume: &VolumeId) -> Result<Option<Bytes>, ActError>;

    /// Number of loop devices on files of the volumes' disk.
    fn attached(&self) -> Result<usize, LookError>;

    /// Volumes that have a loop device without targets.
    fn idle(&self) -> Result<Vec<VolumeId>, LookError>;

    /// Detaches the loop devices of a volume that have no target. Returns whether there was one.
    fn release(&self, volume: &VolumeId) -> Result<bool, ActError>;

    /// Opens the loop devices of all targets, which an earlier process had open. Returns the number of targets whose
    /// device is attached but cannot be opened; each is logged.
    fn adopt(&self) -> Result<usize, LookError>;

    /// Revokes detaches of published devices by other processes, and removes unused devices.
    fn watch(&self) -> Result<WatchReport, LookError>;

    /// Closes the descriptors of all loop devices, and removes their I/O limits, so that the devices can be detached
    /// when the node shuts down.
    fn close(&self);
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WatchReport {
    pub revoked: Vec<RevokedDetach>,
    /// Volumes with an open device that no target shows now. A publish may be in progress.
    pub idle: Vec<VolumeId>,
    /// Volumes with an open device.
    pub held: BTreeSet<VolumeId>,
}

/// A detach of a published device by another process, which the plugin revoked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RevokedDetach {
    pub volume: VolumeId,
    pub device: Number,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inspection {
    pub volume: Volume,
    pub found: PathContents,
}

/// The part of a volume that a path shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathContents {
    Nothing,
    Filesystem(Quota),
    Block {
        /// Size of the image.
        image: Bytes,
        /// `None` if the device was detached, or is attached to another file now.
        device: Option<LoopDevice>,
    },
    /// The record or the image of the volume at the path cannot be used.
    Unusable,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoopDevice {
    pub size: Bytes,
    pub direct_io: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum LookError {
    #[error(transparent)]
    Volume(volume::OpenError),
    #[error(transparent)]
    Volumes(#[from] volume::ListError),
    #[error("cannot read the state of the volume's image")]
    Image(#[from] loopdev::BackingError),
    #[error("cannot read the size of the volume's image")]
    Size(#[source] Errno),
    #[error("cannot open /dev")]
    Dev(#[source] Errno),
    #[error("{} is, or leads through, a symbolic link", parent.display())]
    Link { parent: PathBuf },
    #[error("cannot open the parent of the path")]
    Parent(#[source] Errno),
    #[error("cannot open the path")]
    Target(#[source] Errno),
    #[error("cannot read the mount at the path")]
    Place(#[from] mount::LookError),
    #[error("cannot read the mount table")]
    Mounts(#[from] TableError),
    #[error("cannot read the path of the volume")]
    Path(#[source] std::io::Error),
    #[error("the volume's file system is not in the mount table; restart the node's storage")]
    Hidden,
    #[error("cannot list the loop devices")]
    Devices(#[from] loopdev::ListError),
    #[error("cannot open the loop device at the path")]
    Device(#[from] loopdev::DeviceError),
    #[error("cannot read the state of the loop device at the path")]
    Status(#[from] loopdev::StatusError),
    #[error("cannot read the volume's quota")]
    Quota(#[from] fsquota::FsError),
}

#[derive(Debug, thiserror::Error)]
pub enum ActError {
    #[error("the volume was deleted during the call")]
    VolumeGone,
    #[error("the parent of the target was deleted during the call")]
    ParentGone,
    #[error("cannot create the target")]
    Create(#[source] Errno),
    #[error("cannot open the target")]
    Open(#[source] Errno),
    #[error("cannot attach the volume's image")]
    Driver(#[from] loopdev::OpenError),
    #[error("cannot attach the volume's image")]
    AttachImage(#[from] loopdev::AttachError),
    #[error("the volume's loop device was detached during the call")]
    DeviceGone,
    #[error("the volume is being cloned; try again")]
    Cloned,
    #[error("cannot open the volume's loop device")]
    Device(#[from] loopdev::DeviceError),
    #[error("cannot read the state of the volume's loop device")]
    Status(#[from] loopdev::StatusError),
    #[error("the device node of the volume's loop device is missing from /dev, or belongs to another device")]
    Node,
    #[error("cannot read the state of the node's loop devices")]
    Look(#[from] LookError),
    #[error("cannot protect the volume's loop device from pods")]
    Observer(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("cannot read the mount at the path")]
    Place(#[from] mount::LookError),
    #[error("cannot prepare the mount")]
    Clone(#[from] CloneError),
    #[error("cannot set the mount's flags")]
    Set(#[from] SetError),
    #[error("cannot attach the mount")]
    Attach(#[from] mount::AttachError),
    #[error("a process on the node still uses the volume through this target")]
    Busy,
    #[error("cannot unmount the target")]
    Unmount(#[source] UnmountError),
    #[error("the target has other contents than the volume; inspect them, then remove them")]
    NotEmpty,
    #[error("cannot remove the target")]
    Remove(#[source] dir::Error),
    #[error("cannot detach the volume's loop device")]
    Detach(#[from] loopdev::DetachError),
    #[error("cannot refresh the size of the volume's loop device")]
    Resize(#[from] loopdev::ResizeError),
    #[error("cannot limit the I/O of the volume")]
    Cgroup(#[from] CgroupError),
}
