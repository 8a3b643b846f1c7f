//! A certificate signing request, read with suspicion. Pure.
//!
//! The signer signs what it finds in a request with a parser of its own. So that both see the same, anything that this
//! parser could skip is refused.

use std::collections::BTreeSet;
use std::net::IpAddr;

use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec};
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::oid_registry::{
    OID_EC_P256, OID_KEY_TYPE_EC_PUBLIC_KEY, OID_X509_COMMON_NAME, OID_X509_ORGANIZATION_NAME, Oid,
};
use x509_parser::pem::{Pem, parse_x509_pem};
use x509_parser::prelude::FromDer as _;

/// A kubelet is known by this, the node's name, and the group.
pub(crate) const KUBELET_PREFIX: &str = "system:node:";
pub(crate) const KUBELETS_GROUP: &str = "system:nodes";

/// Whether somebody has said yes or no, or a certificate is there.
pub(crate) fn is_decided(request: &CertificateSigningRequest) -> bool {
    request.status.as_ref().is_some_and(|status| {
        status.certificate.is_some() || status.conditions.as_ref().is_some_and(|conditions| !conditions.is_empty())
    })
}

/// The name of the node whose kubelet asks.
pub(crate) fn kubelet(spec: &CertificateSigningRequestSpec) -> Option<&str> {
    let in_group = spec.groups.iter().flatten().any(|group| group == KUBELETS_GROUP);
    let node = spec.username.as_deref()?.strip_prefix(KUBELET_PREFIX)?;
    (in_group && !node.is_empty()).then_some(node)
}

/// Whether the certificate is asked for these uses and no others, in any order.
pub(crate) fn has_usages(spec: &CertificateSigningRequestSpec, sorted: [&str; 2]) -> bool {
    let mut usages: Vec<&str> = spec.usages.iter().flatten().map(String::as_str).collect();
    usages.sort_unstable();
    usages == sorted
}

/// What is asked for.
pub(crate) struct Csr(Pem);

impl Csr {
    /// `None` if it is no text with one request and nothing else.
    pub(crate) fn read(text: &[u8]) -> Option<Self> {
        let csr = Self(only_block(text)?);
        csr.parsed()?;
        Some(csr)
    }

    fn parsed(&self) -> Option<X509CertificationRequest<'_>> {
        match X509CertificationRequest::from_der(&self.0.contents) {
            Ok(([], asked)) => Some(asked),
            _ => None,
        }
    }

    pub(crate) fn subject(&self) -> BTreeSet<Name> {
        let Some(asked) = self.parsed() else { return BTreeSet::new() };
        let names = asked.certification_request_info.subject.iter_attributes();
        names.map(|name| Name::of(name.attr_type(), name.as_str().ok())).collect()
    }

    /// The name of the node, if the subject is a kubelet's and has nothing else.
    pub(crate) fn kubelet(&self) -> Option<String> {
        let common = self.subject().into_iter().find_map(|name| match name {
            Name::Common(name) => name.strip_prefix(KUBELET_PREFIX).map(str::to_owned),
            Name::Organization(_) | Name::Other => None,
        });
        let node = common.filter(|node| !node.is_empty())?;
        let wanted = [Name::Organization(KUBELETS_GROUP.to_owned()), Name::Common(format!("{KUBELET_PREFIX}{node}"))];
        self.has_subject(wanted).then_some(node)
    }

    /// Whether the subject has these two parts, and no others.
    pub(crate) fn has_subject(&self, wanted: [Name; 2]) -> bool {
        let Some(asked) = self.parsed() else { return false };
        let parts = asked.certification_request_info.subject.iter_attributes().count();
        parts == wanted.len() && self.subject() == BTreeSet::from(wanted)
    }

    /// The names of a server that are asked for. `None` if there are some that are neither DNS names nor addresses.
    pub(crate) fn names(&self) -> Option<Vec<ServerName>> {
        let asked = self.parsed()?;
        let names = asked.requested_extensions().into_iter().flatten().find_map(|extension| match extension {
            ParsedExtension::SubjectAlternativeName(names) => Some(&names.general_names),
            _ => None,
        })?;
        names.iter().map(ServerName::of).collect()
    }

    /// Whether the names of a server, in this order, are all that is asked for beside subject and key. The parser
    /// stops at an attribute that it does not understand; the signer may understand it. So the bytes are compared.
    pub(crate) fn has_attributes(&self, names: &[ServerName]) -> bool {
        let Some(asked) = self.parsed() else { return false };
        let info = &asked.certification_request_info;
        info.raw.ends_with(&[info.subject_pki.raw, &attributes(names)].concat())
    }

    /// Whether the key is ECDSA on P-256.
    pub(crate) fn is_p256(&self) -> bool {
        let Some(asked) = self.parsed() else { return false };
        let algorithm = &asked.certification_request_info.subject_pki.algorithm;
        let curve = algorithm.parameters.as_ref().and_then(|curve| curve.as_oid().ok());
        algorithm.algorithm == OID_KEY_TYPE_EC_PUBLIC_KEY && curve == Some(OID_EC_P256)
    }

    /// Whether it is signed with its own key.
    pub(crate) fn is_signed(&self) -> bool {
        self.parsed().is_some_and(|asked| asked.verify_signature().is_ok())
    }
}

/// A name by which clients may call a server.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ServerName {
    Dns(String),
    Ip(IpAddr),
}

impl ServerName {
    fn of(name: &GeneralName<'_>) -> Option<Self> {
        match name {
            GeneralName::DNSName(name) => Some(Self::Dns((*name).to_owned())),
            GeneralName::IPAddress(bytes) => match <[u8; 4]>::try_from(*bytes) {
                Ok(bytes) => Some(Self::Ip(bytes.into())),
                // The signer writes an address of IPv4 that is mapped into IPv6 as the one of IPv4 that it is.
                Err(_) => Some(Self::Ip(IpAddr::from(<[u8; 16]>::try_from(*bytes).ok()?).to_canonical())),
            },
            _ => None,
        }
    }

    /// As a GeneralName: RFC 5280, 4.2.1.6.
    fn der(&self) -> Vec<u8> {
        match self {
            Self::Dns(name) => der(0x82, name.as_bytes()),
            Self::Ip(IpAddr::V4(address)) => der(0x87, &address.octets()),
            Self::Ip(IpAddr::V6(address)) => der(0x87, &address.octets()),
        }
    }
}

/// The attributes of a request (RFC 2986, 4.1) for a certificate with these names: none, or one, for extensions
/// (RFC 2985, 5.4.2), with the one extension of alternative names (RFC 5280, 4.2.1.6).
fn attributes(names: &[ServerName]) -> Vec<u8> {
    const EXTENSION_REQUEST: &[u8] = &[0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x09, 0x0e];
    const ALTERNATIVE_NAMES: &[u8] = &[0x06, 0x03, 0x55, 0x1d, 0x11];
    const SEQUENCE: u8 = 0x30;
    const SET: u8 = 0x31;
    const OCTETS: u8 = 0x04;
    const ATTRIBUTES: u8 = 0xa0;
    if names.is_empty() {
        return der(ATTRIBUTES, &[]);
    }
    let names = der(SEQUENCE, &names.iter().flat_map(ServerName::der).collect::<Vec<_>>());
    let extension = der(SEQUENCE, &[ALTERNATIVE_NAMES, &der(OCTETS, &names)].concat());
    let values = der(SET, &der(SEQUENCE, &extension));
    der(ATTRIBUTES, &der(SEQUENCE, &[EXTENSION_REQUEST, &values].concat()))
}

/// Tag, length, content: X.690, 8.1.3, and the shortest form of 10.1.
fn der(tag: u8, content: &[u8]) -> Vec<u8> {
    let length = content.len().to_be_bytes();
    let length: Vec<u8> = length.into_iter().skip_while(|byte| *byte == 0).collect();
    let head = match (length.as_slice(), u8::try_from(length.len())) {
        ([], _) => vec![tag, 0],
        ([short @ 0..0x80], _) => vec![tag, *short],
        (long, Ok(count)) => [&[tag, 0x80 | count], long].concat(),
        // A length has at most eight bytes.
        (_, Err(_)) => vec![tag],
    };
    [head.as_slice(), content].concat()
}

/// The block of a text that has one, and nothing else: a parser that skips what it does not like finds no other.
fn only_block(text: &[u8]) -> Option<Pem> {
    let text = std::str::from_utf8(text).ok()?;
    let body = text
        .trim_end_matches('\n')
        .strip_prefix("-----BEGIN CERTIFICATE REQUEST-----\n")?
        .strip_suffix("\n-----END CERTIFICATE REQUEST-----")?;
    let base64 = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '/' | '=' | '\n');
    if !body.chars().all(base64) {
        return None;
    }
    parse_x509_pem(text.as_bytes()).ok().map(|(_, pem)| pem)
}

/// A part of a subject.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Name {
    Common(String),
    Organization(String),
    /// Of another kind, or in letters that we do not read.
    Other,
}

impl Name {
    fn of(kind: &Oid<'_>, value: Option<&str>) -> Self {
        match value {
            Some(value) if *kind == OID_X509_COMMON_NAME => Self::Common(value.to_owned()),
            Some(value) if *kind == OID_X509_ORGANIZATION_NAME => Self::Organization(value.to_owned()),
            Some(_) | None => Self::Other,
        }
    }
}
