//! What is left to do, from what is wanted and what is there. Nothing here touches the disk.

use std::fmt;

use mount::Attributes;
use units::Bytes;

use crate::request::{Mode, Publish, Range, Sharing};

/// What the host found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Whether the volume exists.
    pub volume: Volume,
    /// What is at the target.
    pub target: Target,
    /// Whether the volume is at other targets. [`Elsewhere::Nowhere`] if that was not asked.
    pub elsewhere: Elsewhere,
    /// The loop device of a block volume: to publish, the one that allows what is wanted; to unpublish, one that no
    /// other target has, if there is one.
    pub device: Device,
}

/// Whether the volumes directory has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Volume {
    /// It has.
    Known(Mode),
    /// It is being made.
    NotAnnounced,
    /// Its record or its image cannot be used.
    Damaged,
    /// No volume of this name, or not any more.
    Unknown,
}

/// What is at a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Not even the directory that should hold it.
    NoParent,
    /// Nothing.
    Absent,
    /// A directory, or an empty file, that nothing is mounted on: an earlier call stopped here, or a reboot took the
    /// mount away.
    Bare(Shape),
    /// This volume. `read_only` also means the device of a block volume.
    Published(Attributes),
    /// What was a volume: the directory of one that was deleted, or the node of a loop device that was detached, or
    /// was attached to something else since.
    Stale,
    /// Another volume.
    OtherVolume,
    /// A mount that has nothing to do with volumes.
    Foreign,
    /// Nothing that the plugin makes: a symbolic link, a file with content.
    Obstructed,
}

/// What a volume is mounted on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// For directories.
    Directory,
    /// For nodes of devices.
    File,
}

impl Shape {
    const fn of(mode: Mode) -> Self {
        match mode {
            Mode::Filesystem => Self::Directory,
            Mode::Block => Self::File,
        }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Directory => "a directory",
            Self::File => "an empty file",
        })
    }
}

/// Whether a volume has further targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Elsewhere {
    /// None.
    Nowhere,
    /// At least one.
    Published,
}

/// A volume's loop device, see [`Seen::device`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// None is attached.
    Absent,
    /// Attached, and no target but the one in question has it.
    Idle,
    /// Attached, and other targets have it.
    Shared,
}

/// One thing to do at a target. Doing it twice is no error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Make the directory or file that is mounted on.
    MakeTarget(Shape),
    /// Attach the image to a loop device.
    Attach {
        /// Whether the device takes no writes.
        read_only: bool,
    },
    /// Mount the volume there, with these attributes from the first moment on.
    Bind(Attributes),
    /// Unmount what is mounted there.
    Unmount,
    /// Remove the directory or file, which is empty.
    RemoveTarget,
    /// Detach the volume's loop devices that no other target has.
    Detach,
}

/// Why nothing is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No volume of this name.
    #[error("the volume does not exist on this node")]
    Unknown,
    /// It has no PV yet, as far as the node knows.
    #[error("the volume is still being made; try again")]
    NotAnnounced,
    /// Nobody knows what it is, or its bytes are not there.
    #[error("the volume's record or image cannot be used; the node's log tells why")]
    Damaged,
    /// A directory was asked for where there is a device, or the reverse.
    #[error("it is a {is} volume; ask for it with volumeMode of its claim")]
    Mode {
        /// What it is.
        is: Mode,
    },
    /// kubelet makes the parent before it calls.
    #[error("the directory that should hold the target does not exist")]
    NoParent,
    /// The volume is there, with other attributes.
    #[error("the volume is published there with other options; unpublish it first")]
    Differs,
    /// Another volume is there.
    #[error("another volume is published there; unpublish that one first")]
    OtherVolume,
    /// Something else is mounted there.
    #[error("something that is no volume is mounted there; unmount it")]
    Foreign,
    /// A link, a file with content, or the place of a volume of the other mode.
    #[error("what is there is not {wanted}; look at it, then remove it")]
    Obstructed {
        /// What the volume could be mounted on.
        wanted: Shape,
    },
    /// A link, or a file with content: nobody's to delete.
    #[error(
        "what is there is a symbolic link or a file with content, which no volume left; look at it, then remove it"
    )]
    NotOurs,
    /// One target at a time, and it has one.
    #[error("the volume is published elsewhere on this node and its access mode allows one target")]
    InUse,
    /// Neither statistics nor sizes of what is not there.
    #[error("the volume is not published there")]
    NotPublished,
    /// The volume did not grow, or never will.
    #[error("the volume has {size}, which is outside the range asked for; change the claim's request")]
    Size {
        /// What it has.
        size: Bytes,
    },
    /// A volume without a limit has no size.
    #[error("the volume has no quota; its record promises one, restart the node's storage")]
    NoQuota,
}

/// An earlier release mounted directories with `noexec`: such a target stays until it is unpublished.
fn suffices(found: Attributes, wanted: Attributes) -> bool {
    found == wanted || found == Attributes { no_exec: true, ..wanted }
}

/// The table of CSI's `NodePublishVolume`. An empty plan means "done already".
pub(crate) fn publish(want: &Publish, seen: &Seen) -> Result<Vec<Step>, Refusal> {
    is(seen.volume, Some(want.mode))?;
    let shape = Shape::of(want.mode);
    let mut steps = match seen.target {
        Target::Absent => vec![Step::MakeTarget(shape)],
        Target::Bare(found) if found == shape => vec![],
        Target::Published(found) if suffices(found, want.attributes) => return Ok(vec![]),
        Target::Stale if want.mode == Mode::Block => vec![Step::Unmount],
        Target::Published(_) => return Err(Refusal::Differs),
        Target::NoParent => return Err(Refusal::NoParent),
        Target::OtherVolume => return Err(Refusal::OtherVolume),
        Target::Foreign | Target::Stale => return Err(Refusal::Foreign),
        Target::Bare(_) | Target::Obstructed => return Err(Refusal::Obstructed { wanted: shape }),
    };
    if want.mode == Mode::Block && seen.device == Device::Absent {
        steps.push(Step::Attach { read_only: want.attributes.read_only });
    }
    steps.push(Step::Bind(want.attributes));
    match (want.sharing, seen.elsewhere) {
        (Sharing::OneTarget, Elsewhere::Published) => Err(Refusal::InUse),
        (Sharing::OneTarget, Elsewhere::Nowhere) | (Sharing::ManyTargets, _) => Ok(steps),
    }
}

/// What takes these steps back, after a later one failed.
pub(crate) fn undo(done: &[Step]) -> Vec<Step> {
    let opposite = |step: &Step| match step {
        Step::MakeTarget(_) => Some(Step::RemoveTarget),
        Step::Attach { .. } => Some(Step::Detach),
        Step::Bind(_) => Some(Step::Unmount),
        // What was stale is not missed.
        Step::Unmount | Step::RemoveTarget | Step::Detach => None,
    };
    done.iter().rev().filter_map(opposite).collect()
}

/// `NodeUnpublishVolume`. A volume that is gone can still be mounted: kubelet would ask for ever if that were an error.
pub(crate) fn unpublish(seen: &Seen) -> Result<Vec<Step>, Refusal> {
    let mut steps = match (seen.target, seen.volume) {
        (Target::NoParent | Target::Absent, _) => vec![],
        (Target::Bare(_), _) => vec![Step::RemoveTarget],
        (Target::Published(_) | Target::Stale, _) => vec![Step::Unmount, Step::RemoveTarget],
        (Target::OtherVolume, _) => return Err(Refusal::OtherVolume),
        (Target::Foreign, _) => return Err(Refusal::Foreign),
        (Target::Obstructed, _) => return Err(Refusal::NotOurs),
    };
    if seen.device == Device::Idle {
        steps.push(Step::Detach);
    }
    Ok(steps)
}

/// Whether the volume can be used, as this if the caller says as what.
pub(crate) fn is(volume: Volume, wanted: Option<Mode>) -> Result<Mode, Refusal> {
    match volume {
        Volume::Known(is) if wanted.is_none_or(|wanted| wanted == is) => Ok(is),
        Volume::Known(is) => Err(Refusal::Mode { is }),
        Volume::NotAnnounced => Err(Refusal::NotAnnounced),
        Volume::Damaged => Err(Refusal::Damaged),
        Volume::Unknown => Err(Refusal::Unknown),
    }
}

/// `NodeExpandVolume`: the size that the volume has, if it is one of those asked for. The provisioner makes volumes
/// larger, because it alone knows what else the disk has promised.
pub(crate) fn expand(range: Range, size: Bytes) -> Result<Bytes, Refusal> {
    let fits = range.required.is_none_or(|least| least <= size) && range.limit.is_none_or(|most| size <= most);
    if fits { Ok(size) } else { Err(Refusal::Size { size }) }
}

#[cfg(test)]
mod tests;
