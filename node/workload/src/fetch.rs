//! Requests to other containers: HTTP, and other protocols with text messages.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use crate::finding::Text;
use crate::{Check, CheckError};

const LIMIT: Duration = Duration::from_secs(10);

/// The response to `GET TARGET` with its header, at most [`Check::READ_LIMIT`] bytes.
pub(crate) fn get(address: SocketAddr, target: &str) -> Result<Text, CheckError> {
    exchange(address, &format!("GET {target} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"))
}

/// Sends a text, and reads at most [`Check::READ_LIMIT`] bytes until the server closes the connection.
pub(crate) fn exchange(address: SocketAddr, text: &str) -> Result<Text, CheckError> {
    request(address, text).map_err(CheckError::of("send a request to", Path::new(&address.to_string())))
}

fn request(address: SocketAddr, text: &str) -> io::Result<Text> {
    let mut stream = TcpStream::connect_timeout(&address, LIMIT)?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.set_write_timeout(Some(LIMIT))?;
    // Send the request in one write: a server may respond after the first bytes and close the connection.
    stream.write_all(text.as_bytes())?;
    let mut answer = Vec::new();
    match stream.take(Check::READ_LIMIT).read_to_end(&mut answer) {
        // A server that did not read the whole request resets the connection after its response.
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset && !answer.is_empty() => {}
        read => {
            read?;
        }
    }
    Ok(Text { text: String::from_utf8_lossy(&answer).into_owned() })
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};
    use std::thread;

    use super::*;

    /// A TLS server rejects an HTTP request in this way.
    #[test]
    fn an_early_answer_is_received() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut letters = [0; 256];
            let read = stream.read(&mut letters).unwrap();
            stream.write_all(b"HTTP/1.0 400 Bad Request\r\n\r\n").unwrap();
            String::from_utf8_lossy(&letters[..read]).into_owned()
        });
        assert!(get(address, "/").unwrap().text.starts_with("HTTP/1.0 400"));
        let received = server.join().unwrap();
        assert!(received.ends_with("\r\n\r\n"), "the request came in pieces: {received:?}");
    }

    #[test]
    fn a_text_is_sent_as_it_is() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut text = [0; 6];
            stream.read_exact(&mut text).unwrap();
            stream.write_all(b"+PONG\r\n").unwrap();
            text
        });
        assert_eq!(exchange(address, "PING\r\n").unwrap().text, "+PONG\r\n");
        assert_eq!(&server.join().unwrap(), b"PING\r\n");
    }

    #[test]
    fn a_refused_connection_is_reported() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        assert_eq!(get(address, "/").unwrap_err().to_string(), format!("cannot send a request to {address}"));
    }
}
