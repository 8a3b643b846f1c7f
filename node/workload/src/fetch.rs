//! What a container hears from another one.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use crate::finding::Text;
use crate::{Check, CheckError};

/// How long the other side may take for each step.
const PATIENCE: Duration = Duration::from_secs(10);

/// The answer to `GET TARGET`, with its head: at most [`Check::READ_LIMIT`] bytes of it.
pub(crate) fn get(address: SocketAddr, target: &str) -> Result<Text, CheckError> {
    ask(address, target).map_err(CheckError::of("ask", Path::new(&address.to_string())))
}

fn ask(address: SocketAddr, target: &str) -> io::Result<Text> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    // As a whole: who answers its first letters and closes the connection would have the rest refused.
    let question = format!("GET {target} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(question.as_bytes())?;
    let mut answer = Vec::new();
    match stream.take(Check::READ_LIMIT).read_to_end(&mut answer) {
        // Who answers without having read the whole question resets the connection afterwards.
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset && !answer.is_empty() => {}
        read => {
            read?;
        }
    }
    Ok(Text { text: String::from_utf8_lossy(&answer).into_owned() })
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader};
    use std::net::{Ipv4Addr, TcpListener};
    use std::thread;

    use super::*;

    #[test]
    fn the_answer_is_what_the_other_side_says() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            // To the end of the head: what is unread at the end would reset the connection.
            let head: Vec<String> =
                BufReader::new(&stream).lines().map(Result::unwrap).take_while(|line| !line.is_empty()).collect();
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\nhello").unwrap();
            head
        });
        assert_eq!(get(address, "/a?b").unwrap().text, "HTTP/1.1 200 OK\r\n\r\nhello");
        assert_eq!(server.join().unwrap()[0], "GET /a?b HTTP/1.1");
    }

    /// As a server of TLS does, which wants no HTTP.
    #[test]
    fn an_answer_to_the_first_letters_is_heard() {
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
        let heard = server.join().unwrap();
        assert!(heard.ends_with("\r\n\r\n"), "the question came in pieces: {heard:?}");
    }

    #[test]
    fn nobody_is_named() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        assert_eq!(get(address, "/").unwrap_err().to_string(), format!("cannot ask {address}"));
    }
}
