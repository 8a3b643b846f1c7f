//! Values of the unit tests.

use fsquota::ProjectId;
use units::Bytes;
use volume::{Claim, IoLimits, Mode, Owner, Record, State, VolumeId};

pub(crate) fn id(text: &str) -> VolumeId {
    text.parse().expect("an identifier")
}

/// The record of a volume or a snapshot of 1 GiB.
pub(crate) fn record(mode: Mode, state: State) -> Record {
    Record {
        claim: Claim { uid: "u".into(), namespace: "shop".into(), name: "data".into() },
        owner: Owner::Provisioner,
        class: "local".into(),
        mode,
        size: Bytes::GIB,
        project: ProjectId::new(7).expect("an ID"),
        cloning: None,
        io: IoLimits::NONE,
        state,
    }
}
