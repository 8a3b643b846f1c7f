//! An API server with one Node.

use std::convert::Infallible;
use std::future::pending;

use http::{Request, Response};
use kube::Client;
use kube::client::Body;
use serde_json::json;
use tower::service_fn;

/// A client of an API server whose only Node is `one` with this range. The Node never changes: watches have no events.
pub fn with_range(range: &'static str) -> Client {
    let service = service_fn(move |request: Request<Body>| async move {
        let asked = request.uri().to_string();
        assert!(asked.starts_with("/api/v1/nodes?") && asked.contains("fieldSelector=metadata.name%3Done"), "{asked}");
        if asked.contains("watch=true") {
            return pending().await;
        }
        let nodes = json!({
            "apiVersion": "v1", "kind": "NodeList", "metadata": {"resourceVersion": "1"},
            "items": [{"metadata": {"name": "one", "resourceVersion": "1"}, "spec": {"podCIDR": range}}],
        });
        Ok::<_, Infallible>(Response::new(Body::from(nodes.to_string().into_bytes())))
    });
    Client::new(service, "default")
}
