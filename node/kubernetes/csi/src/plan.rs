//! The remaining steps of a call, from the request and the state of the host. Pure.

use std::fmt;

use mount::Attributes;
use units::Bytes;

use crate::request::{Mode, Publish, Range, Sharing};

/// The state of a volume and a target, as the host read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeView {
    pub volume: Volume,
    pub target: Target,
    /// Other targets of the volume. [`Elsewhere::Nowhere`] also if the request does not depend on them.
    pub elsewhere: Elsewhere,
    /// The loop device of a block volume: for a publish, the one with the requested access; for an unpublish, one
    /// without other targets, if any.
    pub device: Device,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Volume {
    Known(Mode),
    /// The volume is still being provisioned.
    NotAnnounced,
    /// The volume's record or image cannot be used.
    Damaged,
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    NoParent,
    Absent,
    /// A directory or empty file without a mount: an earlier call stopped here, or the node restarted.
    Bare(Shape),
    /// This volume is published. The `read_only` of a block volume is that of its device.
    Published(Attributes),
    /// The directory of a deleted volume, or the node of a loop device that was detached or attached to another file.
    Stale,
    OtherVolume,
    /// A mount that does not belong to a volume.
    Foreign,
    /// A symbolic link, or a file with content.
    Obstructed,
}

/// The kind of mount point of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    Directory,
    /// Mount point of a device node.
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

/// Whether a volume has other targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Elsewhere {
    Nowhere,
    Published,
}

/// A volume's loop device, see [`VolumeView::device`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    Absent,
    /// Attached, without other targets.
    Idle,
    /// Attached, with other targets.
    Shared,
}

/// An idempotent change at a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    CreateTarget(Shape),
    Attach {
        read_only: bool,
    },
    /// Limits the I/O on the device, before a pod has it. The limits end with the device. The step is always planned,
    /// because the record may get limits after the look, and that change reaches only devices that exist.
    Limit,
    /// The mount has these attributes from the start.
    Bind(Attributes),
    Unmount,
    RemoveTarget,
    /// Detaches the volume's loop devices without other targets.
    Detach,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    #[error("the volume does not exist on this node")]
    Unknown,
    #[error("the volume is still being provisioned; try again")]
    NotAnnounced,
    #[error("the volume's record or image cannot be used; the node's log has the reason")]
    Damaged,
    #[error("the volume is a {is} volume; set volumeMode of its claim to match")]
    Mode { is: Mode },
    #[error("the parent directory of the target does not exist")]
    NoParent,
    #[error("the volume is published at the target with other options; unpublish it first")]
    Differs,
    #[error("another volume is published at the target; unpublish that volume first")]
    OtherVolume,
    /// Not a target of the volume that is unpublished.
    #[error("another volume is published at the target; unpublish that volume first")]
    NotTarget,
    #[error("another file system is mounted at the target; unmount it")]
    Foreign,
    #[error("the target exists and is not {wanted}; inspect it, then remove it")]
    Obstructed { wanted: Shape },
    #[error("the target is a symbolic link or a file with content; inspect it, then remove it")]
    NotRemovable,
    #[error("the volume is published elsewhere on this node and its access mode allows one target")]
    InUse,
    #[error("the volume is not published at the path")]
    NotPublished,
    #[error("the volume has {size}, which is outside the requested range; change the claim's request")]
    Size { size: Bytes },
    #[error("the volume has no quota although its record has one; restart the node's storage")]
    NoQuota,
}

/// Accepts `noexec`, which earlier releases set on directories, until the target is unpublished.
fn suffices(found: Attributes, wanted: Attributes) -> bool {
    found == wanted || found == Attributes { no_exec: true, ..wanted }
}

/// The table of CSI's `NodePublishVolume`.
pub(crate) fn publish(want: &Publish, seen: &VolumeView) -> Result<Vec<Step>, PlanError> {
    is(seen.volume, Some(want.mode))?;
    let shape = Shape::of(want.mode);
    let mut steps = match seen.target {
        Target::Absent => vec![Step::CreateTarget(shape)],
        Target::Bare(found) if found == shape => vec![],
        Target::Published(found) if suffices(found, want.attributes) => return Ok(vec![]),
        Target::Stale if want.mode == Mode::Block => vec![Step::Unmount],
        Target::Published(_) => return Err(PlanError::Differs),
        Target::NoParent => return Err(PlanError::NoParent),
        Target::OtherVolume => return Err(PlanError::OtherVolume),
        Target::Foreign | Target::Stale => return Err(PlanError::Foreign),
        Target::Bare(_) | Target::Obstructed => return Err(PlanError::Obstructed { wanted: shape }),
    };
    if want.mode == Mode::Block {
        if seen.device == Device::Absent {
            steps.push(Step::Attach { read_only: want.attributes.read_only });
        }
        steps.push(Step::Limit);
    }
    steps.push(Step::Bind(want.attributes));
    match (want.sharing, seen.elsewhere) {
        (Sharing::OneTarget, Elsewhere::Published) => Err(PlanError::InUse),
        (Sharing::OneTarget, Elsewhere::Nowhere) | (Sharing::ManyTargets, _) => Ok(steps),
    }
}

/// Plans how to undo the steps `done` of a publish, after the next step, `failed`, failed.
pub(crate) fn undo(done: &[Step], failed: Step) -> Vec<Step> {
    let opposite = |step: &Step| match step {
        Step::CreateTarget(_) => Some(Step::RemoveTarget),
        Step::Limit => Some(Step::Detach),
        Step::Bind(_) => Some(Step::Unmount),
        // The removed mount was stale. `Limit` follows each `Attach`.
        Step::Unmount | Step::RemoveTarget | Step::Attach { .. } | Step::Detach => None,
    };
    // A `Limit` that fails may have attached the image, if the device that the look found was gone.
    let attached = (failed == Step::Limit).then_some(&failed);
    done.iter().chain(attached).rev().filter_map(opposite).collect()
}

/// Accepts a deleted volume that is still mounted, because the kubelet would retry forever after an error.
pub(crate) fn unpublish(seen: &VolumeView) -> Result<Vec<Step>, PlanError> {
    let mut steps = match (seen.target, seen.volume) {
        (Target::NoParent | Target::Absent, _) => vec![],
        (Target::Bare(_), _) => vec![Step::RemoveTarget],
        (Target::Published(_) | Target::Stale, _) => vec![Step::Unmount, Step::RemoveTarget],
        (Target::OtherVolume, _) => return Err(PlanError::NotTarget),
        (Target::Foreign, _) => return Err(PlanError::Foreign),
        (Target::Obstructed, _) => return Err(PlanError::NotRemovable),
    };
    if seen.device == Device::Idle {
        steps.push(Step::Detach);
    }
    Ok(steps)
}

/// The volume's mode, if the volume can be used in the wanted one.
pub(crate) fn is(volume: Volume, wanted: Option<Mode>) -> Result<Mode, PlanError> {
    match volume {
        Volume::Known(is) if wanted.is_none_or(|wanted| wanted == is) => Ok(is),
        Volume::Known(is) => Err(PlanError::Mode { is }),
        Volume::NotAnnounced => Err(PlanError::NotAnnounced),
        Volume::Damaged => Err(PlanError::Damaged),
        Volume::Unknown => Err(PlanError::Unknown),
    }
}

/// The volume's size, if it is in the requested range. The provisioner expands volumes, because it has the reservations
/// of the whole disk.
pub(crate) fn expand(range: Range, size: Bytes) -> Result<Bytes, PlanError> {
    if range.contains(size) { Ok(size) } else { Err(PlanError::Size { size }) }
}

#[cfg(test)]
mod tests;
