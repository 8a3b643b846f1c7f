//! An API server with one object.

use rtnetlink::LinkUnspec;
use rustls::crypto::ring;
use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::{Value, json};
use std::error::Error;
use std::io::{self, BufRead as _, BufReader, Read, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 15);
const PORT: u16 = 6443;
/// Index of the only network device. The loopback device has index 1.
const DEVICE: u32 = 2;
/// Time of the heartbeat, in the future. The launcher waits for a heartbeat after its own start, and the guest's clock
/// is up to a second behind the launcher's.
const HEARTBEAT: &str = "2999-01-01T00:00:00Z";

pub(crate) fn start() -> Result<String, Box<dyn Error>> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(address())?;
    let config = Arc::new(tls()?);
    let listener = TcpListener::bind((ADDRESS, PORT))?;
    thread::Builder::new().name("api".into()).spawn(move || {
        for stream in listener.incoming() {
            let answered = stream.and_then(|stream| answer(stream, Arc::clone(&config)));
            if let Err(error) = answered {
                println!("stub: a request failed: {error}");
            }
        }
    })?;
    let cluster = json!({"server": format!("https://{ADDRESS}:{PORT}"), "insecure-skip-tls-verify": true});
    let kubeconfig = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "stub", "cluster": cluster}],
        "users": [{"name": "stub", "user": {}}],
        "contexts": [{"name": "stub", "context": {"cluster": "stub", "user": "stub"}}],
        "current-context": "stub",
    });
    Ok(kubeconfig.to_string())
}

async fn address() -> Result<(), Box<dyn Error>> {
    let (connection, netlink, _) = rtnetlink::new_connection()?;
    tokio::spawn(connection);
    netlink.link().set(LinkUnspec::new_with_index(DEVICE).up().build()).execute().await?;
    netlink.address().add(DEVICE, ADDRESS.into(), 24).execute().await?;
    Ok(())
}

fn tls() -> Result<ServerConfig, Box<dyn Error>> {
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()])?;
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der())?;
    let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions()?.with_no_client_auth();
    Ok(builder.with_single_cert(vec![made.cert.into()], key)?)
}

fn answer(stream: TcpStream, config: Arc<ServerConfig>) -> io::Result<()> {
    let connection = ServerConnection::new(config).map_err(io::Error::other)?;
    let mut stream = StreamOwned::new(connection, stream);
    let (status, body) = match is_get(&mut stream)? {
        true => ("200 OK", nodes()),
        false => ("403 Forbidden", forbidden()),
    };
    let body = body.to_string();
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )?;
    stream.conn.send_close_notify();
    stream.flush()
}

/// Reads a request to its end. Closing a connection with unread data would reset it.
fn is_get(stream: &mut impl Read) -> io::Result<bool> {
    let mut reader = BufReader::new(stream);
    let mut first = String::new();
    reader.read_line(&mut first)?;
    let (mut length, mut header) = (0, String::new());
    while reader.read_line(&mut header)? > 2 {
        if let Some((name, value)) = header.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().map_err(io::Error::other)?;
        }
        header.clear();
    }
    io::copy(&mut reader.take(length), &mut io::sink())?;
    Ok(first.starts_with("GET "))
}

fn nodes() -> Value {
    let ready = json!({"type": "Ready", "status": "True", "lastHeartbeatTime": HEARTBEAT});
    json!({
        "apiVersion": "v1",
        "kind": "NodeList",
        "metadata": {"resourceVersion": "1"},
        "items": [{"metadata": {"name": "granary", "resourceVersion": "1"}, "status": {"conditions": [ready]}}],
    })
}

fn forbidden() -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Status",
        "metadata": {},
        "status": "Failure",
        "message": "the stub has no other objects",
        "reason": "Forbidden",
        "code": 403,
    })
}
