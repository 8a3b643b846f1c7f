//! An API server that does not respond, closes connections, is slow, or returns errors.

use std::convert::Infallible;
use std::future;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt as _, stream};
use http::{Method, Request, Response, StatusCode, header};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, BodyStream, Full, StreamBody};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use kube::client::Body;
use kube::{Client, Config};
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::sleep;

type BoxError = Box<dyn std::error::Error + Send + Sync>;
type ResponseBody = UnsyncBoxBody<Bytes, BoxError>;

/// Fault of requests and of incomplete responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    None,
    /// The API server executes requests, but no response arrives. Open watches become silent.
    Swallow,
    /// Connections end in the middle of a response.
    Cut,
    /// Each request waits this long.
    Delay(Duration),
    /// The API server returns this status and does not execute the request.
    Status(StatusCode),
}

/// A proxy on the loopback interface that forwards requests to the API server with the permissions of the proxy's
/// client.
pub struct FaultyServer {
    address: SocketAddr,
    shared: Shared,
    serving: JoinHandle<()>,
}

#[derive(Clone)]
struct Shared {
    client: Client,
    fault: Arc<watch::Sender<(Fault, Scope)>>,
    affected: Arc<Mutex<Vec<String>>>,
}

/// Requests that a fault affects, with their responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    All,
    Changes,
}

impl FaultyServer {
    /// Starts a proxy without a fault. The proxy ends when the value is dropped.
    pub async fn start(client: Client) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let fault = Arc::new(watch::Sender::new((Fault::None, Scope::All)));
        let shared = Shared { client, fault, affected: Arc::default() };
        let serving = tokio::spawn(serve(listener, shared.clone()));
        Ok(Self { address, shared, serving })
    }

    pub fn config(&self) -> Config {
        let address = format!("http://{}", self.address);
        Config::new(address.parse().expect("an IP address and a port are a URI"))
    }

    pub fn set(&self, fault: Fault) {
        self.shared.fault.send_replace((fault, Scope::All));
    }

    /// Sets a fault of changes only: reads and watches work.
    pub fn set_for_changes(&self, fault: Fault) {
        self.shared.fault.send_replace((fault, Scope::Changes));
    }

    /// Methods and paths of the requests that a fault has affected. A response can count several times.
    pub fn affected(&self) -> Vec<String> {
        self.shared.affected.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for FaultyServer {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn serve(listener: TcpListener, shared: Shared) {
    let mut connections = JoinSet::new();
    while let Ok((connection, _)) = listener.accept().await {
        connections.spawn(answer(connection, shared.clone()));
        while connections.try_join_next().is_some() {}
    }
}

async fn answer(connection: TcpStream, shared: Shared) {
    let service = service_fn(|request| forward(request, shared.clone()));
    // A fault that closes the connection causes an error here.
    _ = http1::Builder::new().serve_connection(TokioIo::new(connection), service).await;
}

async fn forward(request: Request<Incoming>, shared: Shared) -> Result<Response<ResponseBody>, BoxError> {
    let name = format!("{} {}", request.method(), request.uri().path());
    let is_read = request.method() == Method::GET;
    let fault = shared.fault_of(is_read);
    match fault {
        Fault::Delay(delay) => {
            shared.count(&name);
            sleep(delay).await;
        }
        Fault::Status(status) => {
            shared.count(&name);
            return Ok(failure(status));
        }
        Fault::None | Fault::Swallow | Fault::Cut => {}
    }
    let (mut head, body) = request.into_parts();
    head.headers.remove(header::HOST);
    let request = Request::from_parts(head, Body::from(body.collect().await?.to_bytes()));
    let (mut head, body) = shared.client.send(request).await?.into_parts();
    // The body of an interrupted response is shorter than its headers specify.
    head.headers.remove(header::CONTENT_LENGTH);
    head.headers.remove(header::TRANSFER_ENCODING);
    if fault == Fault::Swallow {
        shared.count(&name);
        match future::pending::<Infallible>().await {}
    }
    let frames = BodyStream::new(body).then(move |frame| {
        let fault = shared.fault_of(is_read);
        if matches!(fault, Fault::Swallow | Fault::Cut) {
            shared.count(&name);
        }
        pass(fault, frame.map_err(BoxError::from))
    });
    Ok(Response::from_parts(head, StreamBody::new(frames.flat_map(stream::iter)).boxed_unsync()))
}

/// Forwards a part of a response, unless a fault affects it.
async fn pass(fault: Fault, part: Result<Frame<Bytes>, BoxError>) -> Vec<Result<Frame<Bytes>, BoxError>> {
    match (fault, part) {
        (Fault::Swallow, _) => match future::pending::<Infallible>().await {},
        (Fault::Cut, Ok(part)) => {
            let data = part.into_data().unwrap_or_default();
            let half = data.slice(..data.len() / 2);
            vec![Ok(Frame::data(half)), Err(io::Error::from(io::ErrorKind::ConnectionReset).into())]
        }
        (_, part) => vec![part],
    }
}

fn failure(status: StatusCode) -> Response<ResponseBody> {
    let content = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": status.as_u16(),
        "reason": status.canonical_reason(), "message": "a fault of the test",
    });
    let body = Full::from(content.to_string()).map_err(|never| match never {}).boxed_unsync();
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let json = header::HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}

impl Shared {
    fn fault_of(&self, is_read: bool) -> Fault {
        let (fault, scope) = *self.fault.borrow();
        if is_read && scope == Scope::Changes { Fault::None } else { fault }
    }

    fn count(&self, request: &str) {
        self.affected.lock().unwrap_or_else(PoisonError::into_inner).push(request.to_owned());
    }
}
