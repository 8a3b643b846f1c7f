//! SIGUSR1 restarts services of the node's program, because the node has no shell.

use std::sync::Arc;

use futures::future::BoxFuture;
use supervisor::{BoxError, Context};
use tokio::signal::unix::{SignalKind, signal};

#[derive(Debug, thiserror::Error)]
#[error("restart requested by SIGUSR1")]
pub struct RestartRequested;

/// Wraps a service so that SIGUSR1 cancels it at its next await point, as a failure: the supervisor stops its children
/// and restarts it after a back-off. Current work in the kernel or on the disk is completed.
pub fn on_request<F, Fut, E>(service: F) -> impl Fn(Context) -> BoxFuture<'static, Result<(), BoxError>> + Send + Sync
where
    F: Fn(Context) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<(), E>> + Send + 'static,
    E: Into<BoxError>,
{
    let service = Arc::new(service);
    move |cx| {
        let service = Arc::clone(&service);
        Box::pin(async move {
            let mut asked = signal(SignalKind::user_defined1())?;
            tokio::select! {
                ended = service(cx) => ended.map_err(Into::into),
                _ = asked.recv() => Err(RestartRequested.into()),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::time::Duration;

    use envtest::{Seen, eventually};
    use nix::sys::signal::{Signal, raise};
    use supervisor::{Settings, State, Supervisor};

    use super::*;

    #[tokio::test]
    async fn a_service_that_waits_ends_and_is_started_again() {
        let service = on_request(|cx: Context| async move {
            cx.healthy();
            cx.cancelled().await;
            Ok::<(), BoxError>(())
        });
        let tree = Supervisor::start("service", Settings::default(), service);
        tree.handle().healthy().await.unwrap();
        raise(Signal::SIGUSR1).unwrap();
        eventually(Duration::from_secs(30), "another attempt", async || {
            let status = tree.status();
            let again = status.attempts > 1 && status.state == State::Healthy;
            Ok::<_, Infallible>(if again { Seen::Done(()) } else { Seen::NotYet(format!("{status:?}")) })
        })
        .await
        .unwrap();
        tree.stop(Duration::from_secs(5)).await.unwrap();
    }
}
