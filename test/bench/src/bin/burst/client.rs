//! A client of the API server whose requests are counted, and may be limited.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::{Method, Request};
use kube::Client;
use kube::client::Body;
use tokio::time::{Instant, sleep_until};
use tower::service_fn;

#[derive(Clone, Debug, Default)]
pub(crate) struct Requests(Arc<Mutex<BTreeMap<String, u64>>>);

#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    pub(crate) each: Duration,
    pub(crate) burst: u32,
}

impl Requests {
    pub(crate) fn counted(&self) -> BTreeMap<String, u64> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn count(&self, name: String) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(name).or_default() += 1;
    }
}

/// `client`, with every request counted.
pub(crate) fn counting(client: Client, requests: Requests, limit: Option<Limit>) -> Client {
    let free_at = Arc::new(Mutex::new(None));
    let service = service_fn(move |request: Request<Body>| {
        let (client, requests, free_at) = (client.clone(), requests.clone(), Arc::clone(&free_at));
        async move {
            if let Some(limit) = limit {
                let turn = turn(&mut free_at.lock().unwrap_or_else(PoisonError::into_inner), limit, Instant::now());
                sleep_until(turn).await;
            }
            requests.count(name(request.method(), request.uri().path(), request.uri().query()));
            client.send(request).await
        }
    });
    Client::new(service, "default")
}

/// When the next request may go: a bucket of tokens, written as the time at which it is full again.
fn turn(full_at: &mut Option<Instant>, Limit { each, burst }: Limit, now: Instant) -> Instant {
    let full = full_at.map_or(now, |full| full.max(now));
    *full_at = Some(full + each);
    (full + each).checked_sub(each * burst).map_or(now, |turn| turn.max(now))
}

/// `create persistentvolumes`, as a role would say it.
fn name(method: &Method, path: &str, query: Option<&str>) -> String {
    let segments: Vec<&str> = path.trim_matches('/').split('/').collect();
    let below = match segments.as_slice() {
        ["api", _, "namespaces", _, rest @ ..] | ["apis", _, _, "namespaces", _, rest @ ..] if !rest.is_empty() => rest,
        ["api", _, rest @ ..] | ["apis", _, _, rest @ ..] => rest,
        other => other,
    };
    let (resource, named) = match below {
        [resource] => ((*resource).to_owned(), false),
        [resource, _] => ((*resource).to_owned(), true),
        [resource, _, sub, ..] => (format!("{resource}/{sub}"), true),
        [] => (path.to_owned(), false),
    };
    let watches = query.is_some_and(|query| query.split('&').any(|pair| pair == "watch=true"));
    let verb = match *method {
        Method::GET if watches => "watch",
        Method::GET if named => "get",
        Method::GET => "list",
        Method::POST => "create",
        Method::PATCH => "patch",
        Method::PUT => "update",
        Method::DELETE => "delete",
        _ => "other",
    };
    format!("{verb} {resource}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_have_the_names_of_roles() {
        let name = |method, path| name(&method, path, Some("watch=false"));
        assert_eq!(name(Method::POST, "/api/v1/persistentvolumes"), "create persistentvolumes");
        assert_eq!(name(Method::GET, "/api/v1/namespaces/a/persistentvolumeclaims/b"), "get persistentvolumeclaims");
        let status = "/api/v1/namespaces/a/persistentvolumeclaims/b/status";
        assert_eq!(name(Method::PATCH, status), "patch persistentvolumeclaims/status");
        assert_eq!(name(Method::POST, "/apis/events.k8s.io/v1/namespaces/a/events"), "create events");
        assert_eq!(name(Method::GET, "/api/v1/namespaces"), "list namespaces");
        let watch = super::name(&Method::GET, "/api/v1/persistentvolumes", Some("timeoutSeconds=9&watch=true"));
        assert_eq!(watch, "watch persistentvolumes");
    }

    #[tokio::test(start_paused = true)]
    async fn a_burst_goes_at_once_and_then_one_at_a_time() {
        let limit = Limit { each: Duration::from_millis(200), burst: 3 };
        let (mut full, now) = (None, Instant::now());
        let waits: Vec<_> = (0..5).map(|_| (turn(&mut full, limit, now) - now).as_millis()).collect();
        assert_eq!(waits, [0, 0, 0, 200, 400]);
        let later = now + Duration::from_secs(60);
        assert_eq!(turn(&mut full, limit, later), later);
    }
}
