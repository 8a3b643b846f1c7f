//! An admission webhook that denies all requests with its name, which shows that the API server reached this pod.
//!
//! One request for each connection, HTTP/1.1 in TLS; the answer is an `AdmissionReview` of `admission.k8s.io/v1`.

use crate::CheckError;
use crate::serve::listen;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::{Value, json};
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;
use std::sync::Arc;

const HEAD: u64 = 16 << 10;
/// The largest review, in bytes: the API server takes objects of 3 MiB, and sends the old and the new one.
const BODY: u64 = 8 << 20;
/// In a container, the name of its pod.
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
    let (status, answer) = match answer(&body, message) {
        Some(answer) => ("200 OK", answer.to_string()),
        None => ("400 Bad Request", json!({"error": "this is not an admission review"}).to_string()),
    };
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{answer}",
        answer.len()
    )
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

    proptest! {
        #[test]
        fn what_is_not_a_review_has_no_answer(text in ".{0,40}") {
            prop_assert_eq!(answer(text.as_bytes(), "no"), None);
        }
    }
}
