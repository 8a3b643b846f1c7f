//! The error of a failed step.

use supervisor::BoxError;

/// Error of a step that callers do not distinguish from other steps.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub struct StepError {
    text: String,
    source: BoxError,
}

impl StepError {
    /// Constructor for `map_err`.
    pub(crate) fn of<E: Into<BoxError>>(text: impl Into<String>) -> impl FnOnce(E) -> Self {
        let text = text.into();
        |source| Self { text, source: source.into() }
    }
}
