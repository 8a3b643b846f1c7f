//! Threads for work that blocks. The work is completed even if the client cancels the call.

use std::panic::resume_unwind;
use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

/// A limited number of threads. Clones share the limit.
#[derive(Clone, Debug)]
pub(crate) struct Threads(Arc<Semaphore>);

impl Threads {
    pub(crate) fn at_most(most: usize) -> Self {
        Self(Arc::new(Semaphore::new(most)))
    }

    /// As [`blocking`], but first waits for a permit. The thread keeps it until the work has ended: a call that the
    /// client has cancelled still counts. Cancel-safe while it waits.
    pub(crate) async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let permit = Arc::clone(&self.0).acquire_owned().await.ok(); // the semaphore is never closed
        let permitted = move || {
            let _permit = permit;
            work()
        };
        blocking(permitted).await
    }
}

/// Runs the work in a thread, and passes its panic on: `Observed`, the layer in front of the services, turns it into an
/// error of the call.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match spawn_blocking(work).await {
        Ok(done) => done,
        Err(panicked) => resume_unwind(panicked.into_panic()),
    }
}
