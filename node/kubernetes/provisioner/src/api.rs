//! What may go wrong with the API server.

use kube::core::Status;

/// A request to the API server failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what}")]
pub struct ApiError {
    what: &'static str,
    source: ApiCause,
}

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum ApiCause {
    /// The API server said no; in its words.
    #[error("{}", .0.message)]
    Refused(Box<Status>),
    /// It was not reached, or not understood.
    #[error(transparent)]
    Failed(Box<kube::Error>),
}

impl ApiError {
    /// Somebody else changed the object first.
    pub(crate) fn is_conflict(&self) -> bool {
        matches!(&self.source, ApiCause::Refused(status) if status.is_conflict())
    }

    /// The object is gone.
    pub(crate) fn is_not_found(&self) -> bool {
        matches!(&self.source, ApiCause::Refused(status) if status.is_not_found())
    }
}

/// For `map_err`: this request failed.
pub(crate) fn api(what: &'static str) -> impl FnOnce(kube::Error) -> ApiError {
    move |error| {
        let source = match error {
            kube::Error::Api(status) => ApiCause::Refused(status),
            other => ApiCause::Failed(Box::new(other)),
        };
        ApiError { what, source }
    }
}
