//! What must not be.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;

use fsquota::{Limits, ProjectId};
use nix::errno::Errno;
use units::Bytes;

use crate::history::{Number, Size};
use crate::model::{Place, Register, Spot};

/// An invariant that does not hold, or a failure where there should be none.
#[derive(Debug, thiserror::Error)]
pub enum Violation {
    /// XFS itself is broken.
    #[error("the file system cannot be mounted: {0}")]
    Mount(Errno),
    /// Something that is there cannot be read.
    #[error("cannot look at {}", path.display())]
    Look {
        /// What.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Quotas cannot be read.
    #[error("cannot look at the quotas")]
    Quota(#[from] fsquota::FsError),
    /// A call failed that had no reason to.
    #[error("{call} of {volume} failed")]
    Call {
        /// The call.
        call: &'static str,
        /// Of this volume.
        volume: String,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The kernel refused what a pod or kubelet does.
    #[error("cannot {what} {volume}")]
    Publish {
        /// What.
        what: &'static str,
        /// Of this volume.
        volume: Number,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Nothing is there without a record.
    #[error("{place:?} has {name}, which has no record")]
    NoRecord {
        /// Where.
        place: Place,
        /// Its name.
        name: String,
    },
    /// A volume has several records, or several directories.
    #[error("{name} is there more than once: {registers:?}, {places:?}")]
    Twice {
        /// The volume.
        name: String,
        /// Its records.
        registers: Vec<Register>,
        /// Its directories.
        places: Vec<Place>,
    },
    /// A record that nobody asked for.
    #[error("there is a record of {name}, which was never asked for")]
    Stranger {
        /// The volume.
        name: String,
    },
    /// A record that cannot be read.
    #[error("the record of {name} cannot be read")]
    Record {
        /// The volume.
        name: String,
        /// Why.
        source: volume::RecordError,
    },
    /// Two volumes have one project.
    #[error("{name} and {other} have the project {project}")]
    SameProject {
        /// One volume.
        name: String,
        /// Another.
        other: String,
        /// Their project.
        project: ProjectId,
    },
    /// A project is limited, and no record says so.
    #[error("the project {project} of no volume has limits: {limits:?}")]
    Stray {
        /// The project.
        project: ProjectId,
        /// Its limits.
        limits: Limits,
    },
    /// It is not where it can be.
    #[error("{volume} is {found:?}, it can only be one of {allowed:?}")]
    Where {
        /// The volume.
        volume: Number,
        /// Where it is.
        found: Spot,
        /// Where it may be.
        allowed: BTreeSet<Spot>,
    },
    /// A directory in use that is not of its volume's project.
    #[error("the directory of {volume} has project {found:?}, its record says {recorded}")]
    Project {
        /// The volume.
        volume: Number,
        /// The directory's.
        found: Option<ProjectId>,
        /// The record's.
        recorded: ProjectId,
    },
    /// A wrong size.
    #[error("the {what} of {volume} is {found:?}, it can only be one of {allowed:?}")]
    Size {
        /// The volume.
        volume: Number,
        /// Record or image.
        what: &'static str,
        /// What it is.
        found: Option<Size>,
        /// What it may be.
        allowed: BTreeSet<Size>,
    },
    /// Other limits than the volume's size gives, or lower ones than what there is of the volume needs.
    #[error("the limits of {volume} are {found:?}, they can only be one of {allowed:?}")]
    Limits {
        /// The volume.
        volume: Number,
        /// What they are.
        found: Limits,
        /// What they may be.
        allowed: Vec<Limits>,
    },
    /// Less than was promised.
    #[error("the image of {volume} is thick and has {allocated} of {size} allocated")]
    NotThick {
        /// The volume.
        volume: Number,
        /// What is allocated.
        allocated: Bytes,
        /// What should be.
        size: Bytes,
    },
    /// Data that was synced is gone.
    #[error("slot {slot} of {volume} was synced and is {found}")]
    Lost {
        /// The volume.
        volume: Number,
        /// Which data.
        slot: u16,
        /// What there is instead.
        found: &'static str,
    },
    /// Data of somebody else.
    #[error("{volume} has foreign data in {} at {at}: {line:?}", path.display())]
    Foreign {
        /// The volume.
        volume: Number,
        /// In which file.
        path: PathBuf,
        /// Where.
        at: u64,
        /// The data.
        line: String,
    },
    /// Loop devices outlive their volume.
    #[error("the image of {volume} was retired and still has a loop device")]
    Attached {
        /// The volume.
        volume: Number,
    },
    /// A comparison is not enough to clean up.
    #[error("{} was left behind", path.display())]
    Leftover {
        /// What.
        path: PathBuf,
    },
    /// The store reports something that nobody put there.
    #[error("the store finds strays: {0}")]
    Strays(String),
    /// A volume that was never written has data.
    #[error("the new volume {volume} is not empty")]
    NotEmpty {
        /// The volume.
        volume: Number,
    },
    /// A second comparison had something to do.
    #[error("one comparison is not enough: a second one changed {changed}")]
    NoFixpoint {
        /// What it changed.
        changed: String,
    },
}

impl Violation {
    /// Whether a call failed, rather than that the disk has something else than it should: what happens when XFS has
    /// found that it is broken itself.
    pub const fn is_of_xfs(&self) -> bool {
        match self {
            Self::Mount(_) | Self::Look { .. } | Self::Quota(_) | Self::Call { .. } | Self::Publish { .. } => true,
            Self::NoRecord { .. }
            | Self::Twice { .. }
            | Self::Stranger { .. }
            | Self::Record { .. }
            | Self::SameProject { .. }
            | Self::Stray { .. }
            | Self::Where { .. }
            | Self::Project { .. }
            | Self::Size { .. }
            | Self::Limits { .. }
            | Self::NotThick { .. }
            | Self::Lost { .. }
            | Self::Foreign { .. }
            | Self::Attached { .. }
            | Self::Leftover { .. }
            | Self::Strays(_)
            | Self::NotEmpty { .. }
            | Self::NoFixpoint { .. } => false,
        }
    }
}
