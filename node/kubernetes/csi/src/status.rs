//! The gRPC codes of all errors. No mapping has a default, so that a new error needs a decision.

use std::error::Error;
use std::fmt;
use std::path::PathBuf;

use loopdev::AttachError;
use tonic::{Code, Status};
use volume::VolumeId;

use crate::host::{ActError, LookError};
use crate::plan::PlanError;
use crate::request::{PathError, RequestError};

/// A call with an operation behind it: some errors have another code for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    Publish,
    Unpublish,
    Expand,
    Stats,
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Publish => "publish",
            Self::Unpublish => "unpublish",
            Self::Expand => "expand",
            Self::Stats => "read the statistics of",
        })
    }
}

/// A checked request could not be served.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("cannot read its state")]
    Look(#[from] LookError),
    #[error(transparent)]
    Refused(#[from] PlanError),
    #[error(transparent)]
    Act(#[from] ActError),
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    #[error("invalid request")]
    Request { call: Call, source: RequestError },
    #[error("cannot {call} volume {volume} at {}", path.display())]
    Failed { call: Call, volume: VolumeId, path: PathBuf, source: Failure },
}

impl From<CallError> for Status {
    fn from(error: CallError) -> Self {
        let code = match &error {
            // A path where nothing can be published has no volume.
            CallError::Request {
                call: Call::Expand | Call::Stats,
                source: RequestError::Path { source: PathError::Outside { .. }, .. },
            }
            | CallError::Failed {
                call: Call::Expand | Call::Stats,
                source: Failure::Look(LookError::Link { .. }),
                ..
            } => Code::NotFound,
            CallError::Failed { call: Call::Unpublish, source: Failure::Refused(PlanError::OtherVolume), .. } => {
                Code::FailedPrecondition
            }
            CallError::Request { source, .. } => of_request(source),
            CallError::Failed { source, .. } => of_failure(source),
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
            PlanError::Unknown | PlanError::NotPublished => Code::NotFound,
            PlanError::NotAnnounced => Code::Unavailable,
            PlanError::Mode { .. } => Code::InvalidArgument,
            PlanError::Differs | PlanError::OtherVolume => Code::AlreadyExists,
            PlanError::NoParent
            | PlanError::Foreign
            | PlanError::Obstructed { .. }
            | PlanError::NotRemovable
            | PlanError::InUse => Code::FailedPrecondition,
            PlanError::Size { .. } => Code::OutOfRange,
            PlanError::Damaged | PlanError::NoQuota => Code::Internal,
        },
        Failure::Act(error) => match error {
            ActError::Look(error) => of_look(error),
            ActError::NotEmpty | ActError::Busy => Code::FailedPrecondition,
            ActError::VolumeGone => Code::NotFound,
            // The next call finds something else.
            ActError::DeviceGone | ActError::AttachImage(AttachError::Contended { .. }) => Code::Unavailable,
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

/// The error and its causes in one line: a status has no other place for them.
fn chain(error: &dyn Error) -> String {
    let causes = std::iter::successors(Some(error), |error| (*error).source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(call: Call, source: impl Into<Failure>) -> Status {
        let volume = "pvc-1".parse().expect("an identifier");
        CallError::Failed { call, volume, path: "/k/t".into(), source: source.into() }.into()
    }

    fn invalid(call: Call, source: RequestError) -> Code {
        Status::from(CallError::Request { call, source }).code()
    }

    #[test]
    fn refusals_have_the_codes_of_the_specification() {
        for (call, refusal, code) in [
            (Call::Publish, PlanError::OtherVolume, Code::AlreadyExists),
            (Call::Unpublish, PlanError::OtherVolume, Code::FailedPrecondition),
            (Call::Publish, PlanError::Unknown, Code::NotFound),
            (Call::Publish, PlanError::Differs, Code::AlreadyExists),
            (Call::Publish, PlanError::InUse, Code::FailedPrecondition),
            (Call::Publish, PlanError::NotAnnounced, Code::Unavailable),
            (Call::Publish, PlanError::Mode { is: crate::Mode::Block }, Code::InvalidArgument),
            (Call::Expand, PlanError::Size { size: units::Bytes::GIB }, Code::OutOfRange),
        ] {
            assert_eq!(failed(call, refusal).code(), code, "{call} {refusal}");
        }
    }

    #[test]
    fn paths_outside_have_the_codes_of_their_calls() {
        for (call, code) in [
            (Call::Publish, Code::InvalidArgument),
            (Call::Unpublish, Code::InvalidArgument),
            (Call::Expand, Code::NotFound),
            (Call::Stats, Code::NotFound),
        ] {
            assert_eq!(failed(call, LookError::Link { parent: "pods".into() }).code(), code, "{call}");
            let outside = PathError::Outside { kubelet: "/k".into() };
            assert_eq!(invalid(call, RequestError::Path { field: "path", source: outside }), code, "{call}");
        }
        assert_eq!(invalid(Call::Expand, RequestError::Range { required: -1, limit: 0 }), Code::OutOfRange);
    }

    #[test]
    fn messages_name_object_cause_and_remedy() {
        assert_eq!(
            failed(Call::Publish, PlanError::Differs).message(),
            "cannot publish volume pvc-1 at /k/t: the volume is published there with other options; unpublish it first"
        );
        let refused = failed(Call::Publish, PlanError::Mode { is: crate::Mode::Block });
        assert!(refused.message().ends_with("it is a block volume; set volumeMode of its claim to match"));
    }
}
