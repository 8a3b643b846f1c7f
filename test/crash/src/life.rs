//! The life of a volume: its states between two operations. Pure.

use std::collections::BTreeMap;

use units::{Bytes, Inodes};

use crate::operation::{Action, Mark, Number, Operation, Shape};

pub const SLOT: Bytes = Bytes::new(8 << 10);

pub(crate) const INODES: Inodes = Inodes::new(256);

/// Inode limit of a block volume: its directory and its image.
pub(crate) const IMAGE_INODES: Inodes = Inodes::new(2);

/// State of a volume between two operations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Life {
    #[default]
    Unborn,
    /// A copy that may still share blocks with its source.
    Copying(Body),
    /// A snapshot whose blocks are copied, or a thin one.
    Snapshot(Body),
    Staged(Body),
    Announced(Body),
    Retired(Body),
    /// The volume has neither a PV nor a claim.
    Retained(Body),
    /// The volume was removed. It does not come back: a new claim of the same name has another UID. The origin is set
    /// if the volume shared blocks at its end.
    Gone(Option<Origin>),
}

/// The volumes between two rounds.
pub type Lives = BTreeMap<Number, Life>;

/// The source of a copy, as it was when the copy began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    pub source: Number,
    /// Size of the source at that instant. The limit of the source is raised by this size while blocks are shared.
    pub headroom: Bytes,
}

/// How large a volume is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size {
    pub bytes: Bytes,
    /// Limit of files and directories.
    pub inodes: Inodes,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Body {
    pub shape: Shape,
    pub asked: Bytes,
    pub size: Size,
    /// Size that an expansion may have set before the volume was retired.
    pub grown: Option<Size>,
    /// Slots that were written and synced, with the marks of their content.
    pub written: BTreeMap<u16, Mark>,
    /// Number of the last write, also if a rollback removed its content.
    pub turn: u16,
    /// Whether it was ever opened for a pod.
    pub opened: bool,
    pub origin: Option<Origin>,
    pub is_snapshot: bool,
    /// Whether the snapshot shares blocks as long as it exists.
    pub is_thin: bool,
    /// The other member of its group.
    pub together: Option<Number>,
}

impl Body {
    pub(crate) fn new(shape: Shape, size: Bytes) -> Self {
        let (asked, size) = (size, Size::new(shape, size));
        let (written, turn, opened, is_snapshot, is_thin) = Default::default();
        let (grown, origin, together) = (None, None, None);
        Self { shape, asked, size, grown, written, turn, opened, origin, is_snapshot, is_thin, together }
    }

    /// A copy of `source`, which has this body, if that is possible.
    pub(crate) fn copy(&self, source: Number, shape: Shape, size: Bytes) -> Option<Self> {
        let is_files = |shape| shape == Shape::Filesystem;
        let is_possible = is_files(self.shape) == is_files(shape) && size >= self.size.bytes;
        let origin = Origin { source, headroom: self.size.bytes };
        is_possible.then(|| Self { written: self.written.clone(), origin: Some(origin), ..Self::new(shape, size) })
    }

    /// The thin form of a snapshot. A thin snapshot does not raise the limit of a source that is a directory.
    fn thin(mut self) -> Self {
        self.is_thin = true;
        if let (Shape::Filesystem, Some(origin)) = (self.shape, &mut self.origin) {
            origin.headroom = Bytes::ZERO;
        }
        self
    }

    /// Whether the whole content of the source is durable when the first call of this copy returns. True for
    /// directories and for snapshots.
    pub(crate) fn is_complete_at_once(&self) -> bool {
        self.origin.is_some() && (self.shape == Shape::Filesystem || self.is_snapshot)
    }
}

/// Lives that an operation changes. `None` if the operation is not possible now.
pub fn after(operation: Operation, lives: &Lives) -> Option<Vec<(Number, Life)>> {
    let Operation { volume, action } = operation;
    let life = lives.get(&volume).cloned().unwrap_or_default();
    match action {
        Action::RollBack { volume: rolled, source } if life == Life::Unborn => {
            let [kept, back] = rolled_back(rolled, source, lives)?;
            Some(vec![(volume, Life::Snapshot(kept)), (rolled, Life::Announced(back))])
        }
        Action::SnapshotGroup { source, second, second_source } if source != second_source => {
            let members = [(volume, source, second), (second, second_source, volume)];
            let taken = |(number, source, other): (Number, Number, Number)| {
                let life = lives.get(&number).cloned().unwrap_or_default();
                match life.after(number, Action::Snapshot { source, is_thin: false }, lives)? {
                    Life::Copying(body) => Some((number, Life::Copying(Body { together: Some(other), ..body }))),
                    _ => None,
                }
            };
            members.into_iter().map(taken).collect()
        }
        action => Some(vec![(volume, life.after(volume, action, lives)?)]),
    }
}

/// The kept snapshot and the volume after a rollback.
fn rolled_back(volume: Number, source: Number, lives: &Lives) -> Option<[Body; 2]> {
    let (Life::Announced(body), Life::Snapshot(from)) = (lives.get(&volume)?, lives.get(&source)?) else { return None };
    // The exchange waits for copies of the volume.
    let copied = from.copy(source, body.shape, body.size.bytes).filter(|_| !is_shared(volume, lives))?;
    let kept = Body { is_snapshot: true, origin: None, ..body.clone() };
    Some([kept, Body { written: copied.written, opened: true, ..body.clone() }])
}

/// Whether a copy may share blocks with this volume.
pub(crate) fn is_shared(volume: Number, lives: &Lives) -> bool {
    let shares =
        |life: &Life| matches!(life, Life::Copying(body) if body.origin.is_some_and(|origin| origin.source == volume));
    lives.values().any(shares)
}

pub(crate) fn has_thin_snapshot(volume: Number, lives: &Lives) -> bool {
    let is_of = |body: &Body| body.is_thin && body.origin.is_some_and(|origin| origin.source == volume);
    lives.values().any(|life| matches!(life, Life::Snapshot(body) if is_of(body)))
}

impl Life {
    /// The life after an action of this volume alone. `None` if the action is not possible now. `lives` has the source
    /// of a copy.
    fn after(self, volume: Number, action: Action, lives: &Lives) -> Option<Self> {
        match (self, action) {
            (Self::Unborn, Action::Provision { shape, size }) => Some(Self::Staged(Body::new(shape, size))),
            (Self::Unborn, Action::Clone { source, shape, size }) => match lives.get(&source)? {
                Self::Announced(from) => from.copy(source, shape, size).map(Self::Copying),
                _ => None,
            },
            (Self::Unborn, Action::Snapshot { source, is_thin }) => match lives.get(&source)? {
                Self::Announced(from) => {
                    let body = from.copy(source, from.shape, from.size.bytes)?;
                    let body = Body { is_snapshot: true, size: from.size, ..body };
                    Some(if is_thin { Self::Snapshot(body.thin()) } else { Self::Copying(body) })
                }
                _ => None,
            },
            (Self::Unborn, Action::RestoreSnapshot { source, shape, size }) => match lives.get(&source)? {
                Self::Snapshot(from) => from.copy(source, shape, size).map(Self::Copying),
                _ => None,
            },
            (Self::Copying(body), Action::Copy) if body.is_snapshot => Some(Self::Snapshot(body)),
            (Self::Copying(body), Action::Copy) => Some(Self::Staged(body)),
            (Self::Copying(body), Action::Undo) if !body.is_snapshot => Some(Self::Gone(body.origin)),
            (Self::Copying(body), Action::RemoveSnapshot) if body.is_snapshot => Some(Self::Gone(body.origin)),
            // A copy of a thin snapshot also shares blocks with the source of the snapshot. The copy ends before the
            // snapshot is removed.
            (Self::Snapshot(body), Action::RemoveSnapshot) if body.is_thin => {
                (!is_shared(volume, lives)).then_some(Self::Gone(body.origin))
            }
            (Self::Snapshot(_), Action::RemoveSnapshot) => Some(Self::Gone(None)),
            (Self::Staged(body), Action::Announce) => Some(Self::Announced(body)),
            (Self::Staged(_), Action::Undo) | (Self::Retired(_), Action::Discard) => Some(Self::Gone(None)),
            (Self::Announced(body), Action::Open) => Some(Self::Announced(Body { opened: true, ..body })),
            (Self::Announced(mut body), Action::Write { slot, turn, .. })
                if slot < slots(body.size) && turn > body.turn =>
            {
                body.opened = true;
                body.turn = turn;
                body.written.insert(slot, Mark { volume, turn });
                Some(Self::Announced(body))
            }
            (Self::Announced(body), Action::Expand { to }) if to > body.size.bytes => {
                Some(Self::Announced(Body { size: body.size.grown(body.shape, to), ..body }))
            }
            (life @ Self::Announced(_), Action::ExpandAndWrite { to, slot, turn }) => {
                let written = life.after(volume, Action::Write { slot, turn, leave: false }, lives)?;
                written.after(volume, Action::Expand { to }, lives)
            }
            (Self::Announced(body), Action::ExpandAndRetire { to }) if to > body.size.bytes => {
                Some(Self::Retired(Body { grown: Some(body.size.grown(body.shape, to)), ..body }))
            }
            (Self::Announced(body), Action::Retire) => Some(Self::Retired(body)),
            (Self::Retired(body), Action::Restore) if body.grown.is_none() => Some(Self::Announced(body)),
            // The announcement of a volume that was never opened may be lost, and then the volume is undone.
            (Self::Announced(body), Action::Retain) if body.opened => Some(Self::Retained(body)),
            (Self::Retained(body), Action::Adopt) => Some(Self::Announced(body)),
            _ => None,
        }
    }
}

impl Life {
    /// Each action of a volume once, except those that create a volume or snapshot. Not all of them are possible.
    pub(crate) fn candidates(&self, volume: Number, shape: Shape, lives: &Lives) -> [Action; 14] {
        let (size, slot, last) = match self {
            Self::Unborn | Self::Gone(_) => (Bytes::ZERO, 0, 0),
            Self::Copying(body)
            | Self::Snapshot(body)
            | Self::Staged(body)
            | Self::Announced(body)
            | Self::Retired(body)
            | Self::Retained(body) => {
                let is_free = |slot: &u16| !body.written.contains_key(slot);
                let shares = is_shared(volume, lives) || has_thin_snapshot(volume, lives);
                let shared = body.written.keys().next().copied().filter(|_| shares);
                let free = (0..slots(body.size)).rev().find(is_free);
                let slot = shared.or(free).unwrap_or_default();
                (body.size.bytes, slot, body.turn)
            }
        };
        let (to, turn) = (size.saturating_add(Bytes::MIB), last + 1);
        [
            Action::Copy,
            Action::RemoveSnapshot,
            Action::Announce,
            Action::Open,
            Action::Write { slot, turn, leave: shape == Shape::Thin },
            Action::Expand { to },
            Action::ExpandAndWrite { to, slot, turn },
            Action::ExpandAndRetire { to },
            Action::Retain,
            Action::Adopt,
            Action::Retire,
            Action::Restore,
            Action::Discard,
            Action::Undo,
        ]
    }
}

impl Size {
    pub(crate) const fn new(shape: Shape, bytes: Bytes) -> Self {
        let inodes = match shape {
            Shape::Filesystem => INODES,
            Shape::Thick | Shape::Thin => IMAGE_INODES,
        };
        Self { bytes, inodes }
    }

    /// The size after an expansion. The inode limit of a directory grows in proportion.
    fn grown(self, shape: Shape, to: Bytes) -> Self {
        let inodes = match shape {
            Shape::Filesystem => Inodes::new((self.inodes.get() * to.get()).div_ceil(self.bytes.get())),
            Shape::Thick | Shape::Thin => self.inodes,
        };
        Self { bytes: to, inodes }
    }
}

/// Number of slots in a volume of this size. The last slot is at its end.
pub(crate) fn slots(size: Size) -> u16 {
    u16::try_from(size.bytes.get() / SLOT.get()).unwrap_or(u16::MAX)
}
