//! How kubelet connects, and what every answer has to be like.

use std::path::PathBuf;

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Response, Status};
use tower::service_fn;

/// Connects to a socket, with kubelet's `localhost` as authority. A connection that ends is made again.
///
/// # Errors
/// Nobody serves the socket.
pub async fn connect(socket: PathBuf) -> Result<Channel, tonic::transport::Error> {
    let connector = service_fn(move |_| {
        let socket = socket.clone();
        async move { UnixStream::connect(socket).await.map(TokioIo::new) }
    });
    Endpoint::from_static("http://localhost").connect_with_connector(connector).await
}

/// The code of an answer that is not OK.
///
/// # Errors
/// The code.
///
/// # Panics
/// If the status has no message for people, or has details: both are against the specification (Error Scheme).
pub fn answer<T>(answer: Result<Response<T>, Status>) -> Result<T, Code> {
    answer.map(Response::into_inner).map_err(|status| {
        assert!(!status.message().is_empty(), "a status without a message: {status:?}");
        assert!(status.details().is_empty(), "a status with details: {status:?}");
        status.code()
    })
}
