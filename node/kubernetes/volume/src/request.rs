//! A request for a volume.

use fsquota::ProjectId;
use units::Bytes;

use crate::record::{Claim, Cloning, Mode, Owner, Record, State};
use crate::{IoLimits, VolumeId};

/// The file system's block. Sizes of volumes are multiples of it.
pub const BLOCK: u64 = 4096;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    pub claim: Claim,
    pub owner: Owner,
    pub class: String,
    pub mode: Mode,
    /// Bytes, in whole blocks of the file system.
    pub size: Bytes,
    /// Volume or snapshot whose content the new volume begins with.
    pub source: Option<VolumeId>,
}

impl Request {
    pub fn reserved(&self) -> Bytes {
        self.mode.reserved(self.size)
    }

    pub(crate) fn record(&self, project: ProjectId, cloning: Option<Cloning>) -> Record {
        let Self { claim, owner, class, mode, size, source: _ } = self.clone();
        let io = IoLimits::NONE;
        Record { mode: mode.at_present(), claim, owner, class, size, project, cloning, io, state: State::Staged }
    }
}
