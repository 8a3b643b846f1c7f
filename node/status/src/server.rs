//! The HTTP server. Connections, request sizes, times, and threads that wait for the disk are limited.

use std::convert::Infallible;
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
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
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{sleep, timeout};
use tracing::{debug, warn};

use crate::model::{Page, Service, not_ready};

/// Maximum number of connections. One or two clients send two requests per minute.
const CONNECTIONS: usize = 8;

/// Maximum size of a request's head in bytes; the API server's proxy adds headers to those of its client.
const REQUEST: usize = 16 << 10;

/// Time limit of a request and of its answer. Pages and metrics read the disk.
const HEAD: Duration = Duration::from_secs(10);
const PATIENCE: Duration = Duration::from_secs(60);

/// Maximum number of threads that wait for the disk, which may hang, regardless of the number of requests.
const LOOKS: usize = 2;

/// Delay after a failed accept, whose cause is most likely a lack of descriptors.
const PAUSE: Duration = Duration::from_secs(1);

const HTML: &str = "text/html; charset=utf-8";
const JSON: &str = "application/json";
const TEXT: &str = "text/plain; charset=utf-8";
const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The page loads, runs and sends nothing and must not be framed; its style is inline.
const POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

pub trait Source: Send + Sync + 'static {
    /// The services, without blocking.
    fn services(&self) -> Vec<Service>;

    /// The last line of the answer of readiness, such as a restricted mode of operation.
    fn remark(&self) -> Option<String> {
        None
    }

    /// The page. May block on the disk. `None` for a source that provides only metrics; `/statusz` does not exist then.
    fn page(&self) -> Option<Page>;

    /// The metrics in Prometheus' text format. May block on the disk.
    fn metrics(&self) -> Result<String, BoxError>;
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

/// Answers the audience. Never returns; dropping the future closes the connections.
pub async fn serve(listener: &TcpListener, audience: Audience, source: Arc<dyn Source>) {
    let server = Arc::new(Server { source, looks: Arc::new(Semaphore::new(LOOKS)) });
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            Some(_) = connections.join_next() => {}
            accepted = listener.accept(), if connections.len() < CONNECTIONS => match accepted {
                Ok((stream, peer)) if audience.has(peer.ip()) => {
                    connections.spawn(converse(stream, Arc::clone(&server)));
                }
                Ok((_, peer)) => debug!(%peer, "status request rejected, the client is not on the node"),
                Err(error) => {
                    warn!(%error, "cannot accept a status connection");
                    sleep(PAUSE).await;
                }
            },
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

async fn converse(stream: TcpStream, server: Arc<Server>) {
    let service = service_fn(move |request| {
        let server = Arc::clone(&server);
        async move { Ok::<_, Infallible>(server.answer(&request).await.response()) }
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD).max_buf_size(REQUEST).keep_alive(false);
    match timeout(PATIENCE, builder.serve_connection(TokioIo::new(stream), service)).await {
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
    async fn answer<B>(&self, request: &Request<B>) -> Answer {
        let path = request.uri().path();
        if !matches!(path, "/healthz" | "/readyz" | "/metrics" | "/statusz" | "/statusz.json") {
            return Answer::text(
                StatusCode::NOT_FOUND,
                "not found; available paths: /statusz, /statusz.json, /metrics, /readyz, /healthz\n",
            );
        }
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return Answer::text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD are allowed\n");
        }
        let json = path == "/statusz.json" || request.uri().query().is_some_and(wants_json);
        match path {
            "/healthz" => Answer::text(StatusCode::OK, "ok\n"),
            "/readyz" => readiness(&self.source.services(), self.source.remark().as_deref()),
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
            // The thread holds the permit: the client may be gone while the disk is still busy.
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

/// Whether a query contains `format=json`.
fn wants_json(query: &str) -> bool {
    query.split('&').any(|field| field == "format=json")
}

/// One line per service that is not ready, else `ok`; then the remark.
fn readiness(services: &[Service], remark: Option<&str>) -> Answer {
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
    if let Some(remark) = remark {
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
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc;

    use supervisor::State;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::model::{Clock, Versions};

    #[test]
    fn a_remark_is_the_last_line_and_changes_no_status() {
        let remark = Some("limits are\nadvisory");
        let answer = readiness(&[], remark);
        assert_eq!((answer.status, &*answer.body), (StatusCode::OK, "ok\nlimits are advisory\n"));
        assert_eq!(readiness(&[], None).body, "ok\n");
        let answer = readiness(&node(State::Starting).services(), remark);
        assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(answer.body, "granary.etcd starting 5 s\nlimits are advisory\n");
    }

    #[test]
    fn a_stalled_service_is_not_ready() {
        let mut services = node(State::Healthy).services();
        services[0].stalled = Some(Duration::from_secs(400));
        let answer = readiness(&services, None);
        assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(answer.body, "granary.etcd healthy 5 s, no progress for 400 s\n");
    }

    /// A node whose disk blocks until it is released.
    struct FakeNode {
        state: State,
        disk: Option<Mutex<mpsc::Receiver<()>>>,
    }

    impl Source for FakeNode {
        fn services(&self) -> Vec<Service> {
            let last_failure = (self.state == State::Failed).then(|| "no\ndisk".to_owned());
            vec![Service {
                path: "granary.etcd".into(),
                name: "etcd".into(),
                depth: 1,
                state: self.state,
                since: Duration::from_secs(5),
                restarts: 0,
                last_failure,
                stalled: None,
            }]
        }

        fn page(&self) -> Option<Page> {
            let only_numbers = self.state == State::Stopped;
            (!only_numbers).then(|| Page {
                node: "granary".into(),
                now: Duration::ZERO,
                uptime: Duration::ZERO,
                versions: Versions::default(),
                disk_faults: Vec::new(),
                services: self.services(),
                storage: None,
                mesh: None,
                clock: Clock::Alone,
                certificates: Vec::new(),
                warnings: Vec::new(),
            })
        }

        fn metrics(&self) -> Result<String, BoxError> {
            if let Some(disk) = &self.disk {
                disk.lock().unwrap().recv()?;
            }
            assert_ne!(self.state, State::Stopping, "a source that panics");
            Ok("granary_tests_total 1\n".into())
        }
    }

    fn node(state: State) -> FakeNode {
        FakeNode { state, disk: None }
    }

    async fn ask(address: std::net::SocketAddr, request: &[u8]) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        // The connection of a rejected client may be closed.
        let _ = stream.write_all(request).await;
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        String::from_utf8(answer).unwrap()
    }

    async fn served<T>(node: FakeNode, client: impl AsyncFnOnce(std::net::SocketAddr) -> T) -> T {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::select! {
            () = serve(&listener, Audience::Node { own: Ipv4Addr::new(192, 0, 2, 1), server: None }, Arc::new(node)) => unreachable!("it never returns"),
            found = client(address) => found,
        }
    }

    async fn answered(state: State, request: &str) -> String {
        served(node(state), async |address| ask(address, request.as_bytes()).await).await
    }

    fn get(target: &str) -> String {
        format!("GET {target} HTTP/1.1\r\nHost: node\r\n\r\n")
    }

    #[tokio::test]
    async fn each_path_has_its_content_type() {
        for (target, kind, part) in [
            ("/healthz", TEXT, "ok"),
            ("/readyz", TEXT, "ok"),
            ("/metrics", METRICS, "granary_tests_total 1"),
            ("/statusz", HTML, "<h1>granary</h1>"),
            ("/statusz?x=1", HTML, "<h1>granary</h1>"),
            ("/statusz?x=1&format=json", JSON, "\"node\": \"granary\""),
            ("/statusz.json", JSON, "\"node\": \"granary\""),
        ] {
            let answer = answered(State::Healthy, &get(target)).await;
            assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{target}: {answer}");
            assert!(answer.contains(&format!("content-type: {kind}\r\n")), "{target}: {answer}");
            assert!(answer.contains(part), "{target}: {answer}");
            for field in ["cache-control: no-store", "x-content-type-options: nosniff", "default-src 'none'"] {
                assert!(answer.contains(field), "{target}: {answer}");
            }
        }
    }

    #[tokio::test]
    async fn services_that_are_not_ready_are_listed_with_the_reason() {
        let answer = answered(State::Failed, &get("/readyz")).await;
        assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
        assert!(answer.ends_with("\r\n\r\ngranary.etcd failed 5 s: no disk\n"), "{answer}");
        assert!(answered(State::Starting, &get("/readyz")).await.ends_with("\r\n\r\ngranary.etcd starting 5 s\n"));
        assert!(answered(State::Done, &get("/readyz")).await.starts_with("HTTP/1.1 200 OK\r\n"));
        assert!(answered(State::Failed, &get("/healthz")).await.starts_with("HTTP/1.1 200 OK\r\n"));
    }

    #[tokio::test]
    async fn other_paths_and_methods_are_rejected() {
        for (request, status) in [
            (get("/"), "404"),
            (get("/metrics/../etc"), "404"),
            ("DELETE /metrics HTTP/1.1\r\nHost: node\r\n\r\n".into(), "405"),
            ("POST /statusz HTTP/1.1\r\nHost: node\r\nContent-Length: 2\r\n\r\nhi".into(), "405"),
            ("rubbish\r\n\r\n".into(), "400"),
            (get(&format!("/statusz?{}", "x".repeat(2 * REQUEST))), "431"),
        ] {
            let answer = answered(State::Healthy, &request).await;
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{request:?}: {answer}");
        }
    }

    #[tokio::test]
    async fn a_head_has_no_body() {
        let answer = answered(State::Healthy, "HEAD /statusz HTTP/1.1\r\nHost: node\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\n"), "{answer}");
    }

    #[tokio::test]
    async fn a_panic_of_the_source_is_an_error() {
        let answer = answered(State::Stopping, &get("/metrics")).await;
        assert!(answer.starts_with("HTTP/1.1 500 "), "{answer}");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_hanging_disk_blocks_few_threads_and_not_readiness() {
        let (disk, waits) = mpsc::channel();
        let slow = FakeNode { state: State::Healthy, disk: Some(Mutex::new(waits)) };
        served(slow, async |address| {
            let mut clients = JoinSet::new();
            for _ in 0..=LOOKS {
                clients.spawn(async move { ask(address, get("/metrics").as_bytes()).await });
            }
            // All but the last block on the disk, and none of them ends before it.
            let first = clients.join_next().await.unwrap().unwrap();
            assert!(first.starts_with("HTTP/1.1 503 "), "{first}");
            assert!(ask(address, get("/readyz").as_bytes()).await.starts_with("HTTP/1.1 200 OK\r\n"));
            for _ in 0..LOOKS {
                disk.send(()).unwrap();
            }
            while let Some(answer) = clients.join_next().await {
                let answer = answer.unwrap();
                assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
            }
        })
        .await;
    }

    #[test]
    fn pods_and_other_machines_are_rejected() {
        let own = Ipv4Addr::new(10, 0, 2, 15);
        let node = Audience::Node { own, server: None };
        assert!(node.has(IpAddr::V4(own)));
        assert!(node.has(IpAddr::V4(Ipv4Addr::LOCALHOST)));
        for other in [[10, 244, 0, 7], [10, 0, 2, 2], [10, 0, 2, 16]] {
            assert!(!node.has(IpAddr::from(other)), "{other:?}");
            assert!(Audience::All.has(IpAddr::from(other)), "{other:?}");
        }
        let worker = Audience::Node { own: Ipv4Addr::new(10, 0, 2, 16), server: Some(own) };
        assert!(worker.has(IpAddr::V4(own)));
        assert!(!worker.has(IpAddr::from([10, 0, 2, 17])));
    }

    #[tokio::test]
    async fn a_source_of_metrics_has_no_page() {
        for target in ["/statusz", "/statusz.json"] {
            let answer = answered(State::Stopped, &get(target)).await;
            assert!(
                answer.starts_with("HTTP/1.1 404 ") && answer.ends_with("/metrics, /readyz, /healthz\n"),
                "{answer}"
            );
        }
    }
}
