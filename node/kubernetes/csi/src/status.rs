//! Errors become gRPC codes, here and nowhere else. No mapping has a default: a new error has to choose.

use std::error::Error;
use std::path::PathBuf;

use loopdev::AttachError;
use tokio::task::JoinError;
use tonic::{Code, Status};
use volume::VolumeId;

use crate::host::{ActError, GrowError, LookError};
use crate::plan::Refusal;
use crate::request::{PathError, RequestError};

/// A checked request could not be served.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("cannot look at it")]
    Look(#[from] LookError),
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error(transparent)]
    Act(#[from] ActError),
    #[error(transparent)]
    Grow(#[from] GrowError),
}

/// `NodePublishVolume` failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PublishError {
    #[error("the request cannot be served")]
    Request(#[from] RequestError),
    #[error("cannot publish volume {volume} at {}", target.display())]
    Failed { volume: VolumeId, target: PathBuf, source: Failure },
    #[error("the operation ended early")]
    Panicked(#[source] JoinError),
}

/// `NodeUnpublishVolume` failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UnpublishError {
    #[error("the request cannot be served")]
    Request(#[from] RequestError),
    #[error("cannot unpublish volume {volume} from {}", target.display())]
    Failed { volume: VolumeId, target: PathBuf, source: Failure },
    #[error("the operation ended early")]
    Panicked(#[source] JoinError),
}

/// `NodeExpandVolume` or `NodeGetVolumeStats` failed: both only read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InspectError {
    #[error("the request cannot be served")]
    Request(#[from] RequestError),
    #[error("cannot serve volume {volume} at {}", path.display())]
    Failed { volume: VolumeId, path: PathBuf, source: Failure },
    #[error("the operation ended early")]
    Panicked(#[source] JoinError),
}

impl From<PublishError> for Status {
    fn from(error: PublishError) -> Self {
        let code = match &error {
            PublishError::Request(request) => of_request(request),
            PublishError::Failed { source, .. } => of_failure(source),
            PublishError::Panicked(_) => Code::Internal,
        };
        Self::new(code, chain(&error))
    }
}

impl From<UnpublishError> for Status {
    fn from(error: UnpublishError) -> Self {
        let code = match &error {
            UnpublishError::Request(request) => of_request(request),
            // Nothing is asked to exist already: it is in the way.
            UnpublishError::Failed { source: Failure::Refused(Refusal::OtherVolume), .. } => Code::FailedPrecondition,
            UnpublishError::Failed { source, .. } => of_failure(source),
            UnpublishError::Panicked(_) => Code::Internal,
        };
        Self::new(code, chain(&error))
    }
}

impl From<InspectError> for Status {
    fn from(error: InspectError) -> Self {
        let code = match &error {
            // Where nothing can be published, nothing is found.
            InspectError::Request(RequestError::Path { source: PathError::Outside { .. }, .. })
            | InspectError::Failed { source: Failure::Look(LookError::Link { .. }), .. } => Code::NotFound,
            InspectError::Request(request) => of_request(request),
            InspectError::Failed { source, .. } => of_failure(source),
            InspectError::Panicked(_) => Code::Internal,
        };
        Self::new(code, chain(&error))
    }
}

fn of_request(error: &RequestError) -> Code {
    match error {
        RequestError::Missing { .. }
        | RequestError::VolumeId(_)
        | RequestError::Path { .. }
        | RequestError::AccessMode { .. }
        | RequestError::FilesystemType { .. }
        | RequestError::MountOptions
        | RequestError::MountGroup => Code::InvalidArgument,
        RequestError::Range { .. } => Code::OutOfRange,
    }
}

fn of_failure(failure: &Failure) -> Code {
    match failure {
        Failure::Look(error) => of_look(error),
        Failure::Refused(refusal) => match refusal {
            Refusal::Unknown | Refusal::NotPublished => Code::NotFound,
            Refusal::NotAnnounced => Code::Unavailable,
            Refusal::Mode { .. } => Code::InvalidArgument,
            Refusal::Differs | Refusal::OtherVolume => Code::AlreadyExists,
            Refusal::NoParent | Refusal::Foreign | Refusal::Obstructed { .. } | Refusal::NotOurs | Refusal::InUse => {
                Code::FailedPrecondition
            }
            Refusal::Size { .. } => Code::OutOfRange,
            Refusal::Damaged | Refusal::NoQuota => Code::Internal,
        },
        Failure::Act(error) => match error {
            ActError::Look(error) => of_look(error),
            ActError::NotEmpty | ActError::Busy => Code::FailedPrecondition,
            ActError::VolumeGone => Code::NotFound,
            // The next call finds something else.
            ActError::DeviceGone | ActError::AttachImage(AttachError::Contended { .. }) => Code::Unavailable,
            ActError::ParentGone
            | ActError::Make(_)
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
            | ActError::Detach(_) => Code::Internal,
        },
        Failure::Grow(error) => match error {
            GrowError::Look(error) => of_look(error),
            GrowError::Device(_) | GrowError::Status(_) | GrowError::Resize(_) => Code::Internal,
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
        | LookError::Devices(_)
        | LookError::Device(_)
        | LookError::Status(_)
        | LookError::Quota(_) => Code::Internal,
    }
}

/// The error and its causes in one line: a status has no other place for them.
fn chain(error: &dyn Error) -> String {
    let causes = std::iter::successors(Some(error), |error| (*error).source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object() -> (VolumeId, PathBuf) {
        ("pvc-1".parse().expect("an identifier"), "/k/t".into())
    }

    fn publish(source: impl Into<Failure>) -> Status {
        let (volume, target) = object();
        PublishError::Failed { volume, target, source: source.into() }.into()
    }

    fn inspect(source: impl Into<Failure>) -> Code {
        let (volume, path) = object();
        Status::from(InspectError::Failed { volume, path, source: source.into() }).code()
    }

    #[test]
    fn another_volume_at_the_target_is_no_success_to_publish_and_in_the_way_to_unpublish() {
        assert_eq!(publish(Refusal::OtherVolume).code(), Code::AlreadyExists);
        let (volume, target) = object();
        let unpublish = UnpublishError::Failed { volume, target, source: Refusal::OtherVolume.into() };
        assert_eq!(Status::from(unpublish).code(), Code::FailedPrecondition);
    }

    #[test]
    fn a_link_on_the_way_is_a_path_that_leads_outside() {
        let link = || LookError::Link { parent: "pods".into() };
        assert_eq!(publish(link()).code(), Code::InvalidArgument);
        assert_eq!(inspect(link()), Code::NotFound);
    }

    #[test]
    fn publish_follows_the_table_of_csi() {
        assert_eq!(publish(Refusal::Unknown).code(), Code::NotFound);
        assert_eq!(publish(Refusal::Differs).code(), Code::AlreadyExists);
        assert_eq!(publish(Refusal::InUse).code(), Code::FailedPrecondition);
    }

    #[test]
    fn a_block_volume_is_no_directory() {
        let refused = publish(Refusal::Mode { is: crate::Mode::Block });
        assert_eq!(refused.code(), Code::InvalidArgument);
        assert!(refused.message().ends_with("it is a block volume; ask for it with volumeMode of its claim"));
    }

    #[test]
    fn a_volume_that_is_being_made_is_asked_for_again() {
        assert_eq!(publish(Refusal::NotAnnounced).code(), Code::Unavailable);
    }

    #[test]
    fn a_path_outside_is_invalid_to_publish_and_not_found_to_look_at() {
        let outside = || RequestError::Path { field: "path", source: PathError::Outside { kubelet: "/k".into() } };
        assert_eq!(Status::from(PublishError::Request(outside())).code(), Code::InvalidArgument);
        assert_eq!(Status::from(UnpublishError::Request(outside())).code(), Code::InvalidArgument);
        assert_eq!(Status::from(InspectError::Request(outside())).code(), Code::NotFound);
    }

    #[test]
    fn an_impossible_size_is_out_of_range() {
        assert_eq!(inspect(Refusal::Size { size: units::Bytes::GIB }), Code::OutOfRange);
        let negative = RequestError::Range { required: -1, limit: 0 };
        assert_eq!(Status::from(InspectError::Request(negative)).code(), Code::OutOfRange);
    }

    #[test]
    fn the_message_names_object_cause_and_remedy() {
        assert_eq!(
            publish(Refusal::Differs).message(),
            "cannot publish volume pvc-1 at /k/t: the volume is published there with other options; unpublish it first"
        );
    }
}
