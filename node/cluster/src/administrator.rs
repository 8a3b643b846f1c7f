//! Requests of administrators for a client certificate.

use std::fmt;
use std::str::FromStr;

use sha2::{Digest as _, Sha256};
use x509_parser::asn1_rs::Tag;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::oid_registry::{
    OID_EC_P256, OID_KEY_TYPE_EC_PUBLIC_KEY, OID_NIST_EC_P384, OID_PKCS1_RSAENCRYPTION, OID_SIG_ED25519,
};
use x509_parser::prelude::FromDer as _;
use x509_parser::public_key::PublicKey;
use x509_parser::x509::{SubjectPublicKeyInfo, X509Name};

use crate::ADMINISTRATOR_USER_PREFIX;
use crate::domain::is_label;

/// The parts of a certificate signing request (PKCS #10) that its certificate gets: the common name, a DNS label, and a key
/// that signed the request. Other names, groups and extensions are ignored.
#[derive(Clone, PartialEq, Eq)]
pub struct AdministratorRequest {
    name: String,
    public_key: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AdministratorError {
    #[error("must contain one certificate signing request in PEM, as openssl req -new prints it, and nothing else")]
    Pem,
    #[error(
        "contains a private key, which only the administrator may have: create a new key, and write the certificate signing \
         request of it"
    )]
    PrivateKey,
    #[error("the certificate signing request is damaged; copy it again")]
    Damaged,
    #[error(
        "the subject must have one common name (CN) of 1 to 63 lower-case letters, digits and '-', with a letter or digit at \
         both ends"
    )]
    Name,
    #[error("the key must be ECDSA on P-256 or P-384, Ed25519, or RSA with 2048 to 8192 bits")]
    Key,
    #[error(
        "the request is not signed with its own key and SHA-256 or SHA-384 (Ed25519: its own digest); create it again"
    )]
    Signature,
}

const RSA: (usize, usize) = (2048, 8192);

impl AdministratorRequest {
    pub fn name(&self) -> &str {
        &self.name
    }

    /// User name of the certificate. The name contains a part of the key's digest: the same name with another key is
    /// another user, which does not have the rights of the first one.
    pub fn user(&self) -> String {
        let digest = Sha256::digest(&self.public_key);
        let part = digest.iter().take(8).fold(0_u64, |part, byte| part << 8 | u64::from(*byte));
        format!("{ADMINISTRATOR_USER_PREFIX}{}:{part:016x}", self.name)
    }

    /// Public key as a SubjectPublicKeyInfo, DER.
    pub fn public_key(&self) -> &[u8] {
        &self.public_key
    }
}

impl FromStr for AdministratorRequest {
    type Err = AdministratorError;

    fn from_str(text: &str) -> Result<Self, AdministratorError> {
        let blocks = pem::parse_many(text).map_err(|_| AdministratorError::Pem)?;
        if blocks.iter().any(|block| block.tag().ends_with("PRIVATE KEY")) {
            return Err(AdministratorError::PrivateKey);
        }
        let [block] = &*blocks else { return Err(AdministratorError::Pem) };
        // Older programs write the second label.
        if !["CERTIFICATE REQUEST", "NEW CERTIFICATE REQUEST"].contains(&block.tag()) {
            return Err(AdministratorError::Pem);
        }
        let Ok(([], request)) = X509CertificationRequest::from_der(block.contents()) else {
            return Err(AdministratorError::Damaged);
        };
        let info = &request.certification_request_info;
        let name = common_name(&info.subject).ok_or(AdministratorError::Name)?;
        if !is_supported(&info.subject_pki) {
            return Err(AdministratorError::Key);
        }
        request.verify_signature().map_err(|_| AdministratorError::Signature)?;
        Ok(Self { name: name.to_owned(), public_key: info.subject_pki.raw.to_vec() })
    }
}

/// The common name, if there is exactly one and it is a DNS label.
fn common_name<'a>(subject: &'a X509Name<'_>) -> Option<&'a str> {
    let mut names = subject.iter_common_name();
    let (Some(name), None) = (names.next(), names.next()) else { return None };
    name.as_str().ok().filter(|name| is_label(name))
}

/// Whether the API server accepts the key, and the node can verify its signature and sign its certificate.
fn is_supported(key: &SubjectPublicKeyInfo<'_>) -> bool {
    let (algorithm, parameters) = (&key.algorithm.algorithm, key.algorithm.parameters.as_ref());
    if *algorithm == OID_KEY_TYPE_EC_PUBLIC_KEY {
        let curve = parameters.and_then(|curve| curve.as_oid().ok());
        curve.is_some_and(|curve| [OID_EC_P256, OID_NIST_EC_P384].contains(&curve))
    } else if *algorithm == OID_PKCS1_RSAENCRYPTION {
        let has_parameters = parameters.is_some_and(|parameters| parameters.tag() == Tag::Null);
        let size = match key.parsed() {
            Ok(PublicKey::RSA(key)) => key.key_size(),
            _ => 0,
        };
        has_parameters && (RSA.0..=RSA.1).contains(&size)
    } else {
        *algorithm == OID_SIG_ED25519 && parameters.is_none()
    }
}

impl fmt::Debug for AdministratorRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AdministratorRequest({})", self.user())
    }
}

#[cfg(test)]
mod tests;
