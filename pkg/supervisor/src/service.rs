//! Service functions with erased types.

use std::pin::Pin;
use std::sync::Arc;

use crate::{BoxError, Context};

/// One attempt of a service.
pub(crate) type Attempt = Pin<Box<dyn Future<Output = Result<(), BoxError>> + Send>>;

/// A service function of any type.
#[derive(Clone)]
pub(crate) struct Service(Arc<dyn Fn(Context) -> Attempt + Send + Sync>);

impl Service {
    pub(crate) fn new<F, Fut, E>(run: F) -> Self
    where
        F: Fn(Context) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<BoxError>,
    {
        Self(Arc::new(move |cx| {
            let attempt = run(cx);
            Box::pin(async move { attempt.await.map_err(Into::into) })
        }))
    }

    /// Starts an attempt. The call of the function is inside the future too, so that its panic is a failure of the
    /// attempt.
    pub(crate) fn attempt(&self, cx: Context) -> Attempt {
        let run = Arc::clone(&self.0);
        Box::pin(async move { run(cx).await })
    }
}
