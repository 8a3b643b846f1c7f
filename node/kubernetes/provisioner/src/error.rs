//! Errors of passes, with their kinds in metrics and events.

use kube::core::Status;
use tokio::task::JoinError;
use units::Bytes;
use volume::{ListError, LiveVolumeError, LookError, UsageError, VolumeId};

use crate::claim::plan::Rejection;
use crate::claim::source::CloneError;
use crate::group::plan::GroupRejection;
use crate::rollback::plan::{RollbackRejection, VolumeContent};
use crate::snapshot::plan::SnapshotRejection;

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("the claim names no storage class; set spec.storageClassName")]
    NoClass,
    #[error("the storage class {class} does not exist; create it, or create the claim again with another class")]
    UnknownClass { class: String },
    #[error(
        "the VolumeAttributesClass {class} does not exist; create it, or name another one in spec.volumeAttributesClassName"
    )]
    UnknownAttributesClass { class: String },
    #[error(transparent)]
    Rejected(#[from] Rejection),
    #[error(transparent)]
    Clone(#[from] CloneError),
    #[error(transparent)]
    Rollback(#[from] RollbackRejection),
    #[error(transparent)]
    Full(volume::Error),
    #[error(transparent)]
    Store(volume::Error),
    #[error("PV {id} exists and belongs to another volume; delete it")]
    NameTaken { id: VolumeId },
    #[error("content {id} exists and does not belong to the rollback on this node; delete it")]
    ContentTaken { id: VolumeId },
    #[error(
        "{has}, but another VolumeSnapshot {name} exists; delete it, so that the node creates the VolumeSnapshot of \
         the former content"
    )]
    SnapshotTaken { has: VolumeContent, name: String },
    #[error("{has}, and the node cannot {what}: {message}")]
    KeptDenied { has: VolumeContent, what: &'static str, message: String },
    #[error("an earlier rollback of the volume is not finished")]
    EarlierRollback(#[source] Box<Self>),
    #[error("the volume keeps {has}; request less, or free space")]
    Infeasible { has: Bytes, source: volume::Error },
    #[error(transparent)]
    Expand(volume::Error),
    #[error(transparent)]
    Modify(volume::Error),
    #[error(transparent)]
    Live(#[from] LiveVolumeError),
    #[error("the kubelet could not expand the block device of the pods; it will try again")]
    NodeResize,
    #[error("the expansion is not finished after {0} steps")]
    Endless(usize),
    #[error("PV {other} has the same volume {id}; first delete one of the two PVs with policy Retain")]
    Shared { other: String, id: VolumeId },
    #[error(
        "the VolumeSnapshotClass {class} does not exist; create it, or create the snapshot again with another class"
    )]
    UnknownSnapshotClass { class: String },
    #[error(transparent)]
    SnapshotRejected(#[from] SnapshotRejection),
    #[error(
        "the VolumeGroupSnapshotClass {class} does not exist; create it, or create the group again with another class"
    )]
    UnknownGroupClass { class: String },
    #[error(transparent)]
    GroupRejected(#[from] GroupRejection),
    #[error("the object has no UID")]
    NoUid,
    #[error(
        "snapshot {id} does not exist on this node, or is not ready; correct spec.source.snapshotHandle in a new content"
    )]
    NoSnapshot { id: VolumeId },
    #[error(
        "content {other} has the same snapshot {id}; first delete one of the two contents with deletionPolicy Retain"
    )]
    SharedSnapshot { other: String, id: VolumeId },
    #[error("there is no Node object {0} yet")]
    NoNode(String),
    #[error(transparent)]
    List(#[from] ListError),
    #[error(transparent)]
    Look(#[from] LookError),
    #[error(transparent)]
    Usage(#[from] UsageError),
    #[error(transparent)]
    Api(#[from] ApiError),
    #[error("a task for the disk panicked")]
    Panicked(#[from] JoinError),
}

impl Error {
    pub(crate) fn of_claim(error: volume::Error) -> Self {
        match error {
            volume::Error::Full { .. } | volume::Error::TooLarge { .. } => Self::Full(error),
            _ => Self::Store(error),
        }
    }

    /// Reason of the failure in metrics. Events of one object with different kinds are not aggregated.
    pub(crate) const fn kind(&self) -> &'static str {
        match self {
            Self::NoClass => "NoClass",
            Self::UnknownClass { .. } | Self::UnknownSnapshotClass { .. } | Self::UnknownGroupClass { .. } => {
                "UnknownClass"
            }
            Self::UnknownAttributesClass { .. } => "UnknownAttributesClass",
            Self::Rejected(rejection) => rejection.kind(),
            Self::Clone(_) => "Clone",
            Self::Rollback(_) => "Rollback",
            Self::Full(_) => "Full",
            Self::Store(_) if self.is_in_use() => "InUse",
            Self::Store(_) => "Store",
            Self::NameTaken { .. } | Self::ContentTaken { .. } => "NameTaken",
            Self::SnapshotTaken { .. } => "SnapshotTaken",
            Self::KeptDenied { .. } => "KeptDenied",
            Self::EarlierRollback(_) => "EarlierRollback",
            Self::Infeasible { .. } => "ExpandInfeasible",
            Self::Expand(_) => "ExpandStore",
            Self::Modify(_) => "ModifyStore",
            Self::Live(_) => "ExpandHeld",
            Self::NodeResize => "ExpandNode",
            Self::Endless(_) => "ExpandEndless",
            Self::Shared { .. } | Self::SharedSnapshot { .. } => "Shared",
            Self::SnapshotRejected(_) => "SnapshotRejected",
            Self::GroupRejected(_) => "GroupRejected",
            Self::NoUid => "NoUid",
            Self::NoSnapshot { .. } => "NoSnapshot",
            Self::NoNode(_) => "NoNode",
            Self::List(_) | Self::Look(_) | Self::Usage(_) => "Disk",
            Self::Api(_) => "Api",
            Self::Panicked(_) => "Panicked",
        }
    }

    /// Whether a pass with this result counts as progress. A failure that only its object causes is progress too.
    pub(crate) fn is_progress<T>(result: &Result<T, Self>) -> bool {
        result.as_ref().err().is_none_or(Self::is_about_object)
    }

    /// Whether API server and disk work, and only the object of the pass causes the failure.
    pub(crate) fn is_about_object(&self) -> bool {
        match self {
            Self::Api(error) => error.is_about_object(),
            Self::List(_) | Self::Look(_) | Self::Usage(_) | Self::Panicked(_) => false,
            _ => true,
        }
    }

    /// Whether the API server did not respond, or failed for all objects.
    pub(crate) fn is_outage(&self) -> bool {
        match self {
            Self::Api(error) => error.is_outage(),
            Self::EarlierRollback(error) => error.is_outage(),
            _ => false,
        }
    }

    /// Whether a pod or another process has the volume.
    pub(crate) const fn is_in_use(&self) -> bool {
        matches!(self, Self::Store(error) if error.is_in_use())
    }

    /// Whether another client changed or deleted the object first.
    pub(crate) fn is_race(&self) -> bool {
        matches!(self, Self::Api(error) if error.is_conflict() || error.is_not_found())
    }
}

#[derive(Debug, thiserror::Error)]
#[error("cannot {what}")]
pub(crate) struct ApiError {
    what: &'static str,
    source: ApiCause,
}

#[derive(Debug, thiserror::Error)]
enum ApiCause {
    #[error("{}", .0.message)]
    Status(Box<Status>),
    #[error(transparent)]
    Other(Box<kube::Error>),
}

impl ApiError {
    pub(crate) fn is_conflict(&self) -> bool {
        matches!(&self.source, ApiCause::Status(status) if status.is_conflict())
    }

    pub(crate) fn is_not_found(&self) -> bool {
        matches!(&self.source, ApiCause::Status(status) if status.is_not_found())
    }

    /// An expired identity is replaced, so 401 ends without a change of the object. 403 may last: a policy denies the
    /// request.
    fn is_outage(&self) -> bool {
        match &self.source {
            ApiCause::Status(status) => matches!(status.code, 401 | 429 | 500..),
            ApiCause::Other(_) => true,
        }
    }

    /// Whether the API server works, and its response is about this object only.
    fn is_about_object(&self) -> bool {
        matches!(&self.source, ApiCause::Status(status) if matches!(status.code, 404 | 409 | 422))
    }
}

pub(crate) fn api(what: &'static str) -> impl FnOnce(kube::Error) -> ApiError {
    move |error| {
        let source = match error {
            kube::Error::Api(status) => ApiCause::Status(status),
            other => ApiCause::Other(Box::new(other)),
        };
        ApiError { what, source }
    }
}

/// Returns `None` if the object of the request does not exist any more.
pub(crate) fn unless_gone<T>(answer: kube::Result<T>, what: &'static str) -> Result<Option<T>, ApiError> {
    match answer {
        Ok(found) => Ok(Some(found)),
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(None),
        Err(error) => Err(api(what)(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_failures_of_one_object_are_progress() {
        let answer =
            |code| Error::Api(api("get a PV")(kube::Error::Api(Box::new(Status { code, ..Status::default() }))));
        let is_progress = |error| Error::is_progress(&Err::<(), _>(error));
        assert!(Error::is_progress(&Ok(())));
        assert!([answer(404), answer(409), answer(422), Error::NoClass].into_iter().all(is_progress));
        let none = Error::Api(api("get a PV")(kube::Error::LinesCodecMaxLineLengthExceeded));
        assert!(![answer(401), answer(403), answer(429), answer(500), none].into_iter().any(is_progress));
    }

    #[test]
    fn an_outage_is_not_a_denied_request() {
        let answer =
            |code| Error::Api(api("get a PV")(kube::Error::Api(Box::new(Status { code, ..Status::default() }))));
        let none = || Error::Api(api("get a PV")(kube::Error::LinesCodecMaxLineLengthExceeded));
        let earlier = Error::EarlierRollback(Box::new(none()));
        assert!([answer(401), answer(429), answer(500), answer(503), none(), earlier].iter().all(Error::is_outage));
        assert!(![answer(403), answer(404), answer(409), answer(422), Error::NoClass].iter().any(Error::is_outage));
    }
}
