//! A request for a volume.

use fsquota::ProjectId;
use units::Bytes;

use crate::record::{Claim, Mode, Record, State};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    pub claim: Claim,
    pub class: String,
    pub mode: Mode,
    /// Bytes, in whole blocks of the file system.
    pub size: Bytes,
}

impl Request {
    pub fn reserved(&self) -> Bytes {
        self.mode.reserved(self.size)
    }

    pub(crate) fn record(&self, project: ProjectId) -> Record {
        let Self { claim, class, mode, size } = self.clone();
        Record { claim, class, mode, size, project, state: State::Staged }
    }
}
