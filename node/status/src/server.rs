//! The HTTP server. Connections, request sizes, times, and threads that wait for the disk are limited.

use std::convert::Infallible;
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use supervisor::BoxError;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::{AbortHandle, JoinSet, spawn_blocking};
use tokio::time::{sleep, timeout};
use tracing::{debug, warn};

use crate::model::{Page, Service, not_ready};

/// Maximum number of connections, see [`Connections`]. One or two clients send two requests per minute.
const CONNECTIONS: usize = 8;

/// Maximum size of a request's head in bytes; the API server's proxy adds headers to those of its client.
const REQUEST: usize = 16 << 10;

/// Time limit of a request and of its answer. Pages and metrics read the disk.
const HEAD: Duration = Duration::from_secs(10);
const PATIENCE: Duration = Duration::from_secs(60);

/// Maximum number of connections of clients for public files, in addition to the others, and their time limit.
const PUBLIC_CONNECTIONS: usize = 4;
const PUBLIC_PATIENCE: Duration = Duration::from_secs(10);

/// Maximum number of threads that wait for the disk, which may hang, regardless of the number of requests.
const LOOKS: usize = 2;

/// Delay after a failed accept, whose cause is most likely a lack of descriptors.
const PAUSE: Duration = Duration::from_secs(1);

const HTML: &str = "text/html; charset=utf-8";
const JSON: &str = "application/json";
const TEXT: &str = "text/plain; charset=utf-8";
const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";
/// RFC 8555, section 9.1.
const PEM: &str = "application/pem-certificate-chain";

/// The page loads, runs and sends nothing and must not be framed; its style is inline.
const POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

pub trait Source: Send + Sync + 'static {
    /// The services, without blocking.
    fn services(&self) -> Vec<Service>;

    /// Last lines of the readiness response, for example about a restricted mode of operation.
    fn remarks(&self) -> Vec<String> {
        Vec::new()
    }

    /// Files that clients outside of the audience can read, too. Must not block. Without files, the server closes the
    /// connections of these clients.
    fn public(&self) -> Vec<PublicFile> {
        Vec::new()
    }

    /// The page. May block on the disk. `None` for a source that provides only metrics; `/statusz` does not exist then.
    fn page(&self) -> Option<Page>;

    /// The metrics in Prometheus' text format. May block on the disk.
    fn metrics(&self) -> Result<String, BoxError>;
}

/// A certificate, which is not secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicFile {
    /// Path of the URL, with `/` at the beginning.
    pub path: String,
    pub certificate: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Audience {
    /// Clients on the node: from loopback or its own address; on a worker also the API server.
    Node {
        own: Ipv4Addr,
        /// Address of the API server, if it is not this node. The network must prevent spoofing of this address.
        server: Option<Ipv4Addr>,
    },
    /// All clients that reach the port: the port of a pod, which the cluster's network protects.
    All,
}

/// The paths that a connection may read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    All,
    Public,
}

/// Answers the audience, and other clients that request public files. Never returns; dropping the future closes the
/// connections.
pub async fn serve(listener: &TcpListener, audience: Audience, source: Arc<dyn Source>) {
    serve_by(listener, |peer| if audience.has(peer) { Access::All } else { Access::Public }, source).await;
}

async fn serve_by(listener: &TcpListener, access: impl Fn(IpAddr) -> Access, source: Arc<dyn Source>) {
    let server = Arc::new(Server { source, looks: Arc::new(Semaphore::new(LOOKS)) });
    // Other clients cannot use up the connections of the audience.
    let (mut tasks, mut public) = (JoinSet::new(), JoinSet::new());
    let mut connections = Connections::default();
    loop {
        tokio::select! {
            Some(_) = tasks.join_next() => {}
            Some(_) = public.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => match access(peer.ip()) {
                    Access::All => {
                        connections.make_space_for(peer.ip());
                        let has_request = Arc::<AtomicBool>::default();
                        let served = serve_client(stream, Arc::clone(&server), Access::All, Arc::clone(&has_request));
                        connections.0.push(Connection { peer: peer.ip(), task: tasks.spawn(served), has_request });
                    }
                    Access::Public if public.len() < PUBLIC_CONNECTIONS && !server.source.public().is_empty() => {
                        public.spawn(serve_client(stream, Arc::clone(&server), Access::Public, Arc::default()));
                    }
                    Access::Public => debug!(%peer, "status request rejected, the client is not on the node"),
                },
                Err(error) => {
                    warn!(%error, "cannot accept a status connection");
                    sleep(PAUSE).await;
                }
            },
        }
    }
}

/// The connections of the audience, the oldest first. Clients that open many connections and send or read nothing do
/// not delay the kubelet's probes. All clients of the API server's proxy count as one client.
#[derive(Debug, Default)]
struct Connections(Vec<Connection>);

#[derive(Debug)]
struct Connection {
    peer: IpAddr,
    task: AbortHandle,
    /// The request is complete, and the server is answering it.
    has_request: Arc<AtomicBool>,
}

impl Connections {
    /// If all connections are in use, ends one of the client with the most connections, including the next one. Of
    /// these, the oldest connection without a request ends, or the oldest one if all have requests.
    fn make_space_for(&mut self, next: IpAddr) {
        self.0.retain(|connection| !connection.task.is_finished());
        if self.0.len() < CONNECTIONS {
            return;
        }
        let count = |client: IpAddr| {
            self.0.iter().filter(|connection| connection.peer == client).count() + usize::from(client == next)
        };
        // The count decides first: a client with many requests must not end the connection of a probe that has just begun.
        // Among clients with one connection each, the oldest ends: the request of a new probe may not be complete yet.
        let rank = |connection: &Connection| {
            let count = count(connection.peer);
            (count, count > 1 && !connection.has_request.load(Ordering::Relaxed))
        };
        // `max_by_key` returns the last of equal ones.
        let ended = self.0.iter().enumerate().rev().max_by_key(|(_, connection)| rank(connection)).map(|(at, _)| at);
        if let Some(ended) = ended {
            let Connection { peer, task, .. } = self.0.remove(ended);
            task.abort();
            debug!(%peer, "status connection ended, there are too many");
        }
    }
}

impl Audience {
    fn has(self, peer: IpAddr) -> bool {
        match self {
            Self::Node { own, server } => {
                peer.is_loopback() || [Some(own), server].into_iter().flatten().any(|one| peer == IpAddr::V4(one))
            }
            Self::All => true,
        }
    }
}

/// Answers one request. Sets `has_request` when its head is complete.
async fn serve_client(stream: TcpStream, server: Arc<Server>, access: Access, has_request: Arc<AtomicBool>) {
    let service = service_fn(move |request| {
        has_request.store(true, Ordering::Relaxed);
        let server = Arc::clone(&server);
        async move { Ok::<_, Infallible>(server.answer(&request, access).await.response()) }
    });
    let limit = match access {
        Access::All => PATIENCE,
        Access::Public => PUBLIC_PATIENCE,
    };
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD).max_buf_size(REQUEST).keep_alive(false);
    match timeout(limit, builder.serve_connection(TokioIo::new(stream), service)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => debug!(%error, "status connection failed"),
        Err(_) => debug!("status connection timed out"),
    }
}

struct Server {
    source: Arc<dyn Source>,
    looks: Arc<Semaphore>,
}

impl Server {
    async fn answer<B>(&self, request: &Request<B>, access: Access) -> Answer {
        let path = request.uri().path();
        let public = self.source.public().into_iter().find(|file| file.path == path);
        if public.is_none() && access == Access::Public {
            return Answer::text(
                StatusCode::NOT_FOUND,
                "not found; clients that are not on the node can read published certificates only\n",
            );
        }
        let is_page = matches!(path, "/healthz" | "/readyz" | "/metrics" | "/statusz" | "/statusz.json");
        if public.is_none() && !is_page {
            return Answer::text(
                StatusCode::NOT_FOUND,
                "not found; available paths: /statusz, /statusz.json, /metrics, /readyz, /healthz\n",
            );
        }
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return Answer::text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD are allowed\n");
        }
        if let Some(PublicFile { certificate, .. }) = public {
            return Answer { status: StatusCode::OK, kind: PEM, body: certificate };
        }
        let json = path == "/statusz.json" || request.uri().query().is_some_and(wants_json);
        match path {
            "/healthz" => Answer::text(StatusCode::OK, "ok\n"),
            "/readyz" => readiness(&self.source.services(), &self.source.remarks()),
            "/metrics" => self.look(METRICS, |source| source.metrics().map(Some)).await,
            _ if json => self.look(JSON, |source| Ok(source.page().map(|page| page.json()).transpose()?)).await,
            _ => self.look(HTML, |source| Ok(source.page().map(|page| page.html()))).await,
        }
    }

    /// Runs `look` in a blocking thread. A panic of the source is an error 500.
    async fn look(&self, kind: &'static str, look: fn(&dyn Source) -> Result<Option<String>, BoxError>) -> Answer {
        let Ok(permit) = Arc::clone(&self.looks).try_acquire_owned() else {
            return Answer::text(
                StatusCode::SERVICE_UNAVAILABLE,
                "too many requests in progress; the disk may be slow\n",
            );
        };
        let source = Arc::clone(&self.source);
        let looked = spawn_blocking(move || {
            // The thread holds the permit: the client may have disconnected while the disk is still busy.
            let _permit = permit;
            look(&*source)
        });
        match looked.await {
            Ok(Ok(Some(body))) => Answer { status: StatusCode::OK, kind, body },
            Ok(Ok(None)) => {
                Answer::text(StatusCode::NOT_FOUND, "not found; available paths: /metrics, /readyz, /healthz\n")
            }
            Ok(Err(error)) => {
                warn!(error = &*error, "cannot read the status of the node");
                Answer::text(StatusCode::INTERNAL_SERVER_ERROR, "cannot read the status; see the log\n")
            }
            Err(_) => Answer::text(StatusCode::INTERNAL_SERVER_ERROR, "reading the status panicked; see the log\n"),
        }
    }
}

fn wants_json(query: &str) -> bool {
    query.split('&').any(|field| field == "format=json")
}

/// One line per service that is not ready, else `ok`; then the remarks.
fn readiness(services: &[Service], remarks: &[String]) -> Answer {
    let mut body = String::new();
    for service in not_ready(services) {
        // Writing to a String cannot fail.
        let _ = write!(body, "{} {} {} s", service.path, service.state, service.since.as_secs());
        if let Some(time) = service.stalled {
            let _ = write!(body, ", no progress for {} s", time.as_secs());
        }
        if let Some(failure) = &service.last_failure {
            let _ = write!(body, ": {}", failure.replace('\n', " "));
        }
        body.push('\n');
    }
    let status = if body.is_empty() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    if body.is_empty() {
        body.push_str("ok\n");
    }
    for remark in remarks {
        let _ = writeln!(body, "{}", remark.replace('\n', " "));
    }
    Answer { status, kind: TEXT, body }
}

struct Answer {
    status: StatusCode,
    kind: &'static str,
    body: String,
}

impl Answer {
    fn text(status: StatusCode, body: &str) -> Self {
        Self { status, kind: TEXT, body: body.to_owned() }
    }

    fn response(self) -> Response<Full<Bytes>> {
        const FIELDS: [(HeaderName, &str); 4] = [
            (header::CACHE_CONTROL, "no-store"),
            (header::CONTENT_SECURITY_POLICY, POLICY),
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (header::REFERRER_POLICY, "no-referrer"),
        ];
        let mut response = Response::new(Full::from(self.body));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(self.kind));
        if self.status == StatusCode::METHOD_NOT_ALLOWED {
            headers.insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
        }
        headers.extend(FIELDS.map(|(name, value)| (name, HeaderValue::from_static(value))));
        response
    }
}

#[cfg(test)]
mod tests;
