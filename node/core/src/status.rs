//! The node's metrics over HTTP.
//!
//! Only programs of the node itself are answered: the API server is one, and asks for those who may proxy to nodes
//! (`/api/v1/nodes/NAME:7839/proxy/metrics`). Pods would learn the names of all claims.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{ALLOW, CONTENT_TYPE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus::{Registry, TEXT_FORMAT, TextEncoder};
use supervisor::Context;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{sleep, timeout};
use tracing::{debug, warn};

/// Where it listens, on the node's address.
pub const PORT: u16 = 7839;

/// Connections at once: one or two programs ask, twice a minute.
const CONNECTIONS: usize = 8;

/// For a request, and for its answer. The metrics of volumes wait for the disk.
const HEAD: Duration = Duration::from_secs(10);
const PATIENCE: Duration = Duration::from_secs(60);

/// Out of descriptors, most likely.
const PAUSE: Duration = Duration::from_secs(1);

/// Nobody can ask.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}")]
pub struct ListenError {
    address: SocketAddr,
    source: io::Error,
}

/// Serves the metrics of the registry until it is cancelled. Healthy when it listens.
///
/// # Errors
/// [`ListenError`].
pub async fn run(cx: Context, own: Ipv4Addr, registry: Registry) -> Result<(), ListenError> {
    let address = SocketAddr::from((own, PORT));
    let listener = TcpListener::bind(address).await.map_err(|source| ListenError { address, source })?;
    cx.healthy();
    tokio::select! {
        () = cx.cancelled() => {}
        () = serve(&listener, own, &registry) => {}
    }
    Ok(())
}

/// Never returns. Dropped, it drops its connections.
async fn serve(listener: &TcpListener, own: Ipv4Addr, registry: &Registry) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            Some(_) = connections.join_next() => {}
            accepted = listener.accept(), if connections.len() < CONNECTIONS => match accepted {
                Ok((stream, peer)) if is_of_the_node(peer.ip(), own) => {
                    connections.spawn(converse(stream, registry.clone()));
                }
                Ok((_, peer)) => debug!(%peer, "metrics refused to somebody who is not on the node"),
                Err(error) => {
                    warn!(%error, "cannot accept a connection for metrics");
                    sleep(PAUSE).await;
                }
            },
        }
    }
}

fn is_of_the_node(peer: IpAddr, own: Ipv4Addr) -> bool {
    peer.is_loopback() || peer == IpAddr::V4(own)
}

/// One request, one answer.
async fn converse(stream: TcpStream, registry: Registry) {
    let service = service_fn(move |request| answer(request, registry.clone()));
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD).keep_alive(false);
    match timeout(PATIENCE, builder.serve_connection(TokioIo::new(stream), service)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => debug!(%error, "connection for metrics failed"),
        Err(_) => debug!("connection for metrics took too long"),
    }
}

async fn answer<B>(request: Request<B>, registry: Registry) -> Result<Response<Full<Bytes>>, Infallible> {
    let plain = |status, text: &str| {
        let mut response = Response::new(Full::from(format!("{text}\n")));
        *response.status_mut() = status;
        response
    };
    let mut response = match (request.method(), request.uri().path()) {
        (&Method::GET, "/metrics") => match spawn_blocking(move || metrics(&registry)).await {
            Ok(Ok(text)) => Response::new(Full::from(text)),
            Ok(Err(error)) => {
                warn!(%error, "cannot write the metrics");
                plain(StatusCode::INTERNAL_SERVER_ERROR, "cannot write the metrics")
            }
            Err(_) => plain(StatusCode::INTERNAL_SERVER_ERROR, "gathering metrics ended early"),
        },
        (_, "/metrics") => {
            let mut response = plain(StatusCode::METHOD_NOT_ALLOWED, "GET is allowed");
            response.headers_mut().insert(ALLOW, hyper::header::HeaderValue::from_static("GET"));
            response
        }
        _ => plain(StatusCode::NOT_FOUND, "there is /metrics"),
    };
    response.headers_mut().insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static(TEXT_FORMAT));
    Ok(response)
}

/// Waits for the disk.
fn metrics(registry: &Registry) -> Result<String, prometheus::Error> {
    TextEncoder::new().encode_to_string(&registry.gather())
}

#[cfg(test)]
mod tests {
    use prometheus::IntCounter;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// What a server with one metric answers.
    async fn answered(request: &str) -> String {
        let registry = Registry::new();
        let counter = IntCounter::new("granary_tests_total", "Tests.").unwrap();
        registry.register(Box::new(counter.clone())).unwrap();
        counter.inc();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let ask = async {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            answer
        };
        tokio::select! {
            () = serve(&listener, Ipv4Addr::new(192, 0, 2, 1), &registry) => unreachable!("it never returns"),
            answer = ask => answer,
        }
    }

    #[tokio::test]
    async fn metrics_are_served_as_text() {
        let answer = answered("GET /metrics HTTP/1.1\r\nHost: node\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert!(answer.contains("content-type: text/plain; version=0.0.4"), "{answer}");
        assert!(answer.ends_with("granary_tests_total 1\n"), "{answer}");
    }

    #[tokio::test]
    async fn nothing_else_is_there() {
        for (request, status) in [
            ("GET / HTTP/1.1\r\nHost: node\r\n\r\n", "404"),
            ("GET /metrics/../etc HTTP/1.1\r\nHost: node\r\n\r\n", "404"),
            ("DELETE /metrics HTTP/1.1\r\nHost: node\r\n\r\n", "405"),
            ("rubbish\r\n\r\n", "400"),
        ] {
            let answer = answered(request).await;
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{request:?}: {answer}");
        }
    }

    #[test]
    fn pods_and_other_machines_are_not_answered() {
        let own = Ipv4Addr::new(10, 0, 2, 15);
        assert!(is_of_the_node(IpAddr::V4(own), own));
        assert!(is_of_the_node(IpAddr::V4(Ipv4Addr::LOCALHOST), own));
        for other in [[10, 244, 0, 7], [10, 0, 2, 2], [10, 0, 2, 16]] {
            assert!(!is_of_the_node(IpAddr::from(other), own), "{other:?}");
        }
    }
}
