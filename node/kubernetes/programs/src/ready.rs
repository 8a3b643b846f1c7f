//! Readiness probes of programs, repeated until a deadline.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::OnceCell;
use tokio::time::{Instant, sleep, timeout};
use tracing::instrument::WithSubscriber;
use tracing::subscriber::NoSubscriber;

use crate::pki::identity::Identity;
use crate::pki::{ClientError, Credentials};

const INTERVAL: Duration = Duration::from_millis(200);
/// Deadline of one response. A TLS handshake takes seconds in emulation.
const PATIENCE: Duration = Duration::from_secs(10);
/// Deadline of readiness. In emulation, with other work at the same time, the slowest program takes a minute.
const LIMIT: Duration = Duration::from_secs(300);

#[derive(Debug, thiserror::Error)]
#[error("not ready within {} s", limit.as_secs())]
pub struct NotReady {
    pub limit: Duration,
    #[source]
    pub last: ProbeFailure,
}

#[derive(Debug, thiserror::Error)]
pub enum ProbeFailure {
    #[error("cannot connect")]
    Connection(#[from] io::Error),
    #[error("unexpected response {0:?}")]
    Answer(String),
    #[error("the request to the API server failed")]
    Api(#[from] Box<kube::Error>),
    #[error("cannot create a client")]
    Client(#[from] ClientError),
    #[error("no response within {} s", PATIENCE.as_secs())]
    Silence,
}

/// Waits until the response to `GET path`, by plain HTTP on loopback, is 200.
pub(crate) async fn http(port: u16, path: &str) -> Result<(), NotReady> {
    eventually(LIMIT, || get(port, path)).await
}

/// Sends the request of [`http`] once.
pub(crate) async fn http_now(port: u16, path: &str) -> Result<(), ProbeFailure> {
    timeout(PATIENCE, get(port, path)).await.unwrap_or(Err(ProbeFailure::Silence))
}

pub(crate) async fn socket(path: &Path) -> Result<(), NotReady> {
    eventually(LIMIT, || async { Ok(UnixStream::connect(path).await.map(drop)?) }).await
}

/// Waits until the API server returns 200 for an administrator's request of `path`.
pub(crate) async fn api(credentials: &Credentials, path: &str) -> Result<(), NotReady> {
    let client = OnceCell::new();
    let ask = || async {
        let client = client.get_or_try_init(|| credentials.client(Identity::Admin)).await?;
        let request = http::Request::get(path).body(Vec::new()).map_err(kube::Error::HttpError).map_err(Box::new)?;
        client.request_text(request).await.map(drop).map_err(Box::new)?;
        Ok(())
    };
    // kube logs each failed request as an error. These failures are expected until the server is ready.
    eventually(LIMIT, || ask().with_subscriber(NoSubscriber::new())).await
}

async fn eventually<F>(limit: Duration, ask: impl Fn() -> F) -> Result<(), NotReady>
where
    F: Future<Output = Result<(), ProbeFailure>>,
{
    let end = Instant::now() + limit;
    loop {
        let last = match timeout(PATIENCE, ask()).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(refusal)) => refusal,
            Err(_) => ProbeFailure::Silence,
        };
        if Instant::now() >= end {
            return Err(NotReady { limit, last });
        }
        sleep(INTERVAL).await;
    }
}

/// Sends one request. With HTTP/1.0, the server closes the connection after the response, of which only the first line
/// is checked.
async fn get(port: u16, path: &str) -> Result<(), ProbeFailure> {
    let mut stream = TcpStream::connect(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).await?;
    stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").as_bytes()).await?;
    let mut answer = Vec::new();
    stream.take(4096).read_to_end(&mut answer).await?;
    let answer = String::from_utf8_lossy(&answer);
    let status = answer.lines().next().unwrap_or_default();
    match status.split_ascii_whitespace().nth(1) {
        Some("200") => Ok(()),
        Some(_) | None => Err(ProbeFailure::Answer(status.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::{TcpListener, UnixListener};
    use tokio::task::JoinSet;

    use super::*;

    /// A server that sends one of the answers on each connection, and closes the connection.
    async fn server(answers: &'static [&'static str]) -> (u16, JoinSet<()>) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            for answer in answers {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = [0; 1024];
                let length = stream.read(&mut request).await.unwrap();
                assert!(request[..length].starts_with(b"GET /health HTTP/1.0\r\n"));
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        (port, tasks)
    }

    #[tokio::test]
    async fn a_server_is_asked_until_it_says_200() {
        let (port, mut tasks) =
            server(&["HTTP/1.1 503 Service Unavailable\r\n\r\n", "", "HTTP/1.1 200 OK\r\n\r\n{\"health\":\"true\"}"])
                .await;
        http(port, "/health").await.unwrap();
        tasks.join_next().await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn the_error_has_the_last_answer() {
        let (port, _tasks) = server(&["HTTP/1.1 503 Service Unavailable\r\n\r\n"]).await;
        let error = eventually(Duration::ZERO, || get(port, "/health")).await.unwrap_err();
        assert!(
            matches!(&error.last, ProbeFailure::Answer(status) if status == "HTTP/1.1 503 Service Unavailable"),
            "{error:?}"
        );
    }

    #[tokio::test]
    async fn a_socket_without_a_listener_is_not_ready() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("s");
        drop(UnixListener::bind(&path).unwrap());
        let ask = || async { Ok(UnixStream::connect(&path).await.map(drop)?) };
        let error = eventually(Duration::ZERO, ask).await.unwrap_err();
        assert!(matches!(error.last, ProbeFailure::Connection(_)));
        std::fs::remove_file(&path).unwrap();
        let _listener = UnixListener::bind(&path).unwrap();
        socket(&path).await.unwrap();
    }
}
