//! An admission webhook that denies all requests. The message contains the name of the pod, which shows that the API
//! server reached this pod.
//!
//! Each connection has one request, HTTP/1.1 in TLS. The response is an `AdmissionReview` of `admission.k8s.io/v1`.

use crate::CheckError;
use crate::http::{HEAD, listen, respond};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::{Value, json};
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;
use std::sync::Arc;

/// Maximum size of a review in bytes: the API server accepts objects of 3 MiB, and sends the old and the new one.
const BODY: u64 = 8 << 20;
/// File with the host name, which is the name of the pod in a container.
const NAME: &str = "/etc/hostname";

pub fn refusal(pod: &str) -> String {
    format!("the webhook in pod {pod} refuses this")
}

pub(crate) fn run(port: u16, directory: &Path) -> Result<(), CheckError> {
    let config = Arc::new(config(directory).map_err(CheckError::of("use the certificate in", directory))?);
    let name = fs::read_to_string(NAME).map_err(CheckError::of("read", Path::new(NAME)))?;
    let message = refusal(name.trim_end());
    listen(port, move |stream| {
        let connection = ServerConnection::new(Arc::clone(&config)).map_err(io::Error::other)?;
        let mut stream = StreamOwned::new(connection, stream);
        exchange(&mut stream, &message)?;
        stream.conn.send_close_notify();
        stream.flush()
    })
}

fn config(directory: &Path) -> io::Result<ServerConfig> {
    let certificates = CertificateDer::pem_file_iter(directory.join("tls.crt")).map_err(io::Error::other)?;
    let certificates = certificates.collect::<Result<Vec<_>, _>>().map_err(io::Error::other)?;
    let key = PrivateKeyDer::from_pem_file(directory.join("tls.key")).map_err(io::Error::other)?;
    let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?;
    builder.with_no_client_auth().with_single_cert(certificates, key).map_err(io::Error::other)
}

fn exchange(stream: &mut (impl Read + Write), message: &str) -> io::Result<()> {
    let body = request(stream)?;
    match answer(&body, message) {
        Some(answer) => respond(stream, "200 OK", &answer.to_string()),
        None => respond(stream, "400 Bad Request", r#"{"error":"this is not an admission review"}"#),
    }
}

fn request(stream: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut reader = BufReader::new(stream.take(HEAD + BODY));
    let (mut length, mut header) = (0, String::new());
    while (&mut reader).take(HEAD).read_line(&mut header)? > 2 {
        if let Some((name, value)) = header.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().map_err(io::Error::other)?;
        }
        header.clear();
    }
    let mut body = Vec::new();
    reader.take(length).read_to_end(&mut body)?;
    Ok(body)
}

/// The denial of a review; `None` if the request is not a review.
fn answer(review: &[u8], message: &str) -> Option<Value> {
    let review: Value = serde_json::from_slice(review).ok()?;
    let uid = review["request"]["uid"].as_str()?;
    Some(json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "response": {"uid": uid, "allowed": false, "status": {"message": message}},
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Cursor;

    struct Both(Cursor<Vec<u8>>, Vec<u8>);

    impl Read for Both {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.0.read(buffer)
        }
    }

    impl Write for Both {
        fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
            self.1.write(buffer)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn asked(text: &str) -> String {
        let mut stream = Both(Cursor::new(text.as_bytes().to_vec()), Vec::new());
        exchange(&mut stream, "no").unwrap();
        String::from_utf8(stream.1).unwrap()
    }

    #[test]
    fn the_body_has_the_length_in_the_head() {
        let review = json!({"request": {"uid": "7-8"}}).to_string();
        let found = asked(&format!("POST / HTTP/1.1\r\ncontent-length: {}\r\n\r\n{review}more", review.len()));
        assert!(found.starts_with("HTTP/1.1 200 OK\r\n") && found.contains(r#""uid":"7-8""#), "{found}");
    }

    proptest! {
        #[test]
        fn any_input_is_answered(text in "(POST / HTTP/1.1\r\n(Content-Length: [0-9]{1,3}\r\n)?\r\n)?.{0,40}") {
            prop_assert!(asked(&text).starts_with("HTTP/1.1 400"));
        }
    }
}
