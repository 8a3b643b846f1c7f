//! Operations on volumes. Pure.

use std::collections::BTreeSet;
use std::fmt;

use units::Bytes;

/// A volume of a history: the claim's UID and the volume's name come from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Number(pub u16);

/// The content of a slot: one write of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark {
    /// The volume that was written. Its copies have the mark, too.
    pub volume: Number,
    /// Later writes of the volume have higher numbers, whatever they write.
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
    /// There is a claim, and the volume is created for it.
    Provision { shape: Shape, size: Bytes },
    /// There is a PV for the volume.
    Announce,
    /// The volume is opened for a pod, which writes nothing.
    Open,
    /// The volume is published, marked in this slot (a file, or a place of the image), synced, and taken back from the
    /// pod. A slot that has a mark is overwritten in place: its blocks may be shared. `leave`: the image's loop device
    /// stays attached, as after kubelet was killed.
    Write { slot: u16, turn: u16, leave: bool },
    /// The claim asks for more.
    Expand { to: Bytes },
    /// The claim asks for more while a pod writes, as in [`Action::Write`].
    ExpandAndWrite { to: Bytes, slot: u16, turn: u16 },
    /// The claim asks for more and is deleted at once: either operation may be the first.
    ExpandAndRetire { to: Bytes },
    /// The PV is deleted, and its policy says Retain.
    Retain,
    /// An administrator creates a PV for the retained volume, and a claim binds to it.
    Adopt,
    /// The claim is gone and the PV's policy says Delete.
    Retire,
    /// The PV's policy became Retain before the PV was deleted.
    Restore,
    /// The data of a retired volume is removed.
    Discard,
    /// The claim is gone before there was a PV.
    Undo,
    /// There is a claim with this volume as its source: one call, after which blocks may be shared. Of a directory, this call
    /// clones all files.
    Clone { source: Number, shape: Shape, size: Bytes },
    /// There is a snapshot of this volume: one call. A thin one is ready then.
    Snapshot { source: Number, is_thin: bool },
    /// There is a claim with this snapshot as its source: one call.
    RestoreSnapshot { source: Number, shape: Shape, size: Bytes },
    /// Calls until a copy shares no block.
    Copy,
    /// The content of the snapshot is gone, and its policy says Delete.
    RemoveSnapshot,
    /// There are snapshots of two volumes at one instant: one call. The second one has this number.
    SnapshotGroup { source: Number, second: Number, second_source: Number },
    /// The claim of this volume names a snapshot: all calls until the volume has its content. The former content becomes a
    /// snapshot, which has the number of the operation.
    RollBack { volume: Number, source: Number },
}

/// One action on one volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    pub volume: Number,
    pub action: Action,
}

/// An action by its name, and the kind of volume that it is done to.
pub type Case = (&'static str, Shape);

impl Action {
    /// [`Action::RemoveSnapshot`] of a thin one.
    pub(crate) const REMOVE_THIN: &'static str = "remove thin snapshot";

    /// By their names.
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

    /// The volumes and snapshots that it reads or changes beside its own.
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

/// Each operation on each kind of volume. That of a snapshot is the kind of its source.
pub fn every_case() -> BTreeSet<Case> {
    Shape::ALL.into_iter().flat_map(|shape| Action::NAMES.map(|name| (name, shape))).collect()
}

impl Operation {
    pub(crate) fn touches(self, volume: Number) -> bool {
        self.volume == volume || self.action.others().any(|other| other == volume)
    }

    /// The slot that is written, and what it contains afterwards.
    pub(crate) fn written(self) -> Option<(u16, Mark)> {
        match self.action {
            Action::Write { slot, turn, .. } | Action::ExpandAndWrite { slot, turn, .. } => {
                Some((slot, Mark { volume: self.volume, turn }))
            }
            _ => None,
        }
    }

    /// The same with other numbers.
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
