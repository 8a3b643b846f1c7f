use std::future;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;

use supervisor::State;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;

use super::*;
use crate::model::{Clock, Versions};

#[test]
fn remarks_are_the_last_lines_and_change_no_status() {
    let remarks = ["limits are\nadvisory", "snapshots are unavailable"].map(str::to_owned);
    let answer = readiness(&[], &remarks);
    let lines = "ok\nlimits are advisory\nsnapshots are unavailable\n";
    assert_eq!((answer.status, &*answer.body), (StatusCode::OK, lines));
    assert_eq!(readiness(&[], &[]).body, "ok\n");
    let answer = readiness(&node(State::Starting).services(), &remarks[..1]);
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(answer.body, "granary.etcd starting 5 s\nlimits are advisory\n");
}

#[test]
fn a_stalled_service_is_not_ready() {
    let mut services = node(State::Healthy).services();
    services[0].stalled = Some(Duration::from_secs(400));
    let answer = readiness(&services, &[]);
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(answer.body, "granary.etcd healthy 5 s, no progress for 400 s\n");
}

/// A node whose disk blocks until it is released.
struct FakeNode {
    state: State,
    disk: Option<Mutex<mpsc::Receiver<()>>>,
    public: Vec<PublicFile>,
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

    fn public(&self) -> Vec<PublicFile> {
        self.public.clone()
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
    FakeNode { state, disk: None, public: Vec::new() }
}

fn publishing() -> FakeNode {
    let file = |path: &str| PublicFile { path: path.to_owned(), certificate: format!("certificate {path}") };
    FakeNode { public: vec![file("/administrators/alice.crt"), file("/ca.crt")], ..node(State::Healthy) }
}

async fn ask(address: std::net::SocketAddr, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    // The server may have closed the connection of a rejected client.
    let _ = stream.write_all(request).await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8(answer).unwrap()
}

async fn served<T>(node: FakeNode, client: impl AsyncFnOnce(std::net::SocketAddr) -> T) -> T {
    let audience = Audience::Node { own: Ipv4Addr::new(192, 0, 2, 1), server: None };
    served_by(|peer| if audience.has(peer) { Access::All } else { Access::Public }, node, client).await
}

async fn served_by<T>(
    access: impl Fn(IpAddr) -> Access,
    node: FakeNode,
    client: impl AsyncFnOnce(std::net::SocketAddr) -> T,
) -> T {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::select! {
        () = serve_by(&listener, access, Arc::new(node)) => unreachable!("it never returns"),
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
    let slow = FakeNode { disk: Some(Mutex::new(waits)), ..node(State::Healthy) };
    served(slow, async |address| {
        let mut clients = JoinSet::new();
        for _ in 0..=LOOKS {
            clients.spawn(async move { ask(address, get("/metrics").as_bytes()).await });
        }
        // All clients but the last block on the disk, so the last one ends first.
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
async fn other_machines_read_published_certificates_and_nothing_else() {
    served_by(
        |_| Access::Public,
        publishing(),
        async |address| {
            for path in ["/ca.crt", "/administrators/alice.crt"] {
                let answer = ask(address, get(path).as_bytes()).await;
                assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{path}: {answer}");
                assert!(answer.contains(&format!("content-type: {PEM}\r\n")), "{path}: {answer}");
                assert!(answer.ends_with(&format!("\r\n\r\ncertificate {path}")), "{path}: {answer}");
            }
            for path in [
                "/",
                "/statusz",
                "/statusz.json",
                "/statusz?format=json",
                "/metrics",
                "/readyz",
                "/healthz",
                "/ca.crt/../metrics",
                "/administrators/",
                "/administrators/bob.crt",
            ] {
                let answer = ask(address, get(path).as_bytes()).await;
                assert!(
                    answer.starts_with("HTTP/1.1 404 ") && answer.ends_with("certificates only\n"),
                    "{path}: {answer}"
                );
            }
            let answer = ask(address, b"DELETE /ca.crt HTTP/1.1\r\nHost: node\r\n\r\n").await;
            assert!(answer.starts_with("HTTP/1.1 405 "), "{answer}");
        },
    )
    .await;
    let own = served(publishing(), async |address| ask(address, get("/ca.crt").as_bytes()).await).await;
    assert!(own.ends_with("certificate /ca.crt"), "{own}");
}

#[tokio::test]
async fn connections_without_published_certificates_are_closed() {
    let closed = served_by(
        |_| Access::Public,
        node(State::Healthy),
        async |address| ask(address, get("/ca.crt").as_bytes()).await,
    );
    assert_eq!(closed.await, "");
    let own = answered(State::Healthy, &get("/ca.crt")).await;
    assert!(own.starts_with("HTTP/1.1 404 "), "{own}");
}

/// Without a limit, other machines could block the API server's and monitoring systems' access to the status.
#[tokio::test]
async fn connections_of_other_machines_are_bounded() {
    let is_outside = AtomicBool::new(true);
    let access = |_| if is_outside.load(Ordering::SeqCst) { Access::Public } else { Access::All };
    served_by(access, publishing(), async |address| {
        let mut idle = Vec::new();
        for _ in 0..PUBLIC_CONNECTIONS {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(b"GET /ca").await.unwrap();
            idle.push(stream);
        }
        assert_eq!(ask(address, get("/ca.crt").as_bytes()).await, "", "one more is closed");
        is_outside.store(false, Ordering::SeqCst);
        assert!(ask(address, get("/healthz").as_bytes()).await.starts_with("HTTP/1.1 200 OK\r\n"));
        is_outside.store(true, Ordering::SeqCst);
        let mut first = idle.remove(0);
        first.write_all(b".crt HTTP/1.1\r\nHost: node\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        first.read_to_string(&mut answer).await.unwrap();
        assert!(answer.ends_with("certificate /ca.crt"), "{answer}");
    })
    .await;
}

/// Regression: any pod could prevent the readiness of the DaemonSet's pods.
#[tokio::test]
async fn clients_that_send_nothing_keep_no_other_from_readiness() {
    let clients: [fn(u8) -> Ipv4Addr; 2] = [|_| Ipv4Addr::new(127, 0, 0, 2), |number| Ipv4Addr::new(127, 0, 1, number)];
    for client in clients {
        served(node(State::Healthy), async |address| {
            let mut held = Vec::new();
            for number in 1..=16 {
                let socket = TcpSocket::new_v4().unwrap();
                socket.bind((client(number), 0).into()).unwrap();
                let mut stream = socket.connect(address).await.unwrap();
                stream.write_all(b"GET /he").await.unwrap();
                held.push(stream);
            }
            // Deadline of a probe.
            let probe = timeout(Duration::from_secs(5), ask(address, get("/readyz").as_bytes())).await.unwrap();
            assert!(probe.starts_with("HTTP/1.1 200 OK\r\n"), "{probe}");
            let mut last = held.pop().unwrap();
            last.write_all(b"althz HTTP/1.1\r\nHost: node\r\n\r\n").await.unwrap();
            let mut answer = String::new();
            last.read_to_string(&mut answer).await.unwrap();
            assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        })
        .await;
    }
}

/// Connections of clients with these numbers, and whether each has a request.
fn connections(tasks: &mut JoinSet<()>, clients: &[(u8, bool)]) -> Connections {
    let connection = |&(number, has_request): &(u8, bool)| Connection {
        peer: client(number),
        task: tasks.spawn(future::pending()),
        has_request: Arc::new(has_request.into()),
    };
    Connections(clients.iter().map(connection).collect())
}

fn client(number: u8) -> IpAddr {
    IpAddr::from([192, 0, 2, number])
}

#[tokio::test]
async fn the_oldest_connection_of_the_client_with_the_most_ends() {
    let mut tasks = JoinSet::new();
    let mut made = connections(&mut tasks, &[1, 1, 1, 2, 2, 2, 2, 2].map(|number| (number, false)));
    let peers = |made: &Connections| made.0.iter().map(|connection| connection.peer).collect::<Vec<_>>();
    // The second call finds a free place.
    for _ in 0..2 {
        made.make_space_for(client(1));
        assert_eq!(peers(&made), [1, 1, 1, 2, 2, 2, 2].map(client));
    }
    made.0.extend(connections(&mut tasks, &[(1, false)]).0);
    made.make_space_for(client(1));
    assert_eq!(peers(&made), [1, 1, 2, 2, 2, 2, 1].map(client));
    assert!(tasks.join_next().await.unwrap().unwrap_err().is_cancelled());
}

/// Regression: the ninth request through the API server's proxy ended the first one, which was being answered.
#[tokio::test]
async fn a_connection_without_a_request_ends_first() {
    let mut tasks = JoinSet::new();
    for (clients, next, ended) in [
        ([(1, true), (1, true), (1, false), (1, true), (1, false), (1, true), (1, true), (1, true)], 1, 2),
        ([(1, true); CONNECTIONS], 1, 0),
        // A probe that has just begun is the only one without a request.
        ([(1, true), (2, true), (3, true), (4, true), (5, true), (6, true), (7, true), (8, false)], 9, 0),
        // The connection of another client does not end.
        ([(2, false), (1, true), (1, true), (1, true), (1, true), (1, true), (1, true), (1, true)], 2, 1),
    ] {
        let mut made = connections(&mut tasks, &clients);
        let flags = |made: &Connections| made.0.iter().map(|one| Arc::as_ptr(&one.has_request)).collect::<Vec<_>>();
        let mut wanted = flags(&made);
        made.make_space_for(client(next));
        wanted.remove(ended);
        assert_eq!(flags(&made), wanted, "{clients:?}");
    }
}

#[tokio::test]
async fn a_request_is_answered_when_others_of_its_client_only_connect() {
    let (disk, waits) = mpsc::channel();
    let slow = FakeNode { disk: Some(Mutex::new(waits)), ..node(State::Healthy) };
    served(slow, async |address| {
        let mut first = TcpStream::connect(address).await.unwrap();
        first.write_all(get("/metrics").as_bytes()).await.unwrap();
        // The response to another request shows that the server has read the first request.
        assert!(ask(address, get("/readyz").as_bytes()).await.starts_with("HTTP/1.1 200 OK\r\n"));
        let mut idle = Vec::new();
        for _ in 0..2 * CONNECTIONS {
            idle.push(TcpStream::connect(address).await.unwrap());
        }
        assert!(ask(address, get("/readyz").as_bytes()).await.starts_with("HTTP/1.1 200 OK\r\n"));
        disk.send(()).unwrap();
        let mut answer = String::new();
        first.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    })
    .await;
}

#[tokio::test]
async fn a_source_of_metrics_has_no_page() {
    for target in ["/statusz", "/statusz.json"] {
        let answer = answered(State::Stopped, &get(target)).await;
        assert!(answer.starts_with("HTTP/1.1 404 ") && answer.ends_with("/metrics, /readyz, /healthz\n"), "{answer}");
    }
}
