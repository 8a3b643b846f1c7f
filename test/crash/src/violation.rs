//! Violated invariants.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;

use fsquota::{Limits, ProjectId};
use nix::errno::Errno;
use units::Bytes;

use crate::life::Size;
use crate::model::{Place, Register, Spot};
use crate::operation::Number;

/// A violated invariant, or an unexpected failure.
#[derive(Debug, thiserror::Error)]
pub enum Violation {
    #[error("the file system cannot be mounted: {0}")]
    Mount(Errno),
    #[error("cannot look at {}", path.display())]
    Look { path: PathBuf, source: io::Error },
    #[error("cannot look at the quotas")]
    Quota(#[from] fsquota::FsError),
    #[error("{call} of {volume} failed")]
    Call { call: &'static str, volume: String, source: Box<dyn std::error::Error + Send + Sync> },
    #[error("cannot {what} {volume}")]
    Publish { what: &'static str, volume: Number, source: Box<dyn std::error::Error + Send + Sync> },
    #[error("{place:?} has {name}, which has no record")]
    NoRecord { place: Place, name: String },
    #[error("{name} is there more than once: {registers:?}, {places:?}")]
    Twice { name: String, registers: Vec<Register>, places: Vec<Place> },
    #[error("there is a record of {name}, which was never asked for")]
    Stranger { name: String },
    #[error("the record of {name} cannot be read")]
    Record { name: String, source: volume::RecordError },
    #[error("{name} and {other} have the project {project}")]
    SameProject { name: String, other: String, project: ProjectId },
    #[error("the project {project} of no volume has limits: {limits:?}")]
    Stray { project: ProjectId, limits: Limits },
    #[error("{volume} is {found:?}, it can only be one of {allowed:?}")]
    Where { volume: Number, found: Spot, allowed: BTreeSet<Spot> },
    #[error("the directory of {volume} has project {found:?}, its record says {recorded}")]
    Project { volume: Number, found: Option<ProjectId>, recorded: ProjectId },
    #[error("the {what} of {volume} is {found:?}, it can only be one of {allowed:?}")]
    Size { volume: Number, what: &'static str, found: Option<Size>, allowed: BTreeSet<Size> },
    #[error("the limits of {volume}, and those that statfs shows, are {found:?}, they can only be one of {allowed:?}")]
    Limits { volume: Number, found: [Limits; 2], allowed: Vec<[Limits; 2]> },
    #[error("the image of {volume} is thick and has {allocated} of {size} allocated")]
    NotThick { volume: Number, allocated: Bytes, size: Bytes },
    #[error("{name} shares blocks with no unfinished copy and no thin snapshot")]
    Shared { name: String },
    #[error("the ledger reserves {found}, the volumes need {wanted}")]
    Ledger { found: Bytes, wanted: Bytes },
    #[error("slot {slot} of {volume} was synced and is {found}")]
    Lost { volume: Number, slot: u16, found: &'static str },
    #[error("{volume} has foreign data in {} at {at}: {line:?}", path.display())]
    Foreign { volume: Number, path: PathBuf, at: u64, line: String },
    #[error("{volume} has a later write of its source {of} in {} at {at}: {line:?}", path.display())]
    Later { volume: Number, of: Number, path: PathBuf, at: u64, line: String },
    #[error("the call that has begun the copy {volume} has returned, and the copy is not complete")]
    Incomplete { volume: Number },
    #[error("{volume} and {other} are of one group and have different times")]
    Times { volume: Number, other: Number },
    #[error("{volume} has {}, which no pod wrote before its instant", path.display())]
    Unwritten { volume: Number, path: PathBuf },
    #[error("the image of {volume} was moved and still has a loop device")]
    Attached { volume: Number },
    #[error("{} was left behind", path.display())]
    Leftover { path: PathBuf },
    #[error("the store finds strays: {0}")]
    Strays(String),
    #[error("the new volume {volume} is not empty")]
    NotEmpty { volume: Number },
    #[error("one comparison is not enough: a second one changed {changed}")]
    NoFixpoint { changed: String },
}

impl Violation {
    /// Whether a call failed, which happens when XFS itself has detected damage, instead of a check of the disk's
    /// content.
    pub const fn is_of_xfs(&self) -> bool {
        matches!(self, Self::Mount(_) | Self::Look { .. } | Self::Quota(_) | Self::Call { .. } | Self::Publish { .. })
    }
}
