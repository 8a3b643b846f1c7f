//! Waits for objects of the cluster.

use futures::StreamExt as _;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::wait::Condition;
use kube::runtime::watcher::{self, watch_object};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use std::pin::pin;

/// Waits until the object of this name, or its absence, meets a condition. Returns the object.
///
/// The watch is reopened after a failure; `lost` is its error until the next event. The function never fails: callers
/// have a deadline, and report `lost` with it. Cancel-safe.
pub async fn wait_for<K>(
    objects: Api<K>,
    name: &str,
    condition: impl Condition<K>,
    lost: &mut Option<watcher::Error>,
) -> Option<K>
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let mut events = pin!(watch_object(objects, name).default_backoff());
    while let Some(object) = events.next().await {
        match object {
            Ok(object) => {
                *lost = None;
                if condition.matches_object(object.as_ref()) {
                    return object;
                }
            }
            Err(error) => *lost = Some(error),
        }
    }
    // The watch never ends by itself.
    std::future::pending().await
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{Request, Response};
    use k8s_openapi::api::core::v1::Pod;
    use kube::Client;
    use kube::client::Body;
    use kube::runtime::wait::conditions;
    use serde_json::json;
    use std::future::pending;
    use std::io;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;
    use tokio::time::timeout;
    use tower::service_fn;

    const LIMIT: Duration = Duration::from_secs(60);

    /// Pods of an API server that fails this number of requests, and then has one pod that does not change.
    fn pods(failures: usize) -> Api<Pod> {
        let away = Arc::new(AtomicUsize::new(failures));
        let service = service_fn(move |request: Request<Body>| {
            let is_away = away.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok();
            let is_watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
            async move {
                if is_away {
                    return Err(io::Error::from(io::ErrorKind::ConnectionRefused));
                }
                if is_watch {
                    return pending().await;
                }
                let list = json!({
                    "apiVersion": "v1",
                    "kind": "PodList",
                    "metadata": {"resourceVersion": "7"},
                    "items": [{"metadata": {"name": "notes-writer", "uid": "one"}}],
                });
                Ok(Response::new(Body::from(list.to_string().into_bytes())))
            }
        });
        Api::namespaced(Client::new(service, "demo"), "demo")
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_watch_is_opened_again() {
        let mut lost = None;
        let pod = wait_for(pods(3), "notes-writer", conditions::is_created(), &mut lost).await;
        assert_eq!(pod.unwrap().metadata.uid.as_deref(), Some("one"));
        assert!(lost.is_none(), "{lost:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn the_error_of_a_failed_watch_is_kept() {
        let mut lost = None;
        for (away, is_lost) in [(usize::MAX, true), (1, false)] {
            let gone = wait_for(pods(away), "notes-writer", conditions::is_deleted("one"), &mut lost);
            timeout(LIMIT, gone).await.unwrap_err();
            assert_eq!(lost.is_some(), is_lost, "{lost:?}");
        }
    }
}
