//! Forwards requests of tests to the host.

use std::io::{self, BufReader};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::thread;

use ktest_init::{SOCKET, receive, send};

use crate::host::Host;

/// Starts a thread that listens as long as the guest runs.
pub(crate) fn start(host: Arc<Host>) -> io::Result<()> {
    let listener = UnixListener::bind(SOCKET)?;
    thread::Builder::new().name("relay".into()).spawn(move || {
        for stream in listener.incoming() {
            if let Err(error) = stream.and_then(|stream| pass_on(&host, &stream)) {
                // The test fails, because it receives no answer.
                eprintln!("error: cannot pass on what a test asks: {error}");
            }
        }
    })?;
    Ok(())
}

fn pass_on(host: &Host, stream: &UnixStream) -> io::Result<()> {
    let request = receive(&mut BufReader::new(stream), &mut Vec::new())?;
    send(stream, &host.ask(request))
}
