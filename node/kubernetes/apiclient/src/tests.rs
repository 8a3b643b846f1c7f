//! Tests of the client with a server that does not respond.

use std::error::Error as _;
use std::io;
use std::pin::pin;

use futures::StreamExt as _;
use http::Uri;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolume};
use kube::Api;
use kube::api::{ListParams, WatchParams};
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::{KeepAlive, TcpKeepCount, TcpKeepIdle, TcpKeepInterval, TcpUserTimeout};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, timeout};
use tower::ServiceExt as _;

use super::*;

/// Short deadlines that still allow a response on a busy machine.
const SHORT: Deadlines = Deadlines {
    object: Duration::from_millis(300),
    list: Duration::from_millis(600),
    idle: Duration::from_millis(400),
    pooled: LONG,
};
/// Deadline that no test reaches.
const LONG: Duration = Duration::from_secs(60);

/// Reads one request and returns its first line.
async fn request(connection: &mut TcpStream) -> io::Result<String> {
    let mut text = Vec::new();
    while !text.ends_with(b"\r\n\r\n") {
        let byte = connection.read_u8().await?;
        text.push(byte);
    }
    Ok(String::from_utf8_lossy(&text).lines().next().unwrap_or_default().to_owned())
}

async fn answer(connection: &mut TcpStream, content: &str) {
    let head =
        format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n", content.len());
    connection.write_all(format!("{head}{content}").as_bytes()).await.expect("a response");
}

async fn server(deadlines: Deadlines) -> (TcpListener, Client) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
    let address = format!("http://{}", listener.local_addr().expect("its address"));
    let client = client_with(Config::new(address.parse().expect("a URI")), deadlines).expect("a client");
    (listener, client)
}

fn deadline(error: &kube::Error) -> Option<&DeadlineError> {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = error.source();
    while let Some(found) = cause {
        if let Some(late) = found.downcast_ref::<DeadlineError>() {
            return Some(late);
        }
        cause = found.source();
    }
    None
}

#[tokio::test]
async fn after_a_missing_answer_the_next_request_connects_again() {
    let (listener, client) = server(SHORT).await;
    let maps = Api::<ConfigMap>::namespaced(client, "default");
    let answering = tokio::spawn(async move {
        let (mut silent, _) = listener.accept().await.expect("a connection");
        request(&mut silent).await.expect("a request");
        // An incomplete response does not meet the deadline.
        silent.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{").await.expect("a write");
        let (mut second, _) = listener.accept().await.expect("another connection");
        request(&mut second).await.expect("a request");
        answer(&mut second, r#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"one"}}"#).await;
        silent
    });
    let error = maps.get("one").await.expect_err("no answer");
    let late = deadline(&error).unwrap_or_else(|| panic!("{error:?}"));
    assert_eq!((late.method.as_str(), late.limit), ("GET", SHORT.object));
    assert_eq!(late.path, "/api/v1/namespaces/default/configmaps/one");
    assert_eq!(maps.get("one").await.expect("an answer").metadata.name.as_deref(), Some("one"));
    answering.await.expect("the server");
}

/// Regression: a list without a response took two minutes, and the objects were served only after the next one. The
/// paused clock advances when both sides wait for it.
#[tokio::test(start_paused = true)]
async fn a_list_has_the_deadline_of_lists_within_a_minute() {
    let (listener, client) = server(Deadlines::default()).await;
    let accepting = tokio::spawn(async move { listener.accept().await });
    let start = Instant::now();
    let error = Api::<PersistentVolume>::all(client).list(&ListParams::default()).await.expect_err("no answer");
    let Deadlines { object, list, .. } = Deadlines::default();
    assert_eq!(deadline(&error).map(|late| late.limit), Some(list), "{error:?}");
    assert!(list > object && start.elapsed() <= Duration::from_secs(55), "{:?}", start.elapsed());
    accepting.await.expect("the server").expect("a connection");
}

/// Serves a watch: sends the first event, and nothing after it.
async fn silent_watch(listener: &TcpListener) -> TcpStream {
    let (mut connection, _) = listener.accept().await.expect("a connection");
    let line = request(&mut connection).await.expect("a request");
    assert!(line.contains("watch=true"), "{line}");
    let event = r#"{"type":"ADDED","object":{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"one"}}}"#;
    let chunk = format!("{:x}\r\n{event}\n\r\n", event.len() + 1);
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
    connection.write_all(format!("{head}{chunk}").as_bytes()).await.expect("an event");
    connection
}

#[tokio::test]
async fn a_watch_without_data_ends_after_its_limit() {
    let (listener, client) = server(SHORT).await;
    let watching = tokio::spawn(async move { silent_watch(&listener).await });
    let maps = Api::<ConfigMap>::namespaced(client, "default");
    let mut events = pin!(maps.watch(&WatchParams::default(), "0").await.expect("a watch"));
    assert!(matches!(events.next().await, Some(Ok(_))));
    let end = events.next().await;
    assert!(end.is_none(), "{end:?}");
    watching.await.expect("the server");
}

#[tokio::test]
async fn a_missed_deadline_ends_the_watches_of_the_client() {
    let (listener, client) = server(Deadlines { idle: LONG, ..SHORT }).await;
    let serving = tokio::spawn(async move {
        let watching = silent_watch(&listener).await;
        let (mut silent, _) = listener.accept().await.expect("a connection");
        request(&mut silent).await.expect("a request");
        (watching, silent)
    });
    let maps = Api::<ConfigMap>::namespaced(client, "default");
    let mut events = pin!(maps.watch(&WatchParams::default(), "0").await.expect("a watch"));
    assert!(matches!(events.next().await, Some(Ok(_))));
    let error = maps.get("one").await.expect_err("no answer");
    assert!(deadline(&error).is_some(), "{error:?}");
    assert!(events.next().await.is_none(), "the watch goes on");
    serving.await.expect("the server");
}

#[tokio::test]
async fn a_connection_is_not_kept_until_the_server_closes_it() {
    let (listener, client) = server(Deadlines { object: LONG, pooled: Duration::from_millis(50), ..SHORT }).await;
    let maps = Api::<ConfigMap>::namespaced(client, "default");
    let answering = tokio::spawn(async move {
        let (mut connection, _) = listener.accept().await.expect("a connection");
        request(&mut connection).await.expect("a request");
        answer(&mut connection, r#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"one"}}"#).await;
        timeout(LONG, connection.read_u8()).await.expect("the client keeps the connection")
    });
    maps.get("one").await.expect("an answer");
    let end = answering.await.expect("the server");
    assert_eq!(end.map_err(|error| error.kind()), Err(io::ErrorKind::UnexpectedEof));
    // IdleTimeout of k8s.io/apiserver/pkg/server/secure_serving.go.
    assert!(Deadlines::default().pooled < Duration::from_secs(90));
}

#[tokio::test]
async fn a_dead_connection_ends_after_a_minute() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
    let uri: Uri = format!("http://{}", listener.local_addr().expect("its address")).parse().expect("a URI");
    let connection = connector(None).oneshot(uri).await.expect("a connection").into_inner();
    assert_eq!(getsockopt(&connection, KeepAlive), Ok(true));
    let idle = getsockopt(&connection, TcpKeepIdle).expect("an option of TCP");
    let interval = getsockopt(&connection, TcpKeepInterval).expect("an option of TCP");
    let probes = getsockopt(&connection, TcpKeepCount).expect("an option of TCP");
    assert_eq!((idle, interval, probes), (30, 10, 3));
    // In milliseconds. This limit also ends a connection with unacknowledged data.
    assert_eq!(getsockopt(&connection, TcpUserTimeout), Ok(60_000));
}

/// The paused clock advances when both sides wait for it.
#[tokio::test(start_paused = true)]
async fn an_overloaded_server_is_asked_again_and_its_last_answer_is_the_error() {
    let (listener, client) = server(Deadlines::default()).await;
    let refusing = tokio::spawn(async move {
        let (mut connection, _) = listener.accept().await.expect("a connection");
        let mut requests = 0;
        while request(&mut connection).await.is_ok() {
            requests += 1;
            let head = "HTTP/1.1 429 Too Many Requests\r\nretry-after: 1\r\ncontent-length: 0\r\n\r\n";
            connection.write_all(head.as_bytes()).await.expect("a response");
        }
        requests
    });
    let error = Api::<ConfigMap>::namespaced(client.clone(), "default").get("one").await.expect_err("no content");
    assert!(matches!(&error, kube::Error::Api(status) if status.code == 429), "{error:?}");
    drop(client);
    assert_eq!(refusing.await.expect("the server"), 6);
}

#[test]
fn an_object_can_be_missing_without_a_reason() {
    let answer = |code| kube::Error::Api(Box::new(kube::core::Status { code, ..kube::core::Status::default() }));
    assert!(is_missing(&answer(404)));
    assert!(!is_missing(&answer(403)) && !is_missing(&kube::Error::LinesCodecMaxLineLengthExceeded));
}
