//! What a call needs of the machine, and what can go wrong there.

mod block;
mod cgroup;
mod filesystem;
mod held;
mod linux;

use std::collections::BTreeSet;
use std::path::PathBuf;

use fsquota::Quota;
use mount::{CloneError, SetError, TableError, UnmountError};
use nix::errno::Errno;
use units::Bytes;
use volume::VolumeId;

pub use held::{Published, Revoked, Unobserved};
pub use linux::{Linux, Opened};

use crate::plan::{Seen, Step, Volume};
use crate::request::{Question, TargetPath};

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
    fn act(&self, at: &mut Self::At, step: Step) -> Result<(), ActError>;

    /// Limits and usage of a volume, as far as it is found at this path.
    ///
    /// # Errors
    /// [`LookError`].
    fn inspect(&self, volume: &VolumeId, path: &TargetPath) -> Result<Inspection, LookError>;

    /// Shows all loop devices of a block volume how large its image is. Returns the size of the smallest, `None` if
    /// there is none.
    ///
    /// # Errors
    /// [`GrowError`].
    fn grow(&self, volume: &VolumeId) -> Result<Option<Bytes>, GrowError>;

    /// How many loop devices stand on files of the volumes' disk.
    ///
    /// # Errors
    /// [`LookError`].
    fn attached(&self) -> Result<usize, LookError>;

    /// The volumes with a loop device that no target has.
    ///
    /// # Errors
    /// [`LookError`].
    fn idle(&self) -> Result<Vec<VolumeId>, LookError>;

    /// Detaches the loop devices of a volume that no target has.
    ///
    /// # Errors
    /// [`ReleaseError`].
    fn release(&self, volume: &VolumeId) -> Result<(), ReleaseError>;

    /// Holds the loop devices of all targets, as an earlier process did. Those that are held already stay. Returns how many
    /// targets show an attached device that cannot be held; each is logged.
    ///
    /// # Errors
    /// [`LookError`].
    fn adopt(&self) -> Result<usize, LookError>;

    /// Looks after the loop devices that are held: revokes detaches by other processes, and removes devices that are
    /// not used any more.
    ///
    /// # Errors
    /// [`LookError`].
    fn watch(&self) -> Result<Watched, LookError>;

    /// Closes the descriptors of all loop devices, so that they can be detached when the node ends.
    fn close(&self);
}

/// What a look after the devices found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Watched {
    /// Detaches by other processes that were revoked.
    pub revoked: Vec<Revoked>,
    /// Volumes with a device that is held and that no target shows, now. A publish may be under way.
    pub idle: Vec<VolumeId>,
    /// Volumes with a device that is held.
    pub held: BTreeSet<VolumeId>,
}

/// What can be said about a volume without changing anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inspection {
    /// Whether it exists.
    pub volume: Volume,
    /// What the path shows of it.
    pub found: Found,
}

/// A volume, seen at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// It is not there.
    Nothing,
    /// Its directory is mounted there.
    Filesystem(Quota),
    /// The node of its device is there.
    Block {
        /// How large the image is.
        image: Bytes,
        /// The device. `None` if it was detached, or stands on something else now.
        device: Option<LoopDevice>,
    },
    /// A volume is mounted there, and nothing can be said about it.
    Unusable,
}

/// How the loop device of a volume works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoopDevice {
    /// How large it is.
    pub size: Bytes,
    /// Whether it goes past the page cache of the image.
    pub direct_io: bool,
}

/// The volumes directory cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("the volumes directory cannot be used")]
pub struct ReadyError(#[from] pub(crate) volume::LookError);

/// Nothing can be said about a volume or its target.
#[derive(Debug, thiserror::Error)]
pub enum LookError {
    /// The volume's directory cannot be opened.
    #[error(transparent)]
    Volume(volume::OpenError),
    /// The volumes cannot be listed.
    #[error(transparent)]
    Volumes(#[from] volume::ListError),
    /// The image of a volume cannot be one of a loop device.
    #[error("cannot look at the volume's image")]
    Image(#[from] loopdev::BackingError),
    /// The image of a volume does not tell its size.
    #[error("cannot read the size of the volume's image")]
    Size(#[source] Errno),
    /// No `/dev`.
    #[error("cannot open /dev")]
    Dev(#[source] Errno),
    /// The way to the target leads through a symbolic link.
    #[error("{} is, or leads through, a symbolic link", parent.display())]
    Link {
        /// The directory that should hold the target.
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
    /// The kernel does not say which loop devices are attached.
    #[error("cannot see the volume's loop devices")]
    Devices(#[from] loopdev::ListError),
    /// The device at the target cannot be opened.
    #[error("cannot open the device there")]
    Device(#[from] loopdev::DeviceError),
    /// The device at the target does not say what it stands on.
    #[error("cannot see what the device there stands on")]
    Status(#[from] loopdev::StatusError),
    /// The quota of a volume cannot be read.
    #[error("cannot read its quota")]
    Quota(#[from] fsquota::FsError),
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
    /// The directory or file that is mounted on cannot be made.
    #[error("cannot make the target")]
    Make(#[source] Errno),
    /// The target cannot be opened.
    #[error("cannot open the target")]
    Open(#[source] Errno),
    /// No loop devices in this kernel.
    #[error("cannot attach the volume's image")]
    Driver(#[from] loopdev::OpenError),
    /// The image cannot be attached.
    #[error("cannot attach the volume's image")]
    AttachImage(#[from] loopdev::AttachError),
    /// The loop device was detached since it was looked at, by somebody else.
    #[error("the volume's loop device was detached meanwhile")]
    DeviceGone,
    /// The loop device cannot be opened.
    #[error("cannot open the volume's loop device")]
    Device(#[from] loopdev::DeviceError),
    /// The loop device does not say what it stands on.
    #[error("cannot see what the volume's loop device stands on")]
    Status(#[from] loopdev::StatusError),
    /// The node of the loop device is not in `/dev`.
    #[error("the node of the volume's loop device is not in /dev, or is another device's")]
    Node,
    /// The loop devices that exist cannot be looked at.
    #[error("cannot look at the node's loop devices")]
    Look(#[from] LookError),
    /// The rules for published devices could not be set.
    #[error("cannot protect the volume's loop device from pods")]
    Observer(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The kernel does not say what is mounted there.
    #[error("cannot see what is mounted")]
    Place(#[from] mount::LookError),
    /// The volume's mount cannot be made.
    #[error("cannot prepare the mount")]
    Clone(#[from] CloneError),
    /// The mount does not take its flags.
    #[error("cannot set the mount's flags")]
    Set(#[from] SetError),
    /// The mount cannot be attached.
    #[error("cannot attach the mount")]
    Attach(#[from] mount::AttachError),
    /// Programs on the node still use the volume through this target.
    #[error("the volume is still in use there")]
    Busy,
    /// The mount cannot be taken away.
    #[error("cannot unmount it")]
    Unmount(#[source] UnmountError),
    /// Files that are not the volume's are in the target directory, or the target is a file with content.
    #[error("the target holds something that is not the volume's; look at it, then remove it")]
    NotEmpty,
    /// The target cannot be removed.
    #[error("cannot remove the target")]
    Remove(#[source] dir::Error),
    /// The loop device cannot be detached.
    #[error("cannot detach the volume's loop device")]
    Detach(#[from] loopdev::DetachError),
}

/// The loop devices of a volume cannot be shown its size.
#[derive(Debug, thiserror::Error)]
pub enum GrowError {
    /// They cannot be found.
    #[error(transparent)]
    Look(#[from] LookError),
    /// One cannot be opened.
    #[error("cannot open the volume's loop device")]
    Device(#[from] loopdev::DeviceError),
    /// One does not say what it stands on.
    #[error("cannot see what the volume's loop device stands on")]
    Status(#[from] loopdev::StatusError),
    /// One does not take the size.
    #[error("the volume's loop device does not take its new size")]
    Resize(#[from] loopdev::ResizeError),
}

/// The loop devices of a volume that no target has stay attached.
#[derive(Debug, thiserror::Error)]
pub enum ReleaseError {
    /// They cannot be found.
    #[error(transparent)]
    Look(#[from] LookError),
    /// One cannot be detached.
    #[error(transparent)]
    Act(#[from] ActError),
}
