//! The layer in front of the CSI services: counts, times and logs each call, and turns a panic into an error of its
//! call.

use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::task::{Context, Poll};
use std::time::Instant;

use futures::FutureExt as _;
use tonic::body::Body;
use tonic::codegen::{BoxFuture, Service, http};
use tonic::server::NamedService;
use tonic::{Code, Status};
use tracing::warn;

use crate::metrics::{Metrics, code_name};

/// A generated gRPC service whose calls are observed. The method is the last component of the request's path.
#[derive(Clone, Debug)]
pub(crate) struct Observed<S> {
    service: S,
    metrics: Metrics,
}

impl<S> Observed<S> {
    pub(crate) const fn new(service: S, metrics: Metrics) -> Self {
        Self { service, metrics }
    }
}

impl<S: NamedService> NamedService for Observed<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> Service<http::Request<Body>> for Observed<S>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.service.poll_ready(cx)
    }

    /// A call that the client cancels is dropped, and not counted.
    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let (start, metrics, path) = (Instant::now(), self.metrics.clone(), request.uri().path().to_owned());
        let response = AssertUnwindSafe(self.service.call(request)).catch_unwind();
        Box::pin(async move {
            let response = match response.await {
                Ok(response) => response?,
                Err(_) => Status::internal("the call panicked; the plugin's log has the message").into_http(),
            };
            // Errors have no body: their status is in the headers.
            let status = Status::from_header_map(response.headers());
            let code = status.as_ref().map_or(Code::Ok, Status::code);
            let method = path.rsplit('/').next().unwrap_or_default();
            metrics.observe(&path, method, code, start.elapsed());
            if let Some(status) = status {
                // A warning, not an error, because the kubelet retries.
                warn!(method, code = code_name(code), reason = status.message(), "call failed");
            }
            Ok(response)
        })
    }
}

#[cfg(test)]
mod tests {
    use prometheus::{Registry, TextEncoder};
    use tower::{ServiceExt as _, service_fn};

    use super::*;

    #[tokio::test]
    async fn calls_are_counted_by_method_and_code() {
        let registry = Registry::new();
        let answer = async |request: http::Request<Body>| {
            Ok::<_, Infallible>(match request.uri().path() {
                "/csi.v1.Node/NodePublishVolume" => Status::not_found("no such volume").into_http(),
                "/csi.v1.Node/NodeExpandVolume" => panic!("a bug, on purpose"),
                _ => http::Response::default(),
            })
        };
        let service = service_fn(move |request| Box::pin(answer(request)) as BoxFuture<_, _>);
        let observed = Observed::new(service, Metrics::register(&registry).unwrap());
        for (path, code) in [
            ("/csi.v1.Identity/Probe", Code::Ok),
            ("/csi.v1.Node/NodePublishVolume", Code::NotFound),
            ("/csi.v1.Node/NodeExpandVolume", Code::Internal),
            ("/csi.v1.Node/NodeDance", Code::Ok),
        ] {
            let request = http::Request::post(path).body(Body::empty()).unwrap();
            let response = observed.clone().oneshot(request).await.unwrap();
            let status = Status::from_header_map(response.headers());
            assert_eq!(status.map_or(Code::Ok, |status| status.code()), code, "{path}");
        }
        let text = TextEncoder::new().encode_to_string(&registry.gather()).expect("text");
        for line in [
            r#"granary_csi_calls_total{code="OK",method="Probe"} 1"#,
            r#"granary_csi_calls_total{code="NOT_FOUND",method="NodePublishVolume"} 1"#,
            r#"granary_csi_calls_total{code="OK",method="NodePublishVolume"} 0"#,
            r#"granary_csi_calls_total{code="INTERNAL",method="NodeExpandVolume"} 1"#,
            r#"granary_csi_call_duration_seconds_count{method="NodePublishVolume"} 1"#,
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in:\n{text}");
        }
        assert!(!text.contains("NodeDance"), "clients cannot add labels:\n{text}");
    }
}
