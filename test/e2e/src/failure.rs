//! Why a case failed, but for what it asserts.

use std::error::Error;
use std::fmt::Write;
use std::time::Duration;

/// Why a case could not go on. What a case asserts is a panic, as in any test.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The API server refused.
    #[error("cannot {doing}")]
    Api {
        /// What was asked for.
        doing: String,
        /// The answer.
        #[source]
        source: Box<kube::Error>,
    },
    /// The test's own object is none.
    #[error("cannot make an object for the API")]
    Object(#[from] serde_json::Error),
    /// It did not come.
    #[error("waited {limit:?} for {what}; last seen: {last}")]
    Late {
        /// What was waited for.
        what: String,
        /// For how long.
        limit: Duration,
        /// The last state.
        last: String,
    },
    /// A pod that makes a check ended in failure.
    #[error("pod {pod} failed: {message}")]
    Pod {
        /// Its name.
        pod: String,
        /// What it left.
        message: String,
    },
    /// A pod reported what no check reports.
    #[error("pod {pod} reported {message:?}")]
    Report {
        /// Its name.
        pod: String,
        /// What it left.
        message: String,
        /// What is wrong with it.
        #[source]
        source: serde_json::Error,
    },
}

impl Failure {
    /// For `map_err`.
    pub(crate) fn api(doing: impl Into<String>) -> impl FnOnce(kube::Error) -> Self {
        let doing = doing.into();
        move |source| Self::Api { doing, source: Box::new(source) }
    }
}

/// An error with its causes, a line each.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        // Writing to a String does not fail.
        _ = write!(text, "\ncaused by: {cause}");
        next = cause.source();
    }
    text
}
