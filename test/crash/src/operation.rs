//! Operations on volumes. Pure.

use std::collections::BTreeSet;
use std::fmt;

use units::Bytes;

/// Number of a volume in a history. The UID of its claim and its name are derived from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Number(pub u16);

/// Content of a slot: identifies one write of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark {
    /// Volume that was written. Its copies have the mark, too.
    pub volume: Number,
    /// Number of the write. It increases with each write to the volume, whatever the slot is.
    pub turn: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Shape {
    Filesystem,
    /// An image whose blocks are all allocated.
    Thick,
    Thin,
}

impl Shape {
    pub const ALL: [Self; 3] = [Self::Filesystem, Self::Thick, Self::Thin];
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Create the volume for a claim.
    Provision { shape: Shape, size: Bytes },
    /// Record that the volume has a PV.
    Announce,
    /// Open the volume for a pod, which writes nothing.
    Open,
    /// Publish the volume, write a mark to this slot (a file, or a part of the image), sync it, and unpublish the
    /// volume. A slot that has a mark is overwritten in place, because its blocks may be shared. `leave`: the loop
    /// device of the image stays attached, as if the kubelet was killed.
    Write { slot: u16, turn: u16, leave: bool },
    /// Expand the volume.
    Expand { to: Bytes },
    /// Expand the volume while a pod writes, as in [`Action::Write`].
    ExpandAndWrite { to: Bytes, slot: u16, turn: u16 },
    /// Expand and retire the volume: either operation may be the first.
    ExpandAndRetire { to: Bytes },
    /// The PV is deleted, and its policy is Retain. The disk does not change.
    Retain,
    /// An administrator creates a PV for the retained volume, and a claim binds to it.
    Adopt,
    /// Retire the volume: its claim is deleted, and the policy of its PV is Delete.
    Retire,
    /// Restore a retired volume: the policy of its PV became Retain before the PV was deleted.
    Restore,
    /// Remove the data of a retired volume.
    Discard,
    /// Remove a volume whose claim was deleted before it had a PV.
    Undo,
    /// First call of a clone of this volume, after which blocks may be shared. For a directory, this call clones all
    /// files.
    Clone { source: Number, shape: Shape, size: Bytes },
    /// First call for a snapshot of this volume. A thin snapshot is then ready.
    Snapshot { source: Number, is_thin: bool },
    /// First call for a volume that is restored from this snapshot.
    RestoreSnapshot { source: Number, shape: Shape, size: Bytes },
    /// All further calls, until a copy shares no block.
    Copy,
    /// Remove a snapshot: its content object is deleted, and the policy is Delete.
    RemoveSnapshot,
    /// First call for snapshots of two volumes at one instant. `second` is the number of the second snapshot.
    SnapshotGroup { source: Number, second: Number, second_source: Number },
    /// All calls until the volume has the content of the snapshot. The former content becomes a snapshot, which has the
    /// number of the operation.
    RollBack { volume: Number, source: Number },
}

/// One action on one volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    pub volume: Number,
    pub action: Action,
}

/// Name of an action, and the kind of its volume.
pub type Case = (&'static str, Shape);

impl Action {
    /// Name of [`Action::RemoveSnapshot`] for a thin snapshot.
    pub(crate) const REMOVE_THIN: &'static str = "remove thin snapshot";

    /// Names of all actions.
    const NAMES: [&'static str; 22] = [
        "provision",
        "announce",
        "open",
        "write",
        "expand",
        "expand and write",
        "expand and retire",
        "retain",
        "adopt",
        "retire",
        "restore",
        "discard",
        "undo",
        "clone",
        "snapshot",
        "thin snapshot",
        "restore snapshot",
        "copy",
        "remove snapshot",
        Self::REMOVE_THIN,
        "snapshot group",
        "rollback",
    ];

    /// Volumes and snapshots that the action reads or changes, in addition to its own volume.
    pub(crate) fn others(self) -> impl Iterator<Item = Number> {
        let others = match self {
            Self::Clone { source, .. } | Self::Snapshot { source, .. } | Self::RestoreSnapshot { source, .. } => {
                [Some(source), None, None]
            }
            Self::RollBack { volume, source } => [Some(volume), Some(source), None],
            Self::SnapshotGroup { source, second, second_source } => [Some(source), Some(second), Some(second_source)],
            _ => [None; 3],
        };
        others.into_iter().flatten()
    }

    pub const fn name(self) -> &'static str {
        match self {
            Self::Provision { .. } => "provision",
            Self::Announce => "announce",
            Self::Open => "open",
            Self::Write { .. } => "write",
            Self::Expand { .. } => "expand",
            Self::ExpandAndWrite { .. } => "expand and write",
            Self::ExpandAndRetire { .. } => "expand and retire",
            Self::Retain => "retain",
            Self::Adopt => "adopt",
            Self::Retire => "retire",
            Self::Restore => "restore",
            Self::Discard => "discard",
            Self::Undo => "undo",
            Self::Clone { .. } => "clone",
            Self::Snapshot { is_thin: false, .. } => "snapshot",
            Self::Snapshot { is_thin: true, .. } => "thin snapshot",
            Self::RestoreSnapshot { .. } => "restore snapshot",
            Self::Copy => "copy",
            Self::RemoveSnapshot => "remove snapshot",
            Self::SnapshotGroup { .. } => "snapshot group",
            Self::RollBack { .. } => "rollback",
        }
    }
}

/// Each action on each kind of volume. The kind of a snapshot is that of its source.
pub fn every_case() -> BTreeSet<Case> {
    Shape::ALL.into_iter().flat_map(|shape| Action::NAMES.map(|name| (name, shape))).collect()
}

impl Operation {
    pub(crate) fn touches(self, volume: Number) -> bool {
        self.volume == volume || self.action.others().any(|other| other == volume)
    }

    /// Slot that the operation writes, and its mark afterwards.
    pub(crate) fn written(self) -> Option<(u16, Mark)> {
        match self.action {
            Action::Write { slot, turn, .. } | Action::ExpandAndWrite { slot, turn, .. } => {
                Some((slot, Mark { volume: self.volume, turn }))
            }
            _ => None,
        }
    }

    /// The same operation, with `last` added to all numbers of volumes.
    pub(crate) fn after_number(self, last: u16) -> Self {
        let number = |Number(number)| Number(last + number);
        let action = match self.action {
            Action::Clone { source, shape, size } => Action::Clone { source: number(source), shape, size },
            Action::Snapshot { source, is_thin } => Action::Snapshot { source: number(source), is_thin },
            Action::RestoreSnapshot { source, shape, size } => {
                Action::RestoreSnapshot { source: number(source), shape, size }
            }
            Action::RollBack { volume, source } => Action::RollBack { volume: number(volume), source: number(source) },
            Action::SnapshotGroup { source, second, second_source } => {
                let [source, second, second_source] = [source, second, second_source].map(number);
                Action::SnapshotGroup { source, second, second_source }
            }
            action => action,
        };
        Self { volume: number(self.volume), action }
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pvc-{}", self.0)
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Filesystem => "directory",
            Self::Thick => "thick image",
            Self::Thin => "thin image",
        })
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Provision { shape, size } => write!(f, "provision {shape} of {size}"),
            Self::Write { slot, turn, leave: false } => write!(f, "write {turn} of slot {slot}"),
            Self::Write { slot, turn, leave: true } => write!(f, "write {turn} of slot {slot}, leave it attached"),
            Self::Expand { to } => write!(f, "expand to {to}"),
            Self::ExpandAndWrite { to, slot, turn } => write!(f, "expand to {to} and write {turn} of slot {slot}"),
            Self::ExpandAndRetire { to } => write!(f, "expand to {to} and retire"),
            Self::Clone { source, shape, size } => write!(f, "clone {source} into {shape} of {size}"),
            Self::RestoreSnapshot { source, shape, size } => {
                write!(f, "restore snapshot {source} into {shape} of {size}")
            }
            Self::Snapshot { source, is_thin: false } => write!(f, "snapshot of {source}"),
            Self::Snapshot { source, is_thin: true } => write!(f, "thin snapshot of {source}"),
            Self::SnapshotGroup { source, second, second_source } => {
                write!(f, "snapshot of {source}, together with {second} of {second_source}")
            }
            Self::RollBack { volume, source } => write!(f, "keeps {volume}, rollback to {source}"),
            _ => f.write_str(self.name()),
        }
    }
}
