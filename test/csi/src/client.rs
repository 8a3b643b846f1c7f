//! Connections of the kubelet, and checks of every response.

use std::path::PathBuf;

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Response, Status};
use tower::service_fn;

/// Connects to a socket with `localhost` as `:authority`, like the kubelet. Reconnects when the connection ends.
pub async fn connect(socket: PathBuf) -> Result<Channel, tonic::transport::Error> {
    let connector = service_fn(move |_| {
        let socket = socket.clone();
        async move { UnixStream::connect(socket).await.map(TokioIo::new) }
    });
    Endpoint::from_static("http://localhost").connect_with_connector(connector).await
}

/// Returns the response, or the code of an error, which must have a message and no details (specification: Error
/// Scheme).
pub fn answer<T>(answer: Result<Response<T>, Status>) -> Result<T, Code> {
    answer.map(Response::into_inner).map_err(|status| {
        assert!(!status.message().is_empty(), "a status without a message: {status:?}");
        assert!(status.details().is_empty(), "a status with details: {status:?}");
        status.code()
    })
}
