//! The error of a failed step.

use supervisor::BoxError;

/// No caller distinguishes it from other failed steps.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub struct StepError {
    text: String,
    source: BoxError,
}

impl StepError {
    /// For `map_err`.
    pub(crate) fn of<E: Into<BoxError>>(text: impl Into<String>) -> impl FnOnce(E) -> Self {
        let text = text.into();
        |source| Self { text, source: source.into() }
    }
}
