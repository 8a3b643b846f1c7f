//! A fake API server of the unit tests.

use std::convert::Infallible;

use http::{Request, Response};
use kube::Client;
use kube::client::Body;
use serde_json::Value;
use tower::service_fn;

/// Client of an API server that answers each request with this status code and body.
pub(crate) fn client<F>(answer: impl Fn(Request<Body>) -> F + Send + 'static) -> Client
where
    F: Future<Output = (u16, Value)> + Send + 'static,
{
    let service = service_fn(move |request: Request<Body>| {
        let answer = answer(request);
        async move {
            let (status, body) = answer.await;
            let response = Response::builder().status(status).body(Body::from(body.to_string().into_bytes()));
            Ok::<_, Infallible>(response.unwrap())
        }
    });
    Client::new(service, "default")
}
