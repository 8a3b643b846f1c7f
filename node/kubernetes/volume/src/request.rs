//! A request for a volume.

use fsquota::ProjectId;
use units::Bytes;

use crate::VolumeId;
use crate::record::{Claim, Cloning, Mode, Record, State};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    pub claim: Claim,
    pub class: String,
    pub mode: Mode,
    /// Bytes, in whole blocks of the file system.
    pub size: Bytes,
    /// The block volume whose content the new one begins with.
    pub source: Option<VolumeId>,
}

impl Request {
    pub fn reserved(&self) -> Bytes {
        self.mode.reserved(self.size)
    }

    pub(crate) fn record(&self, project: ProjectId, cloning: Option<Cloning>) -> Record {
        let Self { claim, class, mode, size, source: _ } = self.clone();
        Record { mode: mode.at_present(), claim, class, size, project, cloning, state: State::Staged }
    }
}
