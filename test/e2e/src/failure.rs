//! Failures of a case, except for failed assertions.

use envtest::Late;

/// Error that ends a case. A failed assertion is a panic, as in any test.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("cannot {doing}")]
    Api { doing: String, source: Box<kube::Error> },
    #[error("cannot create a request for the API")]
    Request(#[source] http::Error),
    #[error("cannot create an object for the API")]
    Object(#[from] serde_json::Error),
    #[error(transparent)]
    Late(#[from] Late),
    #[error("pod {pod} failed: {message}")]
    Pod { pod: String, message: String },
    #[error("pod {pod} reported {message:?}")]
    Report { pod: String, message: String, source: serde_json::Error },
}

impl Failure {
    pub fn api(doing: impl Into<String>) -> impl FnOnce(kube::Error) -> Self {
        let doing = doing.into();
        move |source| Self::Api { doing, source: Box::new(source) }
    }
}
