//! Why a case failed, but for what it asserts.

use envtest::Late;

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
    /// The test's own request is none.
    #[error("cannot make a request for the API")]
    Request(#[source] http::Error),
    /// The test's own object is none.
    #[error("cannot make an object for the API")]
    Object(#[from] serde_json::Error),
    /// It did not come.
    #[error(transparent)]
    Late(#[from] Late),
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
    pub fn api(doing: impl Into<String>) -> impl FnOnce(kube::Error) -> Self {
        let doing = doing.into();
        move |source| Self::Api { doing, source: Box::new(source) }
    }
}
