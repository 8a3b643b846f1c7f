//! The type behind every service function.

use std::pin::Pin;
use std::sync::Arc;

use crate::{BoxError, Context};

/// One attempt of a service.
pub(crate) type Attempt = Pin<Box<dyn Future<Output = Result<(), BoxError>> + Send>>;

/// A service function, whatever its types were.
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

    /// The function itself runs inside the future too: its panic is the attempt's.
    pub(crate) fn attempt(&self, cx: Context) -> Attempt {
        let run = Arc::clone(&self.0);
        Box::pin(async move { run(cx).await })
    }
}
