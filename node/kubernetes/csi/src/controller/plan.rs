//! Decisions of the Controller service, from the records of volumes. Pure.

use std::collections::HashMap;

use units::Bytes;
use volume::{Owner, Parameters, Record, Request, State, VolumeId, VolumeMode};

use crate::controller::request::{Create, Source, limits};
use crate::request::{Mode, RequestError};
use crate::status::ControllerError;

/// Difference between a volume and a request of the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Conflict {
    #[error("for another name or by the provisioner")]
    Creator,
    #[error("as a snapshot")]
    Snapshot,
    #[error("from another content source")]
    Source,
    #[error("with another access type")]
    Mode,
    #[error("with other parameters")]
    Parameters,
    #[error("with a size outside of capacity_range")]
    Size,
    #[error("with other mutable_parameters, or changed by ControllerModifyVolume since")]
    Limits,
}

/// The content source cannot be cloned.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SourceRejection {
    #[error("content source {0} does not exist on this node")]
    Unknown(VolumeId),
    #[error("content source {0} has files; request the access type mount")]
    Filesystem(VolumeId),
    #[error("content source {0} is a disk; request the access type block")]
    Block(VolumeId),
}

/// The request for the store. `record` is that of the volume if it exists; the request then has the size of the record.
/// `source` is the record of the content source.
pub(crate) fn create(
    want: &Create,
    record: Option<&Record>,
    source: Option<&Record>,
) -> Result<Request, ControllerError> {
    let content = want.source.as_ref().map(Source::id).cloned();
    let owner = Owner::Controller { source: content.clone() };
    let mode = VolumeMode::from(want.mode);
    let size = match record {
        Some(record) => {
            let conflict = |conflict| ControllerError::Conflict { id: want.id.clone(), conflict };
            compare(want, &owner, record).map_err(conflict)?;
            record.size
        }
        None => want.range.size(want.source.as_ref().map(|of| check_source(of, mode, source)).transpose()?)?,
    };
    Ok(Request {
        claim: want.claim.clone(),
        owner,
        // Clients send only the parameters of the class, not its name.
        class: String::new(),
        mode: want.parameters.mode(mode, size),
        size,
        source: content,
    })
}

fn compare(want: &Create, owner: &Owner, record: &Record) -> Result<(), Conflict> {
    if record.owner.is_provisioner() || record.claim.uid != want.claim.uid {
        return Err(Conflict::Creator);
    }
    if record.mode.is_snapshot() {
        return Err(Conflict::Snapshot);
    }
    if record.owner != *owner {
        return Err(Conflict::Source);
    }
    let mode = VolumeMode::from(want.mode);
    if VolumeMode::from(record.mode) != mode {
        return Err(Conflict::Mode);
    }
    if !want.range.contains(record.size) {
        return Err(Conflict::Size);
    }
    // Until the announcement, the call sets the limits. After it, a repeated call must not undo ControllerModifyVolume.
    if record.state == State::Announced && limits(record.io, &want.mutable, mode).ok() != Some(record.io) {
        return Err(Conflict::Limits);
    }
    // An expansion raises the number of inodes in proportion, and rounds it.
    let is_expanded = mode == VolumeMode::Filesystem && want.range.size(None).ok() != Some(record.size);
    let is_same = record.mode == want.parameters.mode(mode, record.size);
    if is_same || is_expanded { Ok(()) } else { Err(Conflict::Parameters) }
}

/// Returns the size of the source, or the reason why it cannot be cloned.
fn check_source(source: &Source, mode: VolumeMode, record: Option<&Record>) -> Result<Bytes, SourceRejection> {
    let id = source.id();
    let is_such = |record: &&Record| record.mode.is_snapshot() == matches!(source, Source::Snapshot(_));
    let record = record.filter(is_such).ok_or_else(|| SourceRejection::Unknown(id.clone()))?;
    match (VolumeMode::from(record.mode), mode) {
        (VolumeMode::Block, VolumeMode::Filesystem) => Err(SourceRejection::Block(id.clone())),
        (VolumeMode::Filesystem, VolumeMode::Block) => Err(SourceRejection::Filesystem(id.clone())),
        (VolumeMode::Block, VolumeMode::Block) | (VolumeMode::Filesystem, VolumeMode::Filesystem) => Ok(record.size),
    }
}

/// The reason why the volume does not have these capabilities and parameters.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unconfirmed {
    #[error("not supported")]
    Request(#[from] RequestError),
    #[error("the volume is a {is} volume")]
    Mode { is: volume::Mode },
    #[error("the volume has other parameters")]
    Parameters,
}

pub(crate) fn validate(
    mode: Result<Mode, RequestError>,
    parameters: Result<Option<Parameters>, RequestError>,
    mutable: &HashMap<String, String>,
    record: &Record,
) -> Result<(), Unconfirmed> {
    let (mode, parameters) = (VolumeMode::from(mode?), parameters?);
    if VolumeMode::from(record.mode) != mode {
        return Err(Unconfirmed::Mode { is: record.mode });
    }
    // The number of inodes of an expanded volume depends on its history.
    let is_same = |parameters: Parameters| parameters.mode(mode, record.size) == record.mode;
    if mode == VolumeMode::Block && !parameters.is_none_or(is_same) {
        return Err(Unconfirmed::Parameters);
    }
    if limits(record.io, mutable, mode)? != record.io {
        return Err(Unconfirmed::Parameters);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use fsquota::ProjectId;
    use units::Inodes;
    use volume::{Claim, IoLimits, Sharing};

    use super::*;
    use crate::controller::request::Placement;
    use crate::request::Range;

    fn id(text: &str) -> VolumeId {
        text.parse().expect("an identifier")
    }

    fn want(mode: Mode, size: Bytes) -> Create {
        Create {
            id: id("data"),
            claim: Claim { uid: "data".into(), namespace: String::new(), name: "data".into() },
            mode,
            parameters: Parameters::default(),
            mutable: HashMap::new(),
            io: IoLimits::NONE,
            range: Range { required: Some(size), limit: None },
            source: None,
            place: Placement::Here,
        }
    }

    fn parameters(name: &str, value: &str) -> Parameters {
        Parameters::parse(&[(name.to_owned(), value.to_owned())].into()).expect("valid parameters")
    }

    /// Record of the volume that this request creates.
    fn record(want: &Create) -> Record {
        let request = create(want, None, None).expect("a request");
        let Request { claim, owner, class, mode, size, source: _ } = request;
        let project = ProjectId::new(7).expect("an ID");
        Record { claim, owner, class, mode, size, project, cloning: None, io: IoLimits::NONE, state: State::Announced }
    }

    fn conflict(want: &Create, record: &Record) -> Option<Conflict> {
        match create(want, Some(record), None) {
            Ok(_) => None,
            Err(ControllerError::Conflict { conflict, .. }) => Some(conflict),
            Err(other) => panic!("{other}"),
        }
    }

    #[test]
    fn the_same_request_again_is_the_same_volume() {
        for mode in [Mode::Filesystem, Mode::Block] {
            let want = want(mode, Bytes::GIB);
            let record = record(&want);
            let again = create(&want, Some(&record), None).expect("a request");
            assert_eq!((again.size, again.mode, again.owner), (record.size, record.mode, record.owner));
        }
    }

    #[test]
    fn other_requests_of_the_same_name_are_conflicts() {
        let files = want(Mode::Filesystem, Bytes::GIB);
        let disk = want(Mode::Block, Bytes::GIB);
        let tests = [
            (want(Mode::Filesystem, Bytes::TIB), record(&files), Some(Conflict::Size)),
            // The range has only a lower bound.
            (want(Mode::Filesystem, Bytes::MIB), record(&files), None),
            (disk.clone(), record(&files), Some(Conflict::Mode)),
            (
                Create { parameters: parameters("bytesPerInode", "65536"), ..files.clone() },
                record(&files),
                Some(Conflict::Parameters),
            ),
            (
                Create { parameters: parameters("blockAllocation", "thin"), ..disk.clone() },
                record(&disk),
                Some(Conflict::Parameters),
            ),
            (
                Create { source: Some(Source::Volume(id("other"))), ..disk.clone() },
                record(&disk),
                Some(Conflict::Source),
            ),
            (
                disk.clone(),
                Record {
                    mode: volume::Mode::Snapshot { taken: SystemTime::UNIX_EPOCH, sharing: Sharing::Temporary },
                    ..record(&disk)
                },
                Some(Conflict::Snapshot),
            ),
            (files.clone(), Record { owner: Owner::Provisioner, ..record(&files) }, Some(Conflict::Creator)),
            (
                files.clone(),
                Record { claim: Claim { uid: "Data".into(), ..files.claim.clone() }, ..record(&files) },
                Some(Conflict::Creator),
            ),
        ];
        for (want, record, expected) in tests {
            assert_eq!(conflict(&want, &record), expected, "{want:?}");
        }
    }

    #[test]
    fn a_repeated_request_does_not_undo_a_modification() {
        let mutable = HashMap::from([("readIOPS".to_owned(), "100".to_owned())]);
        let io = IoLimits { read_operations: Some(100), ..IoLimits::NONE };
        let want = Create { mutable, io, ..want(Mode::Block, Bytes::GIB) };
        let created = Record { io, ..record(&want) };
        let modified = Record { io: IoLimits { read_operations: Some(200), ..io }, ..created.clone() };
        assert_eq!(conflict(&want, &created), None);
        assert_eq!(conflict(&want, &modified), Some(Conflict::Limits));
        // A limit that the request does not name may be changed.
        let named = Record { io: IoLimits { write_operations: Some(200), ..io }, ..created.clone() };
        assert_eq!(conflict(&want, &named), None);
        assert_eq!(conflict(&Create { mutable: HashMap::new(), ..want.clone() }, &modified), None);
        // An earlier call ended before it set the limits.
        let staged = Record { io: IoLimits::NONE, state: State::Staged, ..created };
        assert_eq!(conflict(&want, &staged), None);
    }

    #[test]
    fn a_source_is_a_volume_or_snapshot_of_the_same_mode() {
        let modes = [(Mode::Block, VolumeMode::Block), (Mode::Filesystem, VolumeMode::Filesystem)];
        let [volume, snapshot] = [Source::Volume, Source::Snapshot].map(|of| of(id("source")));
        for (of, mode) in modes {
            let found = record(&want(of, Bytes::GIB));
            let (taken, sharing) = (SystemTime::UNIX_EPOCH, Sharing::Temporary);
            let kept = Record {
                mode: match of {
                    Mode::Block => volume::Mode::Snapshot { taken, sharing },
                    Mode::Filesystem => volume::Mode::SnapshotTree { taken, inodes: Inodes::new(64), sharing },
                },
                ..found.clone()
            };
            assert_eq!(check_source(&volume, mode, Some(&found)), Ok(Bytes::GIB));
            assert_eq!(check_source(&snapshot, mode, Some(&kept)), Ok(Bytes::GIB));
            let unknown = Err(SourceRejection::Unknown(id("source")));
            assert_eq!(check_source(&volume, mode, Some(&kept)), unknown);
            assert_eq!(check_source(&snapshot, mode, Some(&found)), unknown);
        }
        let [files, disk] = [Mode::Filesystem, Mode::Block].map(|mode| record(&want(mode, Bytes::GIB)));
        let rejection = SourceRejection::Filesystem(id("source"));
        assert_eq!(check_source(&volume, VolumeMode::Block, Some(&files)), Err(rejection));
        let rejection = SourceRejection::Block(id("source"));
        assert_eq!(check_source(&volume, VolumeMode::Filesystem, Some(&disk)), Err(rejection));
        let clone = Create { source: Some(volume), ..want(Mode::Block, Bytes::GIB) };
        let unknown = create(&clone, None, None).expect_err("the source is unknown");
        assert!(matches!(unknown, ControllerError::Source(SourceRejection::Unknown(_))), "{unknown}");
        // Without a size, the clone has that of its source.
        let source = record(&want(Mode::Block, Bytes::MIB));
        let request = create(&Create { range: Range::default(), ..clone }, None, Some(&source)).unwrap();
        assert_eq!(request.size, Bytes::MIB);
    }

    #[test]
    fn a_volume_has_the_capabilities_of_its_mode() {
        let disk = record(&want(Mode::Block, Bytes::GIB));
        let none = HashMap::new();
        assert!(validate(Ok(Mode::Block), Ok(None), &none, &disk).is_ok());
        assert!(matches!(validate(Ok(Mode::Filesystem), Ok(None), &none, &disk), Err(Unconfirmed::Mode { .. })));
        let thin = parameters("blockAllocation", "thin");
        assert!(matches!(validate(Ok(Mode::Block), Ok(Some(thin)), &none, &disk), Err(Unconfirmed::Parameters)));
        let mixed = validate(Err(RequestError::MixedModes), Ok(None), &none, &disk);
        assert!(matches!(mixed, Err(Unconfirmed::Request(_))));
        let slow = HashMap::from([("readIOPS".to_owned(), "100".to_owned())]);
        assert!(matches!(validate(Ok(Mode::Block), Ok(None), &slow, &disk), Err(Unconfirmed::Parameters)));
        let io = IoLimits { read_operations: Some(100), write_operations: Some(200), ..IoLimits::NONE };
        assert!(validate(Ok(Mode::Block), Ok(None), &slow, &Record { io, ..disk }).is_ok());
    }
}
