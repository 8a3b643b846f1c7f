//! The gRPC codes of all errors. No mapping has a default, so that a new error needs a decision.

use std::error::Error;
use std::fmt;
use std::path::Path;

use loopdev::AttachError;
use tonic::{Code, Status};
use volume::{Claim, FreezeError, SourceError, ThrottleError, VolumeId, VolumeRefusal};

use crate::controller::cluster_object::ClusterObject;
use crate::controller::plan::{Conflict, SourceRejection};
use crate::host::{ActError, CgroupError, LookError};
use crate::plan::PlanError;
use crate::request::{PathError, RequestError};

/// Maximum length of a message in bytes. gRPC sends it in a header, where a byte can take three, and many clients
/// accept 16 KiB of headers. Requests have up to 1 MiB, and some messages repeat a field of them.
const MESSAGE_MAX: usize = 4096;

/// The status of a call that failed.
fn status(code: Code, error: &dyn Error) -> Status {
    let mut message = causes::line(error);
    message.truncate(message.floor_char_boundary(MESSAGE_MAX));
    Status::new(code, message)
}

/// Properties of a call of the Node service with an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Verb of errors.
    pub verb: &'static str,
    pub path: PathRole,
    /// Whether the call takes the lock of its volume.
    pub is_locked: bool,
}

/// Meaning of the path of a request. The code for a path where nothing can be published depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathRole {
    /// The call changes the target at the path, so that the path is invalid.
    Target,
    /// The volume is at the path, so that it is not found.
    Location,
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.verb)
    }
}

/// A checked request could not be served.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("cannot read the state of the volume")]
    Look(#[from] LookError),
    #[error(transparent)]
    Refused(#[from] PlanError),
    #[error(transparent)]
    Act(#[from] ActError),
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    #[error("invalid request")]
    Request { call: &'static Call, source: RequestError },
    #[error("cannot {call} volume {volume}{}", path.as_ref().map(|path| format!(" at {}", path.display())).unwrap_or_default())]
    Failed { call: &'static Call, volume: VolumeId, path: Option<Box<Path>>, source: Failure },
}

/// A call of the Controller service that changes a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Create,
    Snapshot,
    Expand,
    Modify,
    Delete,
}

impl Change {
    /// The error of a call that failed in the store.
    pub(crate) fn failed(self) -> impl Fn(volume::Error) -> ControllerError + Copy {
        move |source| ControllerError::Volume { change: self, source }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Create => "create",
            Self::Snapshot => "take a snapshot of",
            Self::Expand => "expand",
            Self::Modify => "modify",
            Self::Delete => "delete",
        })
    }
}

/// A call of the Controller service failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ControllerError {
    #[error("invalid request")]
    Request(#[from] RequestError),
    #[error("{most} calls change volumes; repeat the call later")]
    Busy { most: usize },
    #[error("cannot {change} the volume")]
    Volume { change: Change, source: volume::Error },
    #[error("cannot read the record of the volume")]
    Read(#[source] volume::Error),
    #[error(
        "cannot create {name}: {object}, and the node's own provisioner serves the objects of the cluster; stop the sidecar that sends this request, or run the node with --provisioner=external; other clients use other names"
    )]
    OfCluster { name: String, object: ClusterObject },
    #[error(
        "cannot {change} volume {id}: the provisioner created it for claim {claim}; {change} it by its claim, on a node with --provisioner=own"
    )]
    OfProvisioner { change: Change, id: VolumeId, claim: Claim },
    #[error("volume {id} exists already, created {conflict}; delete it, or use another name")]
    Conflict { id: VolumeId, conflict: Conflict },
    #[error(transparent)]
    Source(#[from] SourceRejection),
    #[error("volume {0} does not exist on this node")]
    Unknown(VolumeId),
    #[error("no volume, snapshot or group has the ID of the request: it has invalid characters, or is too long")]
    Impossible,
    #[error("volume {id} is a {is} volume; correct the access type of volume_capability")]
    Mode { id: VolumeId, is: volume::Mode },
    #[error("accessibility_requirements exclude node {node}, and its volumes can be used there only")]
    Elsewhere { node: String },
    #[error("snapshot or group {0} does not exist on this node, or is not complete")]
    NoSnapshot(VolumeId),
    #[error("snapshot {id} is a member of group {group}; delete the group")]
    Member { id: VolumeId, group: VolumeId },
    #[error("group {group} exists already with other volumes: {found}; delete it, or use another name")]
    OtherMembers { group: VolumeId, found: String },
    #[error("snapshot_ids are not those of group {group}: {found}")]
    Listed { group: VolumeId, found: String },
    #[error(transparent)]
    List(#[from] volume::ListError),
    #[error("cannot measure the data disk")]
    Look(#[from] volume::LookError),
    #[error(transparent)]
    Live(#[from] volume::LiveVolumeError),
}

impl From<ControllerError> for Status {
    fn from(error: ControllerError) -> Self {
        let code = match &error {
            ControllerError::Request(error) => of_request(error),
            ControllerError::Busy { .. } => Code::Aborted,
            ControllerError::Volume { change, source } => of_store(*change, source),
            ControllerError::OfCluster { .. } | ControllerError::OfProvisioner { .. } => Code::FailedPrecondition,
            ControllerError::Conflict { .. } | ControllerError::OtherMembers { .. } => Code::AlreadyExists,
            ControllerError::Source(SourceRejection::Unknown(_))
            | ControllerError::Unknown(_)
            | ControllerError::NoSnapshot(_)
            | ControllerError::Impossible => Code::NotFound,
            ControllerError::Source(SourceRejection::Filesystem(_) | SourceRejection::Block(_))
            | ControllerError::Mode { .. }
            | ControllerError::Member { .. }
            | ControllerError::Listed { .. } => Code::InvalidArgument,
            // The client selects another node.
            ControllerError::Elsewhere { .. } => Code::ResourceExhausted,
            ControllerError::Read(_)
            | ControllerError::List(_)
            | ControllerError::Look(_)
            | ControllerError::Live(_) => Code::Internal,
        };
        status(code, &error)
    }
}

fn of_store(change: Change, error: &volume::Error) -> Code {
    use volume::Error;

    match error {
        // The client selects another node for a new volume. An expansion has no alternative.
        Error::Full { .. } => match change {
            Change::Create | Change::Snapshot => Code::ResourceExhausted,
            Change::Expand | Change::Modify | Change::Delete => Code::OutOfRange,
        },
        Error::TooLarge { .. } => Code::OutOfRange,
        Error::Unknown { .. } => Code::NotFound,
        Error::Refused { source, .. } => match source {
            VolumeRefusal::Differs { .. } => Code::AlreadyExists,
            VolumeRefusal::NotAnnounced | VolumeRefusal::RollingBack(_) => Code::Unavailable,
            VolumeRefusal::Restoring(_) => Code::FailedPrecondition,
            VolumeRefusal::Snapshot | VolumeRefusal::Volume | VolumeRefusal::Io(_) => Code::InvalidArgument,
            VolumeRefusal::Foreign | VolumeRefusal::Lost | VolumeRefusal::NotRetired => Code::Internal,
        },
        // The same code as for a group with other members.
        Error::Removed { .. } => Code::AlreadyExists,
        Error::Published { .. } | Error::Act { source: volume::ActError::InUse { .. }, .. } => Code::FailedPrecondition,
        // The next call continues.
        Error::Unfinished { .. }
        | Error::Copying { .. }
        | Error::Act {
            source:
                volume::ActError::Busy { .. }
                | volume::ActError::Locked { .. }
                | volume::ActError::Pods(_)
                | volume::ActError::Late { .. },
            ..
        } => Code::Aborted,
        Error::Source { source, .. } => match source {
            SourceError::Unknown { .. } => Code::NotFound,
            SourceError::NotAnnounced { .. } | SourceError::Copying { .. } => Code::Unavailable,
            SourceError::Filesystem { .. } | SourceError::Block { .. } | SourceError::Unsupported { .. } => {
                Code::InvalidArgument
            }
            SourceError::NoFreezer { .. } => Code::FailedPrecondition,
            SourceError::Overfull { .. } => Code::Unavailable,
            SourceError::Larger { .. } => Code::OutOfRange,
            SourceError::Grown { .. } => Code::Aborted,
            SourceError::Closed { .. } | SourceError::Look { .. } => Code::Internal,
        },
        // The Controller service does not roll volumes back.
        Error::Rollback { .. } => Code::Internal,
        Error::Throttle { source, .. } => match source {
            ThrottleError::None | ThrottleError::Unsupported(_) => Code::FailedPrecondition,
            ThrottleError::Apply(_) => Code::Internal,
        },
        Error::Freeze { source, .. } => match source {
            FreezeError::None => Code::FailedPrecondition,
            FreezeError::Freeze(_) | FreezeError::Late { .. } | FreezeError::Thawed(_) => Code::Aborted,
        },
        Error::Closed { .. } | Error::Look { .. } | Error::Act { .. } | Error::Announced { .. } => Code::Internal,
    }
}

impl From<CallError> for Status {
    fn from(error: CallError) -> Self {
        let code = match &error {
            CallError::Request {
                call: Call { path: PathRole::Location, .. },
                source: RequestError::Path { source: PathError::Outside { .. }, .. },
            }
            | CallError::Failed {
                call: Call { path: PathRole::Location, .. },
                source: Failure::Look(LookError::Link { .. }),
                ..
            } => Code::NotFound,
            CallError::Request { source, .. } => of_request(source),
            CallError::Failed { source, .. } => of_failure(source),
        };
        status(code, &error)
    }
}

fn of_request(error: &RequestError) -> Code {
    match error {
        RequestError::Missing { .. }
        | RequestError::VolumeId { .. }
        | RequestError::Name
        | RequestError::MixedModes
        | RequestError::Parameters(_)
        | RequestError::MutableParameters(_)
        | RequestError::SnapshotParameters(_)
        | RequestError::MaxEntries { .. }
        | RequestError::Path { .. }
        | RequestError::AccessMode { .. }
        | RequestError::FilesystemType { .. }
        | RequestError::MountOptions
        | RequestError::MountGroup => Code::InvalidArgument,
        RequestError::Range { .. } => Code::OutOfRange,
        // CSI defines ABORTED for an invalid starting_token: the client starts the list again.
        RequestError::Token { .. } => Code::Aborted,
    }
}

fn of_failure(failure: &Failure) -> Code {
    match failure {
        Failure::Look(error) => of_look(error),
        Failure::Refused(refusal) => match refusal {
            PlanError::Unknown | PlanError::NotPublished => Code::NotFound,
            PlanError::NotAnnounced => Code::Unavailable,
            PlanError::Mode { .. } => Code::InvalidArgument,
            PlanError::Differs | PlanError::OtherVolume => Code::AlreadyExists,
            PlanError::NoParent
            | PlanError::Foreign
            | PlanError::Obstructed { .. }
            | PlanError::NotTarget
            | PlanError::NotRemovable
            | PlanError::InUse => Code::FailedPrecondition,
            PlanError::Size { .. } => Code::OutOfRange,
            PlanError::Damaged | PlanError::NoQuota => Code::Internal,
        },
        Failure::Act(error) => match error {
            ActError::Look(error) => of_look(error),
            ActError::NotEmpty | ActError::Busy => Code::FailedPrecondition,
            ActError::Cgroup(error) => match error {
                CgroupError::Missing { .. } | CgroupError::NoPod { .. } => Code::Unavailable,
                CgroupError::Hierarchy { .. } | CgroupError::Controller { .. } | CgroupError::NoLimits { .. } => {
                    Code::FailedPrecondition
                }
                CgroupError::File { .. } => Code::Internal,
            },
            ActError::VolumeGone => Code::NotFound,
            // The next call finds another state.
            ActError::DeviceGone | ActError::Cloned | ActError::AttachImage(AttachError::Contended { .. }) => {
                Code::Unavailable
            }
            ActError::ParentGone
            | ActError::Create(_)
            | ActError::Open(_)
            | ActError::Driver(_)
            | ActError::AttachImage(_)
            | ActError::Device(_)
            | ActError::Status(_)
            | ActError::Node
            | ActError::Observer(_)
            | ActError::Place(_)
            | ActError::Clone(_)
            | ActError::Set(_)
            | ActError::Attach(_)
            | ActError::Unmount(_)
            | ActError::Remove(_)
            | ActError::Detach(_)
            | ActError::Resize(_) => Code::Internal,
        },
    }
}

fn of_look(error: &LookError) -> Code {
    match error {
        LookError::Link { .. } => Code::InvalidArgument,
        LookError::Volume(_)
        | LookError::Volumes(_)
        | LookError::Image(_)
        | LookError::Size(_)
        | LookError::Dev(_)
        | LookError::Parent(_)
        | LookError::Target(_)
        | LookError::Place(_)
        | LookError::Mounts(_)
        | LookError::Path(_)
        | LookError::Hidden
        | LookError::Devices(_)
        | LookError::Device(_)
        | LookError::Status(_)
        | LookError::Quota(_) => Code::Internal,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::node::Operation as _;
    use crate::request::{Check, Expand, Publish, Stats, Unpublish};

    fn failed(call: &'static Call, source: impl Into<Failure>) -> Status {
        let volume = "pvc-1".parse().expect("an identifier");
        CallError::Failed { call, volume, path: Some(Path::new("/k/t").into()), source: source.into() }.into()
    }

    fn invalid(call: &'static Call, source: RequestError) -> Code {
        Status::from(CallError::Request { call, source }).code()
    }

    #[test]
    fn refusals_have_the_codes_of_the_specification() {
        for (call, refusal, code) in [
            (Publish::CALL, PlanError::OtherVolume, Code::AlreadyExists),
            (Unpublish::CALL, PlanError::NotTarget, Code::FailedPrecondition),
            (Publish::CALL, PlanError::Unknown, Code::NotFound),
            (Publish::CALL, PlanError::Differs, Code::AlreadyExists),
            (Publish::CALL, PlanError::InUse, Code::FailedPrecondition),
            (Publish::CALL, PlanError::NotAnnounced, Code::Unavailable),
            (Publish::CALL, PlanError::Mode { is: crate::Mode::Block }, Code::InvalidArgument),
            (Expand::CALL, PlanError::Size { size: units::Bytes::GIB }, Code::OutOfRange),
        ] {
            assert_eq!(failed(call, refusal).code(), code, "{call} {refusal}");
        }
    }

    #[test]
    fn paths_outside_have_the_codes_of_their_calls() {
        for (call, code) in [
            (Publish::CALL, Code::InvalidArgument),
            (Unpublish::CALL, Code::InvalidArgument),
            (Expand::CALL, Code::NotFound),
            (Stats::CALL, Code::NotFound),
            (Check::CALL, Code::NotFound),
        ] {
            assert_eq!(failed(call, LookError::Link { parent: "pods".into() }).code(), code, "{call}");
            let outside = PathError::Outside { kubelet: "/k".into() };
            assert_eq!(invalid(call, RequestError::Path { field: "path", source: outside }), code, "{call}");
        }
        assert_eq!(invalid(Expand::CALL, RequestError::Range { required: -1, limit: 0 }), Code::OutOfRange);
    }

    #[test]
    fn errors_of_the_store_have_the_codes_of_the_specification() {
        let id = || "pvc-1".parse::<VolumeId>().expect("an identifier");
        let code = |change, source| Status::from(ControllerError::Volume { change, source }).code();
        let full = || volume::Error::Full { id: id(), wanted: units::Bytes::GIB, free: units::Bytes::ZERO };
        assert_eq!(code(Change::Create, full()), Code::ResourceExhausted);
        assert_eq!(code(Change::Expand, full()), Code::OutOfRange);
        let published = volume::Error::Published { id: id(), target: "/k/t".into() };
        assert_eq!(code(Change::Delete, published), Code::FailedPrecondition);
        let locked = volume::ActError::Locked { volume: id() };
        let locked = volume::Error::Act { id: id(), step: volume::Step::RemoveRecord, source: locked };
        assert_eq!(code(Change::Delete, locked), Code::Aborted);
        let source = |source| volume::Error::Source { id: id(), source };
        assert_eq!(code(Change::Create, source(SourceError::Unknown { volume: id() })), Code::NotFound);
        let files = || source(SourceError::NoFreezer { volume: id() });
        assert_eq!(code(Change::Snapshot, files()), Code::FailedPrecondition);
        assert_eq!(code(Change::Create, files()), Code::FailedPrecondition);
        assert_eq!(code(Change::Snapshot, full()), Code::ResourceExhausted);
        let none = volume::Error::Freeze { id: id(), source: FreezeError::None };
        assert_eq!(code(Change::Snapshot, none), Code::FailedPrecondition);
        assert_eq!(code(Change::Snapshot, volume::Error::Removed { id: id() }), Code::AlreadyExists);
        let claim = Claim { uid: "u".into(), namespace: "shop".into(), name: "data".into() };
        let status = Status::from(ControllerError::OfProvisioner { change: Change::Delete, id: id(), claim });
        assert_eq!(status.code(), Code::FailedPrecondition);
        assert!(status.message().contains("claim shop/data; delete it by its claim"), "{status}");
    }

    #[test]
    fn the_remedy_for_a_sidecar_beside_the_provisioner_is_named() {
        let parameters = |value: &str| HashMap::from([("csi.storage.k8s.io/pvc/name".to_owned(), value.to_owned())]);
        for value in ["data", &"x".repeat(1 << 20)] {
            let object = ClusterObject::of("pvc-1", &parameters(value)).expect("a claim");
            let status = Status::from(ControllerError::OfCluster { name: "pvc-1".to_owned(), object });
            assert_eq!(status.code(), Code::FailedPrecondition);
            let message = status.message();
            assert!(message.starts_with("cannot create pvc-1: the request has the parameters csi."), "{message}");
            assert!(message.contains("or run the node with --provisioner=external"), "{message}");
        }
    }

    /// Regression: a client got an error of HTTP/2 instead of the code.
    #[test]
    fn messages_that_repeat_a_long_request_are_cut() {
        let long = || "ä".repeat(1 << 19);
        for error in [
            RequestError::Token { found: long() },
            RequestError::FilesystemType { found: long() },
            RequestError::VolumeId {
                field: "volume_id",
                source: long().parse::<VolumeId>().expect_err("an invalid ID"),
            },
        ] {
            let controller = Status::from(ControllerError::Request(error));
            assert!(controller.message().len() <= MESSAGE_MAX, "{controller}");
        }
        let found = RequestError::FilesystemType { found: long() };
        let node = Status::from(CallError::Request { call: Publish::CALL, source: found });
        assert!(node.message().len() <= MESSAGE_MAX, "{node}");
        assert!(node.message().starts_with("invalid request: file system"), "{node}");
    }

    #[test]
    fn messages_name_object_cause_and_remedy() {
        assert_eq!(
            failed(Publish::CALL, PlanError::Differs).message(),
            "cannot publish volume pvc-1 at /k/t: the volume is published at the target with other options; unpublish \
             it first"
        );
        let refused = failed(Publish::CALL, PlanError::Mode { is: crate::Mode::Block });
        assert!(refused.message().ends_with("the volume is a block volume; set volumeMode of its claim to match"));
    }
}
