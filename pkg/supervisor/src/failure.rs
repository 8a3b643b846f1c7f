//! Causes of failed attempts.

use std::any::Any;
use std::error::Error;

use tokio::task::JoinError;

/// Any error of a service.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// Cause of a failed attempt.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error(transparent)]
    Returned(BoxError),
    #[error("panicked: {0}")]
    Panicked(String),
    #[error("ended without a call of done")]
    Ended,
}

impl Failure {
    /// The failure of a task that panicked or was aborted.
    pub(crate) fn from_join(error: JoinError) -> Self {
        match error.try_into_panic() {
            Ok(payload) => Self::from_panic(&*payload),
            Err(cancelled) => Self::Returned(cancelled.into()), // the runtime shuts down
        }
    }

    fn from_panic(payload: &(dyn Any + Send)) -> Self {
        let said = payload
            .downcast_ref::<&str>()
            .map(|said| (*said).to_owned())
            .or_else(|| payload.downcast_ref::<String>().cloned());
        Self::Panicked(said.unwrap_or_else(|| "no message".to_owned()))
    }
}
