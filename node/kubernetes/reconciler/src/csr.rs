//! Parses certificate signing requests. Pure.
//!
//! The signer uses another parser, so this parser rejects everything that one of the two could skip: both get the same
//! result.

use std::collections::BTreeSet;
use std::net::IpAddr;

use cluster::{BOOTSTRAP_NODE_ANNOTATION, DNS_USER_PREFIX, STORAGE_USER_PREFIX};
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec};
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::oid_registry::{
    OID_EC_P256, OID_KEY_TYPE_EC_PUBLIC_KEY, OID_X509_COMMON_NAME, OID_X509_ORGANIZATION_NAME, Oid,
};
use x509_parser::pem::{Pem, parse_x509_pem};
use x509_parser::prelude::FromDer as _;

use crate::identity::{KUBELET_PREFIX, KUBELETS_GROUP};
use crate::removed::node_removed;
use crate::storage_certificate::NodeUsers;

pub(crate) fn is_decided(request: &CertificateSigningRequest) -> bool {
    request.status.as_ref().is_some_and(|status| {
        status.certificate.is_some() || status.conditions.as_ref().is_some_and(|conditions| !conditions.is_empty())
    })
}

pub(crate) fn kubelet(spec: &CertificateSigningRequestSpec) -> Option<&str> {
    let in_group = spec.groups.iter().flatten().any(|group| group == KUBELETS_GROUP);
    let node = spec.username.as_deref()?.strip_prefix(KUBELET_PREFIX)?;
    (in_group && !node.is_empty()).then_some(node)
}

fn has_usages(spec: &CertificateSigningRequestSpec, sorted: [&str; 2]) -> bool {
    let mut usages: Vec<&str> = spec.usages.iter().flatten().map(String::as_str).collect();
    usages.sort_unstable();
    usages == sorted
}

pub(crate) struct Csr(Pem);

impl Csr {
    /// Parses a request. `None` if the text is not exactly one request.
    pub(crate) fn read(text: &[u8]) -> Option<Self> {
        let csr = Self(only_block(text)?);
        csr.parsed()?;
        Some(csr)
    }

    fn parsed(&self) -> Option<X509CertificationRequest<'_>> {
        match X509CertificationRequest::from_der(&self.0.contents) {
            Ok(([], request)) => Some(request),
            _ => None,
        }
    }

    pub(crate) fn subject(&self) -> BTreeSet<Name> {
        let Some(request) = self.parsed() else { return BTreeSet::new() };
        let names = request.certification_request_info.subject.iter_attributes();
        names.map(|name| Name::of(name.attr_type(), name.as_str().ok())).collect()
    }

    /// The node, if the subject is the identity of its kubelet and nothing else.
    pub(crate) fn kubelet(&self) -> Option<String> {
        let common = self.subject().into_iter().find_map(|name| match name {
            Name::Common(name) => name.strip_prefix(KUBELET_PREFIX).map(str::to_owned),
            Name::Organization(_) | Name::Other => None,
        });
        let node = common.filter(|node| !node.is_empty())?;
        let wanted = [Name::Organization(KUBELETS_GROUP.to_owned()), Name::Common(format!("{KUBELET_PREFIX}{node}"))];
        self.has_subject(wanted).then_some(node)
    }

    pub(crate) fn has_subject(&self, wanted: [Name; 2]) -> bool {
        let Some(request) = self.parsed() else { return false };
        let parts = request.certification_request_info.subject.iter_attributes().count();
        parts == wanted.len() && self.subject() == BTreeSet::from(wanted)
    }

    /// Subject alternative names. `None` if there are names other than DNS names and addresses.
    pub(crate) fn names(&self) -> Option<Vec<ServerName>> {
        let request = self.parsed()?;
        let names = request.requested_extensions().into_iter().flatten().find_map(|extension| match extension {
            ParsedExtension::SubjectAlternativeName(names) => Some(&names.general_names),
            _ => None,
        })?;
        names.iter().map(ServerName::of).collect()
    }

    /// Checks everything except the subject: the attributes contain only these names, and usages, key and signature are
    /// valid.
    pub(crate) fn check(
        &self,
        names: &[ServerName],
        spec: &CertificateSigningRequestSpec,
        usages: [&'static str; 2],
    ) -> Result<(), Denial> {
        if !self.has_attributes(names) {
            return Err(Denial::Attributes);
        }
        if !has_usages(spec, usages) {
            return Err(Denial::Usages(usages));
        }
        if !self.is_p256() {
            return Err(Denial::Key);
        }
        if self.is_signed() { Ok(()) } else { Err(Denial::Signature) }
    }

    /// Whether the names, in this order, are the only attributes. Compares the bytes, because the signer may support an
    /// attribute that this parser skips.
    pub(crate) fn has_attributes(&self, names: &[ServerName]) -> bool {
        let Some(request) = self.parsed() else { return false };
        let info = &request.certification_request_info;
        info.raw.ends_with(&[info.subject_pki.raw, &attributes(names)].concat())
    }

    fn is_p256(&self) -> bool {
        let Some(request) = self.parsed() else { return false };
        let algorithm = &request.certification_request_info.subject_pki.algorithm;
        let curve = algorithm.parameters.as_ref().and_then(|curve| curve.as_oid().ok());
        algorithm.algorithm == OID_KEY_TYPE_EC_PUBLIC_KEY && curve == Some(OID_EC_P256)
    }

    fn is_signed(&self) -> bool {
        self.parsed().is_some_and(|request| request.verify_signature().is_ok())
    }
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Denial {
    #[error("{user} has neither a bootstrap token nor a kubelet's identity")]
    Requester { user: String },
    #[error(
        "{user} is not a kubelet: system:node:NAME in the group {KUBELETS_GROUP} may request {STORAGE_USER_PREFIX}NAME and \
         {DNS_USER_PREFIX}NAME"
    )]
    NoKubelet { user: String },
    #[error("the subject must be CN={KUBELET_PREFIX}NAME, O={KUBELETS_GROUP} and nothing else")]
    Subject,
    #[error(
        "the subject must be CN={}{node}, O={} and nothing else: the requester is the kubelet of {node}",
        .users.prefix, .users.group
    )]
    UserSubject { node: String, users: NodeUsers },
    #[error(
        "the bootstrap token {id} was deleted or is not for a node: its Secret needs the annotation \
         {BOOTSTRAP_NODE_ANNOTATION} with the node's name"
    )]
    FreeToken { id: String },
    #[error("the bootstrap token {id} is for the node {bound}, not for {requested}; create one for {requested}")]
    OtherName { id: String, bound: String, requested: String },
    #[error(
        "there is a Node {node} already: choose another name, or, if that machine is lost or its certificate has expired, \
         delete the Node first, and create a new token then"
    )]
    NameTaken { node: String },
    #[error("{}; remove the name from it to admit a machine with this name again", node_removed(.node))]
    Removed { node: String },
    #[error("{requester} requests a certificate of {requested}; a kubelet gets only its own certificates")]
    OtherNode { requester: String, requested: String },
    #[error("only a kubelet that has joined gets a serving certificate")]
    NotJoined,
    #[error("a kubelet may serve with its node's name {node} and the node's addresses, not as {name}")]
    ServerName { node: String, name: String },
    #[error("{address} is an address of the Node {owner}; if that node does not exist any more, delete it")]
    AddressTaken { address: IpAddr, owner: String },
    #[error("the request has attributes (names, extensions) that are not allowed; remove them")]
    Attributes,
    #[error("the usages must be {} and {}", .0[0], .0[1])]
    Usages([&'static str; 2]),
    #[error("the key must be ECDSA on P-256")]
    Key,
    #[error("the request is not signed with its own key")]
    Signature,
}

impl Denial {
    pub(crate) const fn reason(&self) -> &'static str {
        match self {
            Self::Requester { .. } => "UnknownAsker",
            Self::NoKubelet { .. } => "NoKubelet",
            Self::Subject | Self::UserSubject { .. } => "OtherSubject",
            Self::FreeToken { .. } => "TokenWithoutNode",
            Self::OtherName { .. } => "TokenOfOtherNode",
            Self::NameTaken { .. } => "NameTaken",
            Self::Removed { .. } => "NodeRemoved",
            Self::OtherNode { .. } => "OtherNode",
            Self::NotJoined => "NotJoined",
            Self::ServerName { .. } => "OtherServerName",
            Self::AddressTaken { .. } => "AddressTaken",
            Self::Attributes => "AttributesNotAllowed",
            Self::Usages(_) => "OtherUsages",
            Self::Key => "OtherKeyType",
            Self::Signature => "BadSignature",
        }
    }
}

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
                // The signer writes a mapped IPv4 address as an IPv4 address.
                Err(_) => Some(Self::Ip(IpAddr::from(<[u8; 16]>::try_from(*bytes).ok()?).to_canonical())),
            },
            _ => None,
        }
    }

    /// Encodes a GeneralName: RFC 5280, 4.2.1.6.
    fn der(&self) -> Vec<u8> {
        match self {
            Self::Dns(name) => der(0x82, name.as_bytes()),
            Self::Ip(IpAddr::V4(address)) => der(0x87, &address.octets()),
            Self::Ip(IpAddr::V6(address)) => der(0x87, &address.octets()),
        }
    }
}

/// The attributes (RFC 2986, 4.1) of a request with these names: none, or an extension request (RFC 2985, 5.4.2) with
/// the alternative names (RFC 5280, 4.2.1.6).
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

/// Encodes tag, length and content: X.690, 8.1.3, with the shortest length form of 10.1.
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

/// The PEM block of a text with exactly one block and no other text that a parser may skip.
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

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Name {
    Common(String),
    Organization(String),
    /// Attribute of another type or character set.
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

#[cfg(test)]
pub(crate) mod tests {
    use k8s_openapi::ByteString;
    use rcgen::{
        BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, KeyPair, SanType, SignatureAlgorithm,
    };

    use super::*;

    #[derive(Clone, Debug)]
    pub(crate) struct TestRequest {
        pub(crate) user: &'static str,
        pub(crate) groups: Vec<&'static str>,
        pub(crate) subject: Vec<(DnType, &'static str)>,
        pub(crate) names: Vec<&'static str>,
        pub(crate) addresses: Vec<IpAddr>,
        pub(crate) is_ca: bool,
        pub(crate) usages: Vec<&'static str>,
        pub(crate) signer: &'static str,
        pub(crate) key: &'static SignatureAlgorithm,
    }

    impl TestRequest {
        pub(crate) fn pem(&self) -> String {
            let mut params = CertificateParams::default();
            params.distinguished_name = DistinguishedName::new();
            for (kind, value) in &self.subject {
                params.distinguished_name.push(kind.clone(), *value);
            }
            params.subject_alt_names =
                self.names.iter().map(|name| SanType::DnsName((*name).try_into().unwrap())).collect();
            params.subject_alt_names.extend(self.addresses.iter().map(|address| SanType::IpAddress(*address)));
            if self.is_ca {
                params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            }
            params.serialize_request(&KeyPair::generate_for(self.key).unwrap()).unwrap().pem().unwrap()
        }

        pub(crate) fn request(&self) -> CertificateSigningRequest {
            self.with_text(self.pem())
        }

        pub(crate) fn with_text(&self, text: impl Into<Vec<u8>>) -> CertificateSigningRequest {
            let owned = |names: &[&str]| Some(names.iter().map(|name| (*name).to_owned()).collect());
            CertificateSigningRequest {
                spec: CertificateSigningRequestSpec {
                    request: ByteString(text.into()),
                    signer_name: self.signer.to_owned(),
                    usages: owned(&self.usages),
                    username: Some(self.user.to_owned()),
                    groups: owned(&self.groups),
                    ..CertificateSigningRequestSpec::default()
                },
                ..CertificateSigningRequest::default()
            }
        }
    }
}
