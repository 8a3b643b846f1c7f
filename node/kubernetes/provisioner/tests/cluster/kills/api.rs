//! A client whose writes are boundaries.

use std::sync::Arc;

use http::{Method, Request};
use kube::Client;
use kube::client::Body;
use tower::service_fn;

use super::fuse::Fuse;

/// A client with boundaries before each write is sent and after its response. Must be called in the runtime of the
/// process, because the client starts a task.
pub fn fused(client: Client, fuse: Arc<Fuse>) -> Client {
    let namespace = client.default_namespace().to_owned();
    let service = service_fn(move |request: Request<Body>| {
        let (client, fuse) = (client.clone(), Arc::clone(&fuse));
        async move {
            let writes = ![Method::GET, Method::HEAD].contains(request.method());
            let what = format!("{} {}", request.method(), resource(request.uri().path()));
            if writes {
                fuse.pass(&format!("before {what}")).await;
            }
            let answer = client.send(request).await;
            if writes {
                fuse.pass(&format!("after {what}")).await;
            }
            answer
        }
    });
    Client::new(service, namespace)
}

/// The kind of object at a path, with the subresource: `/api/v1/persistentvolumes/NAME/status`,
/// `/apis/GROUP/v1/namespaces/NAME/events`.
pub fn resource(path: &str) -> String {
    let mut rest: Vec<_> = path.trim_start_matches('/').split('/').collect();
    rest.drain(..if rest.first() == Some(&"api") { 2 } else { 3 }.min(rest.len()));
    if rest.first() == Some(&"namespaces") && rest.len() > 2 {
        rest.drain(..2);
    }
    rest.into_iter().step_by(2).collect::<Vec<_>>().join("/")
}
