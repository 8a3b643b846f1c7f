//! Discovery of a cluster's CA by a joining machine. The API server presents the certificate of its CA, and the machine
//! compares the digest of the CA's key with its configuration. The machine sends no secret before this check.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cluster::CaDigest;
use pem::{EncodeConfig, LineEnding, Pem};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use sha2::{Digest as _, Sha256};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer as _;

/// Deadline of one attempt. Callers repeat attempts.
const LIMIT: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub enum DiscoveryError {
    #[error("cannot reach the API server at {address}:{port}")]
    Connect { address: IpAddr, port: u16, source: io::Error },
    #[error("the API server at {address}:{port} did not respond within {} s", LIMIT.as_secs())]
    Silence { address: IpAddr, port: u16 },
    #[error(
        "the API server at {address}:{port} does not belong to the CA {wanted}: it presented {presented}; check the \
         address and the digest"
    )]
    OtherCa { address: IpAddr, port: u16, wanted: CaDigest, presented: Presented },
    /// The CA has the digest, but it did not sign the server's certificate, or that certificate is for another address
    /// or not valid at this time.
    #[error("cannot verify the API server at {address}:{port}; check the address and the clock")]
    Server { address: IpAddr, port: u16, source: io::Error },
}

/// Key of the wanted CA, or of the last certificate that the server presented.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presented {
    Nothing,
    Key(CaDigest),
}

fn der_digest(der: &[u8]) -> Option<CaDigest> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    Some(<[u8; 32]>::from(Sha256::digest(certificate.public_key().raw)).into())
}

/// Digest of the public key of the first certificate in a PEM text. `None` without a certificate.
pub fn ca_digest(pem: &str) -> Option<CaDigest> {
    let (_, pem) = x509_parser::pem::parse_x509_pem(pem.as_bytes()).ok()?;
    der_digest(&pem.contents)
}

impl fmt::Display for Presented {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str("no certificate"),
            Self::Key(digest) => digest.fmt(f),
        }
    }
}

/// Returns the certificate of the cluster's CA (PEM), which the API server at `address` presents. The key of the CA has
/// the digest `wanted`, and the CA signed the server's certificate for this address. One attempt of at most ten
/// seconds.
pub async fn ca(address: IpAddr, port: u16, wanted: CaDigest) -> Result<String, DiscoveryError> {
    let provider = Arc::new(ring::default_provider());
    let verifier = Arc::new(Pinned { wanted, provider: Arc::clone(&provider), presented: Mutex::default() });
    let attempt = async {
        let connect = |source| DiscoveryError::Connect { address, port, source };
        let stream = TcpStream::connect((address, port)).await.map_err(connect)?;
        let server = |source| DiscoveryError::Server { address, port, source };
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| server(io::Error::other(error)))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::clone(&verifier) as Arc<dyn ServerCertVerifier>)
            .with_no_client_auth();
        TlsConnector::from(Arc::new(config)).connect(ServerName::from(address), stream).await.map_err(server)
    };
    let ended = timeout(LIMIT, attempt).await.unwrap_or(Err(DiscoveryError::Silence { address, port }));
    let seen = *verifier.presented.lock().unwrap_or_else(PoisonError::into_inner);
    match ended {
        Ok(stream) => {
            let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
            let found = chain.iter().find(|certificate| der_digest(certificate) == Some(wanted));
            let lines = EncodeConfig::new().set_line_ending(LineEnding::LF);
            let pem = found.map(|der| pem::encode_config(&Pem::new("CERTIFICATE", der.to_vec()), lines));
            pem.ok_or(DiscoveryError::OtherCa { address, port, wanted, presented: Presented::Nothing })
        }
        Err(DiscoveryError::Server { .. }) if seen.is_some_and(|presented| presented != Presented::Key(wanted)) => {
            Err(DiscoveryError::OtherCa { address, port, wanted, presented: seen.unwrap_or(Presented::Nothing) })
        }
        Err(error) => Err(error),
    }
}

/// Accepts a server that presents the CA with the digest `wanted` and a certificate that this CA signed.
#[derive(Debug)]
struct Pinned {
    wanted: CaDigest,
    provider: Arc<CryptoProvider>,
    /// `None` until the server has sent its certificates.
    presented: Mutex<Option<Presented>>,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let ca = intermediates.iter().find(|der| der_digest(der) == Some(self.wanted));
        let last = intermediates.last().unwrap_or(end_entity);
        let presented = der_digest(ca.unwrap_or(last)).map_or(Presented::Nothing, Presented::Key);
        *self.presented.lock().unwrap_or_else(PoisonError::into_inner) = Some(presented);
        let ca = ca.ok_or(Error::InvalidCertificate(CertificateError::UnknownIssuer))?;
        let mut roots = RootCertStore::empty();
        roots.add(ca.clone().into_owned())?;
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&self.provider));
        let verifier = verifier.build().map_err(|error| Error::General(error.to_string()))?;
        verifier.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::net::Ipv4Addr;

    use rustls::ServerConfig;
    use rustls::pki_types::PrivateKeyDer;
    use rustls::pki_types::pem::PemObject as _;
    use time::OffsetDateTime;
    use tokio::net::TcpListener;
    use tokio::task::JoinHandle;
    use tokio_rustls::TlsAcceptor;

    use super::*;
    use crate::pki::certificate::{self, Ca, Pair, Purpose, Signer, Wanted};

    const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    fn server_of(address: IpAddr) -> Wanted {
        let names = BTreeSet::from([certificate::ServerName::Ip(address)]);
        Wanted {
            name: "apiserver",
            common_name: "kube-apiserver".into(),
            organization: None,
            purpose: Purpose::Server(names),
            signer: Signer::Cluster,
        }
    }

    /// Serves one handshake with the certificates of `pair`: the server's, and the CA's if it is included.
    async fn serve(pair: &Pair) -> (u16, JoinHandle<()>) {
        let chain = CertificateDer::pem_slice_iter(pair.certificate.as_bytes()).collect::<Result<_, _>>().unwrap();
        let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .unwrap();
        let listener = TcpListener::bind((LOOPBACK, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let task = tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            // A client that rejects the certificate ends the handshake.
            let _ = TlsAcceptor::from(Arc::new(config)).accept(stream).await;
        });
        (port, task)
    }

    fn ca_and(address: IpAddr) -> (Ca, Pair) {
        let now = OffsetDateTime::now_utc();
        let (ca, _) = Ca::make(now).unwrap();
        let pair = ca.issue(&server_of(address), now).unwrap();
        (ca, pair)
    }

    /// One attempt of a machine that has the digest of the CA `signer`.
    async fn attempt(server: &Pair, signer: &Ca) -> Result<String, DiscoveryError> {
        let (port, _task) = serve(server).await;
        ca(LOOPBACK, port, digest(signer)).await
    }

    fn digest(ca: &Ca) -> CaDigest {
        ca_digest(ca.certificate()).unwrap()
    }

    #[tokio::test]
    async fn a_ca_with_the_digest_is_found() {
        let (signer, pair) = ca_and(LOOPBACK);
        let found = attempt(&pair, &signer).await.unwrap();
        assert_eq!(ca_digest(&found), Some(digest(&signer)));
    }

    #[tokio::test]
    async fn a_server_of_another_ca_is_rejected() {
        let [(signer, pair), (other, _)] = [ca_and(LOOPBACK), ca_and(LOOPBACK)];
        let error = attempt(&pair, &other).await.unwrap_err();
        let DiscoveryError::OtherCa { wanted, presented, .. } = error else { panic!("{error:?}") };
        assert_eq!((wanted, presented), (digest(&other), Presented::Key(digest(&signer))));
    }

    #[tokio::test]
    async fn a_server_is_signed_for_its_address_by_the_ca_that_it_presents() {
        let (signer, elsewhere) = ca_and([10, 0, 2, 15].into());
        let (_, mut foreign) = ca_and(LOOPBACK);
        let leaf = foreign.certificate.split_inclusive("-----END CERTIFICATE-----\n").next().unwrap();
        foreign.certificate = format!("{leaf}{}", signer.certificate());
        for (case, pair) in [("of another address", elsewhere), ("signed by another CA", foreign)] {
            let error = attempt(&pair, &signer).await.unwrap_err();
            assert!(matches!(error, DiscoveryError::Server { .. }), "{case}: {error:?}");
        }
    }

    #[tokio::test]
    async fn a_missing_server_is_an_error_with_its_address() {
        let listener = TcpListener::bind((LOOPBACK, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        drop(listener);
        let error = ca(LOOPBACK, port, CaDigest::from([0; 32])).await.unwrap_err();
        assert_eq!(error.to_string(), format!("cannot reach the API server at 127.0.0.1:{port}"));
    }
}
