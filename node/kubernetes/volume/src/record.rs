//! The record of each volume.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use fsquota::{Limits, ProjectId};
use serde::{Deserialize, Serialize};
use units::{Bytes, Inodes};

use crate::{IoLimits, VolumeId, VolumeMode, image};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// Distinguishes successive claims with the same name.
    pub uid: String,
    pub namespace: String,
    pub name: String,
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.namespace.as_str() {
            "" => f.write_str(&self.name),
            namespace => write!(f, "{namespace}/{}", self.name),
        }
    }
}

/// The part of the node that creates, expands and deletes a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Owner {
    /// The provisioner. It removes the volume when no claim and no PV need it.
    #[default]
    Provisioner,
    /// The CSI Controller service. Only its client removes the volume, whose [`Claim::uid`] is the name that the client
    /// gave it. The namespace of the claim is empty if the client did not send it.
    Controller {
        /// Volume whose content the new one began with. A request with the same name and another source is a conflict.
        source: Option<VolumeId>,
    },
    /// The provisioner, until a rollback has ended. The record belongs to the snapshot that keeps the former content.
    Rollback(Rollback),
}

/// Rollback of a volume: a new snapshot gets the content of another snapshot, and then exchanges it for the content of
/// the volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rollback {
    pub volume: VolumeId,
    /// Snapshot that has the content for the volume.
    pub source: VolumeId,
    /// Project of the volume before the exchange. A directory keeps its project, so the records exchange theirs.
    pub project: ProjectId,
    /// When an image of the volume gets its blocks.
    pub allocation: Allocation,
}

impl Owner {
    pub fn is_provisioner(&self) -> bool {
        *self == Self::Provisioner
    }
}

/// How pods see the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Mode {
    /// A directory with a quota.
    Filesystem {
        /// Maximum number of files and directories.
        inodes: Inodes,
    },
    /// A disk: an image in a directory with a quota.
    Block {
        /// When the image gets its blocks.
        allocation: Allocation,
    },
    /// Image of a disk at one instant. No pod can use it.
    Snapshot {
        taken: SystemTime,
        #[serde(default, skip_serializing_if = "Sharing::is_temporary")]
        sharing: Sharing,
    },
    /// Files of a volume at one instant. No pod can use them.
    SnapshotTree {
        taken: SystemTime,
        /// Maximum number of inodes, as for the volume.
        inodes: Inodes,
        #[serde(default, skip_serializing_if = "Sharing::is_temporary")]
        sharing: Sharing,
    },
}

/// How long a snapshot shares blocks with its source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sharing {
    /// Until passes have copied the blocks.
    #[default]
    Temporary,
    /// For as long as the snapshot exists. Such a snapshot is thin: its space is not reserved.
    Permanent,
}

impl Sharing {
    pub fn is_temporary(&self) -> bool {
        *self == Self::Temporary
    }
}

/// When the blocks of an image are allocated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Allocation {
    /// All blocks at creation and expansion.
    #[default]
    Thick,
    /// Each block when it is first written.
    Thin,
}

impl Mode {
    /// Whether the volume is an image: a disk, or a snapshot of one.
    pub const fn is_block(self) -> bool {
        matches!(self, Self::Block { .. } | Self::Snapshot { .. })
    }

    pub const fn is_snapshot(self) -> bool {
        matches!(self, Self::Snapshot { .. } | Self::SnapshotTree { .. })
    }

    /// Whether the volume is a snapshot that shares blocks for as long as it exists.
    pub const fn is_thin(self) -> bool {
        matches!(
            self,
            Self::Snapshot { sharing: Sharing::Permanent, .. } | Self::SnapshotTree { sharing: Sharing::Permanent, .. }
        )
    }

    /// Whether a volume of this mode and owner has [`State::Complete`] while its blocks are copied.
    pub(crate) const fn is_complete_early(self, owner: &Owner) -> bool {
        self.is_snapshot() && !self.is_thin() && !matches!(owner, Owner::Rollback(_))
    }

    /// The mode of a snapshot of a volume with this mode. The record gets the instant. A snapshot that has begun keeps
    /// its sharing, whatever parameters its class has now: its record has the headroom of this sharing.
    pub(crate) const fn snapshot(self, sharing: Sharing) -> Self {
        let taken = SystemTime::UNIX_EPOCH;
        match self {
            Self::Filesystem { inodes } => Self::SnapshotTree { taken, inodes, sharing },
            Self::Block { .. } => Self::Snapshot { taken, sharing },
            Self::Snapshot { .. } | Self::SnapshotTree { .. } => self.taken_at(taken),
        }
    }

    /// A snapshot with the present instant. Other modes do not change.
    pub(crate) fn at_present(self) -> Self {
        self.taken_at(SystemTime::now())
    }

    /// A snapshot with this instant. Other modes do not change.
    pub(crate) const fn taken_at(self, taken: SystemTime) -> Self {
        match self {
            Self::Snapshot { sharing, .. } => Self::Snapshot { taken, sharing },
            Self::SnapshotTree { inodes, sharing, .. } => Self::SnapshotTree { taken, inodes, sharing },
            Self::Filesystem { .. } | Self::Block { .. } => self,
        }
    }

    /// Instant of a snapshot.
    pub const fn taken(self) -> Option<SystemTime> {
        match self {
            Self::Snapshot { taken, .. } | Self::SnapshotTree { taken, .. } => Some(taken),
            Self::Filesystem { .. } | Self::Block { .. } => None,
        }
    }

    /// When an image gets its blocks. A snapshot has the holes of its source.
    pub(crate) fn allocation(self) -> Allocation {
        match self {
            Self::Block { allocation } => allocation,
            Self::Snapshot { .. } => Allocation::Thin,
            Self::Filesystem { .. } | Self::SnapshotTree { .. } => Allocation::default(),
        }
    }

    pub(crate) fn limits(self, size: Bytes) -> Limits {
        match self {
            Self::Filesystem { inodes } => Limits { bytes: Some(size), inodes: Some(inodes) },
            Self::SnapshotTree { inodes, .. } => Limits { bytes: Some(image::taken(size)), inodes: Some(inodes) },
            Self::Block { .. } | Self::Snapshot { .. } => {
                Limits { bytes: Some(image::taken(size)), inodes: Some(image::INODES) }
            }
        }
    }

    /// The maximum that a volume of this size takes from the disk: the blocks that its quota allows, and the inodes,
    /// which XFS does not charge to the quota of blocks.
    pub fn reserved(self, size: Bytes) -> Bytes {
        taken(self.limits(size))
    }

    /// Mode after the volume grew: the limit of inodes grows in proportion.
    pub(crate) fn grown(self, from: Bytes, to: Bytes) -> Self {
        match self {
            Self::Filesystem { inodes } => {
                let share = u128::from(inodes.get()) * u128::from(to.get());
                let share = share.div_ceil(u128::from(from.get().max(1)));
                let share = u64::try_from(share).unwrap_or(u64::MAX).min(Limits::MAX_INODES.get());
                Self::Filesystem { inodes: inodes.max(Inodes::new(share)) }
            }
            Self::Block { .. } | Self::Snapshot { .. } | Self::SnapshotTree { .. } => self,
        }
    }
}

impl From<Mode> for VolumeMode {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Filesystem { .. } | Mode::SnapshotTree { .. } => Self::Filesystem,
            Mode::Block { .. } | Mode::Snapshot { .. } => Self::Block,
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Filesystem { .. } => "filesystem",
            Self::Block { .. } => "block",
            Self::Snapshot { .. } | Self::SnapshotTree { .. } => "snapshot",
        })
    }
}

impl fmt::Display for Allocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Thick => "thick",
            Self::Thin => "thin",
        })
    }
}

pub(crate) const fn inodes(count: Inodes) -> Bytes {
    Bytes::new(count.get().saturating_mul(512))
}

/// Progress of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// The API server may have no PV of the volume. A volume is undone if its claim is gone, and a snapshot if its
    /// VolumeSnapshotContent is gone.
    Staged,
    /// The snapshot has its whole content, durably, and shares blocks with its source until they are copied. It may be
    /// reported as ready: only the deletion of its VolumeSnapshotContent removes it. Members of a group may be reported
    /// when all have this state. Volumes, thin snapshots and snapshots of rollbacks never have this state.
    Complete,
    /// The PV exists, or existed: only the deletion of the PV removes the volume. A snapshot is ready and shares no
    /// block, unless it is thin: only the deletion of its VolumeSnapshotContent removes it.
    Announced,
}

impl State {
    /// Whether the volume or snapshot may have been reported to the API server. The store undoes such a one only with a
    /// staged member of its group ([`Volumes::undo_snapshots`](crate::Volumes::undo_snapshots)).
    pub const fn is_reported(self) -> bool {
        matches!(self, Self::Complete | Self::Announced)
    }
}

/// Source of a volume whose image or files share blocks with it, or are about to. A thin snapshot has this for as long
/// as it exists.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cloning {
    pub source: VolumeId,
    /// Size of the source. The limit of the source is raised by it, so that the source can be overwritten. An image
    /// that is shorter is a partial clone. Zero for a thin snapshot of files: with headroom, a tenant could store more
    /// for as long as the snapshot exists.
    pub headroom: Bytes,
    /// Whether the directory has all files of the source, as they were at one instant. Not used for images, whose size
    /// shows that.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub complete: bool,
}

impl Cloning {
    pub const fn new(source: VolumeId, headroom: Bytes) -> Self {
        Self { source, headroom, complete: false }
    }
}

/// Data of a volume that does not depend on the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// For a snapshot: namespace and name of the VolumeSnapshot, and the UID of its content. For a snapshot that keeps
    /// the content before a rollback: the UID of the claim.
    pub claim: Claim,
    pub owner: Owner,
    pub class: String,
    pub mode: Mode,
    pub size: Bytes,
    pub project: ProjectId,
    /// `None` also for a clone that shares nothing any more. A thin snapshot has it to its end, even if its source ends
    /// before.
    pub cloning: Option<Cloning>,
    /// No limits for a filesystem volume or a snapshot.
    pub io: IoLimits,
    pub state: State,
}

#[derive(Clone, Debug, thiserror::Error)]
pub enum RecordError {
    #[error("the record has version {0}, this release reads up to version {VERSION}; start the newer release again")]
    Version(u32),
    #[error(
        "the record has version 1, which this release does not read; start the previous release and expand the volume's \
         claim there, which rewrites the record, or restore the data into a new volume"
    )]
    Version1,
    #[error("the record is damaged; restore it from a copy of the disk")]
    Syntax(#[source] Arc<serde_json::Error>),
    #[error("the record cannot be read")]
    Read(#[source] dir::Error),
    #[error("cannot set the limits of the record")]
    Limits(#[source] Arc<fsquota::SetError>),
}

impl RecordError {
    /// Whether the content is not JSON, because the write of the record was interrupted.
    pub(crate) fn is_torn(&self) -> bool {
        matches!(self, Self::Syntax(error) if error.is_eof() || error.is_syntax())
    }
}

/// A record that cannot be written. Its file does not change.
#[derive(Debug, thiserror::Error)]
#[error("the record cannot be encoded; if the clock of the node is before 1970, set it")]
pub struct EncodeError(#[source] serde_json::Error);

/// Version of records without fields of version 3, so that earlier releases read them.
const BASE: u32 = 2;

/// Version of records with [`Cloning`]. An earlier release would finish such a volume without the content of its
/// source.
const CLONING: u32 = 3;

/// Version of snapshots. An earlier release would let pods use them, and undo those that have no claim. Also of records
/// with an [`Owner`] other than the provisioner: the provisioner of an earlier release would remove such a volume.
const OWNED: u32 = 4;

/// Version of records with [`IoLimits`]. An earlier release would not limit the I/O of pods.
const IO_LIMITS: u32 = 5;

/// Version of records with the files of a source. An earlier release would finish such a volume without them, and does
/// not read the mode of such a snapshot. Also of records with [`Rollback`]: an earlier release would remove such a
/// snapshot.
const TREES: u32 = 6;

/// Version of thin snapshots. An earlier release would copy their blocks into space that is not reserved.
const THIN: u32 = 7;

/// Version of snapshots with the mark of [`State::Complete`]. An earlier release would not copy their blocks, and would
/// remove those without a content.
const VERSION: u32 = 8;

/// The only field that is read before the version is checked.
#[derive(Deserialize)]
struct Versioned {
    version: u32,
}

/// Content of the file in versions 2 to 8. The directory of the file gives the state, with the mark of
/// [`State::Complete`].
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    version: u32,
    claim: Claim,
    #[serde(default, skip_serializing_if = "Owner::is_provisioner")]
    owner: Owner,
    class: String,
    mode: Mode,
    size_bytes: Bytes,
    project: ProjectId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cloning: Option<Cloning>,
    #[serde(default, skip_serializing_if = "IoLimits::is_none")]
    io: IoLimits,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    complete: bool,
}

impl Record {
    /// Parses the content of a record's file. The directory of the file gives the state; [`State::Complete`] is that of
    /// a marked snapshot in the directory of [`State::Staged`].
    pub fn parse(content: &[u8], state: State) -> Result<Self, RecordError> {
        let Versioned { version } = parse(content)?;
        match version {
            BASE..=VERSION => {
                let Stored { version: _, claim, owner, class, mode, size_bytes, project, cloning, io, complete } =
                    parse(content)?;
                // A snapshot without `cloning` shares no block any more, so its content was complete before.
                let is_complete = mode.is_complete_early(&owner) && (complete || cloning.is_none());
                let state = match state {
                    State::Announced => State::Announced,
                    State::Staged | State::Complete if is_complete => State::Complete,
                    State::Staged | State::Complete => State::Staged,
                };
                Ok(Self { claim, owner, class, mode, size: size_bytes, project, cloning, io, state })
            }
            1 => Err(RecordError::Version1),
            other => Err(RecordError::Version(other)),
        }
    }

    /// The content of the record's file. Fails for a snapshot before 1970, which has no form in JSON.
    pub fn to_bytes(&self) -> Result<Vec<u8>, EncodeError> {
        let Self { claim, owner, class, mode, size, project, cloning, io, state } = self.clone();
        // When the snapshot shares nothing any more, earlier releases read its record again.
        let complete = state == State::Complete && cloning.is_some();
        let version = match (mode, &owner, &cloning) {
            _ if complete => VERSION,
            _ if mode.is_thin() => THIN,
            (Mode::SnapshotTree { .. }, _, _) | (Mode::Filesystem { .. }, _, Some(_)) => TREES,
            (_, Owner::Rollback(_), _) => TREES,
            _ if !io.is_none() => IO_LIMITS,
            (Mode::Snapshot { .. }, _, _) | (_, Owner::Controller { .. }, _) => OWNED,
            (_, Owner::Provisioner, Some(_)) => CLONING,
            (_, Owner::Provisioner, None) => BASE,
        };
        let stored = Stored { version, claim, owner, class, mode, size_bytes: size, project, cloning, io, complete };
        let mut content = serde_json::to_vec(&stored).map_err(EncodeError)?;
        content.push(b'\n');
        Ok(content)
    }

    /// Space that the volume reserves. While the volume is cloned, it includes the headroom of the source. The ledger
    /// reserves nothing for a thin snapshot: the administrator who has created its class is responsible for the free
    /// space of the disk.
    pub fn reserved(&self) -> Bytes {
        if self.mode.is_thin() {
            return Bytes::ZERO;
        }
        let headroom = self.cloning.as_ref().map_or(Bytes::ZERO, |cloning| cloning.headroom);
        taken(self.limits()).saturating_add(headroom)
    }

    /// Limits of the volume. While files are cloned, former versions of those that have changed are kept beside them.
    /// While the files share blocks, XFS allocates more than it copies ([`crate::tree::end_sharing`]).
    pub(crate) fn limits(&self) -> Limits {
        match &self.cloning {
            // Nothing of a thin snapshot is copied.
            Some(cloning) if cloning.complete && self.mode.is_thin() => self.mode.limits(self.size),
            Some(cloning) if !self.mode.is_block() && cloning.complete => self.tree_limits(self.size.get() / 4, 1),
            Some(_) if !self.mode.is_block() => self.tree_limits(self.size.get(), 2),
            Some(_) | None => self.mode.limits(self.size),
        }
    }

    /// The part of these limits of the volume that `statfs` shows: the pods of a filesystem volume do not see the space
    /// to overwrite shared blocks. No pod sees the limits of images and snapshots.
    pub(crate) fn shown(&self, limits: Limits) -> Limits {
        match self.mode {
            Mode::Filesystem { .. } => self.limits(),
            Mode::Block { .. } | Mode::Snapshot { .. } | Mode::SnapshotTree { .. } => limits,
        }
    }

    /// Limits of a tree with all files of the source.
    pub(crate) fn complete_limits(&self) -> Limits {
        self.tree_limits(0, 1)
    }

    fn tree_limits(&self, more: u64, times: u64) -> Limits {
        let Limits { bytes, inodes } = self.mode.limits(self.size);
        let bytes = bytes.map(|_| image::taken(self.size.saturating_add(Bytes::new(more))));
        let inodes = inodes.map(|inodes| inodes.get().saturating_mul(times).saturating_add(SCRATCH_INODES));
        Limits { bytes, inodes: inodes.map(Inodes::new) }
    }

    /// The rollback for which the snapshot was created, until it has ended.
    pub const fn rollback(&self) -> Option<&Rollback> {
        match &self.owner {
            Owner::Rollback(rollback) => Some(rollback),
            Owner::Provisioner | Owner::Controller { .. } => None,
        }
    }

    /// Whether the snapshot is taken for the content with this UID: it may be reported without a call of the store. A
    /// thin snapshot may not, because only a call that takes it makes its announcement durable.
    pub fn is_taken_for(&self, uid: &str) -> bool {
        self.state.is_reported() && !self.mode.is_thin() && self.claim.uid == uid
    }

    /// Whether the snapshot has the former content of the volume of its rollback.
    pub fn is_exchanged(&self) -> bool {
        self.rollback().is_some_and(|rollback| rollback.project == self.project)
    }

    /// When the image gets its blocks. The image of a rollback gets them like the volume's, because the exchange makes
    /// it that of the volume.
    pub(crate) fn allocation(&self) -> Allocation {
        self.rollback().map_or(self.mode.allocation(), |rollback| rollback.allocation)
    }

    /// The record of the volume after it grew.
    pub(crate) fn grown(&self, to: Bytes) -> Self {
        Self { mode: self.mode.grown(self.size, to), size: to, ..self.clone() }
    }
}

/// The space of blocks and inodes.
fn taken(Limits { bytes, inodes }: Limits) -> Bytes {
    bytes.unwrap_or_default().saturating_add(self::inodes(inodes.unwrap_or_default()))
}

/// Inodes of directories that a clone of files has beside the files.
const SCRATCH_INODES: u64 = 16;

fn parse<'de, T: Deserialize<'de>>(content: &'de [u8]) -> Result<T, RecordError> {
    serde_json::from_slice(content).map_err(|error| RecordError::Syntax(Arc::new(error)))
}

#[cfg(test)]
mod tests;
