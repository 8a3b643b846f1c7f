//! Runs checks over HTTP; clients use the proxy of the API server.
//!
//! A request is `GET /?WORD&WORD…`, the words of a [`Check`] with percent-encoding. The response is JSON, either
//! `{"Ok": FINDING}` or `{"Err": TEXT}`. The proxy needs only HTTP/1.1 without persistent connections.

use crate::http::{HEAD, listen, respond};
use crate::{Check, CheckError, Finding, file, run as run_check};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use serde::de::DeserializeOwned;
use std::io::{self, BufRead, BufReader, Read};
use std::net::TcpStream;
use std::path::Path;

/// Text in the file of [`Check::Serve`] after the program has received SIGTERM or SIGINT.
pub const FAREWELL: &str = "asked to end";

pub fn target(check: &Check) -> String {
    let words = check.words();
    let words: Vec<String> = words.iter().map(|word| utf8_percent_encode(word, RESERVED).to_string()).collect();
    format!("/?{}", words.join("&"))
}

/// Parses the response to [`target`]: the finding of the check, or its error.
pub fn answer<T: DeserializeOwned>(text: &str) -> Result<Result<T, String>, serde_json::Error> {
    serde_json::from_str(text)
}

/// Serves requests until SIGTERM or SIGINT, then writes [`FAREWELL`].
pub(crate) fn run(port: u16, farewell: Option<&Path>) -> Result<(), CheckError> {
    listen(port, exchange)?;
    farewell.map_or(Ok(()), |path| file::write(path, FAREWELL).map(drop))
}

fn exchange(stream: &TcpStream) -> io::Result<()> {
    let mut reader = BufReader::new(stream.take(HEAD));
    let mut line = String::new();
    reader.read_line(&mut line)?;
    // Read the whole header: closing a connection with unread data would reset it.
    let mut header = String::new();
    while reader.read_line(&mut header)? > 2 {
        header.clear();
    }
    let check = check(&line);
    let (status, body) = match &check {
        Some(Check::Serve { .. } | Check::Webhook { .. }) | None => {
            ("400 Bad Request", text(&Err("the request is not a check".to_owned()))?)
        }
        Some(check) => ("200 OK", text(&run_check(check).map_err(|error| causes::lines(&error).to_string()))?),
    };
    respond(stream, status, &body)?;
    // Send the response before the program ends: the API server repeats no request, but its clients repeat those
    // without a response.
    if check == Some(Check::End) { crate::signal::end() } else { Ok(()) }
}

fn text(answer: &Result<Finding, String>) -> io::Result<String> {
    Ok(serde_json::to_string(answer)?)
}

/// Parses a request line, `GET /?WORD&WORD HTTP/1.1`.
fn check(line: &str) -> Option<Check> {
    let mut parts = line.trim_end().split(' ');
    if parts.next()? != "GET" {
        return None;
    }
    let (_, query) = parts.next()?.split_once('?')?;
    let words = query.split('&').map(|word| percent_decode_str(word).decode_utf8());
    let words = words.collect::<Result<Vec<_>, _>>().ok()?;
    Check::parse(&words.iter().map(|word| &**word).collect::<Vec<&str>>())
}

/// Characters to encode: all that are not unreserved in RFC 3986, 2.3.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::tests::any_check;
    use crate::http::accept;
    use proptest::prelude::*;
    use std::io::Write;
    use std::net::{Ipv4Addr, TcpListener};
    use std::thread;

    proptest! {
        #[test]
        fn a_request_reads_back_as_its_check(wanted in any_check()) {
            prop_assert_eq!(check(&format!("GET {} HTTP/1.1\r\n", target(&wanted))), Some(wanted));
        }

        #[test]
        fn no_line_of_a_request_makes_it_panic(line in "(GET /\\?)?[ -~é%]{0,40}") {
            let _ = check(&line);
        }
    }

    #[test]
    fn the_answer_to_a_failed_check_is_its_error() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || accept(&listener, exchange));
        let ask = |check: &Check| {
            let mut stream = TcpStream::connect(address).unwrap();
            write!(stream, "GET {} HTTP/1.1\r\nHost: pod\r\n\r\n", target(check)).unwrap();
            let mut text = String::new();
            stream.read_to_string(&mut text).unwrap();
            let (head, body) = text.split_once("\r\n\r\n").unwrap();
            assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())), "{head}");
            answer::<Finding>(body).unwrap()
        };
        let refused = ask(&Check::Read { path: "/nowhere/note".into() }).unwrap_err();
        assert!(refused.starts_with("cannot read /nowhere/note\ncaused by: No such file"), "{refused}");
        assert!(matches!(ask(&Check::Inspect { path: "/".into() }), Ok(Finding::Inspect(_))));
        assert_eq!(ask(&Check::Serve { port: 1, farewell: None }), Err("the request is not a check".to_owned()));
    }
}
