//! An HTTP server with one request for each connection.

use crate::CheckError;
use std::io::{self, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// Maximum size of a request without its body, in bytes.
pub(crate) const HEAD: u64 = 16 << 10;
const LIMIT: Duration = Duration::from_secs(30);

/// Handles each connection in a thread until SIGTERM or SIGINT. PID 1 of a container receives these signals only if it
/// blocks or handles them.
pub(crate) fn listen(
    port: u16,
    answer: impl Fn(&TcpStream) -> io::Result<()> + Send + Sync + 'static,
) -> Result<(), CheckError> {
    let signals = crate::signal::block()?;
    let path = Path::new("requests");
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).map_err(CheckError::of("wait for", path))?;
    // The thread ends with the process.
    thread::Builder::new()
        .name("requests".into())
        .spawn(move || accept(&listener, answer))
        .map_err(CheckError::of("start a thread for", path))?;
    crate::signal::wait(&signals)
}

pub(crate) fn accept(listener: &TcpListener, answer: impl Fn(&TcpStream) -> io::Result<()> + Send + Sync + 'static) {
    let answer = Arc::new(answer);
    for stream in listener.incoming() {
        let answer = Arc::clone(&answer);
        let served = stream.and_then(|stream| thread::Builder::new().spawn(move || serve(&stream, &*answer)));
        if let Err(error) = served {
            eprintln!("error: cannot serve a request: {error}");
        }
    }
}

fn serve(stream: &TcpStream, answer: impl Fn(&TcpStream) -> io::Result<()>) {
    let answered = limit(stream).and_then(|()| answer(stream));
    if let Err(error) = answered {
        eprintln!("error: cannot serve a request: {error}");
    }
}

fn limit(stream: &TcpStream) -> io::Result<()> {
    stream.set_read_timeout(Some(LIMIT))?;
    stream.set_write_timeout(Some(LIMIT))
}

pub(crate) fn respond(mut stream: impl Write, status: &str, body: &str) -> io::Result<()> {
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
}
