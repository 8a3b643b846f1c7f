use std::fmt;
use std::net::Ipv4Addr;

use cluster::{
    AddressError, AdministratorError, CardError, DigestError, DomainError, OvercommitError, RegistryError, TokenError,
};
use ipnet::Ipv4Net;

use crate::name::NameError;

#[derive(Debug, thiserror::Error)]
pub enum ParseError {
    #[error("configuration is not valid JSON")]
    Syntax(#[source] serde_json::Error),
    #[error("this build of the node cannot read configurations: its descriptors are invalid; build it again")]
    Build,
    #[error("{}", lines(.0))]
    Problems(Vec<Problem>),
}

fn lines(problems: &[Problem]) -> String {
    let mut text = match problems.len() {
        1 => "the configuration has a problem".to_owned(),
        count => format!("the configuration has {count} problems"),
    };
    for problem in problems {
        text.push_str("\n  ");
        text.push_str(&problem.to_string());
    }
    text
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {violation}")]
pub struct Problem {
    /// Path of the field: `network.static.address`, `timeServers[1]`, or `(top)` for the whole configuration.
    pub field: String,
    pub violation: Violation,
}

/// The texts name the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    #[error("unknown field; {}", listed(.known))]
    UnknownField { known: Vec<String> },
    #[error("the field is set twice; remove one")]
    Twice,
    #[error("only one of this field and {other} can be set; remove one")]
    Excludes { other: String },
    #[error("must be {wanted}, not {found}")]
    Kind { wanted: &'static str, found: &'static str },
    #[error("{found:?} is not one of {}", .known.join(", "))]
    Word { found: String, known: Vec<String> },
    #[error("the required field is missing")]
    Missing,
    #[error(transparent)]
    Name(#[from] NameError),
    #[error(transparent)]
    Domain(#[from] DomainError),
    #[error(transparent)]
    Module(#[from] kernel::modules::NameError),
    #[error(transparent)]
    Address(#[from] AddressError),
    #[error(transparent)]
    Card(#[from] CardError),
    #[error("the prefix must have {least} to {most} bits, not {found}")]
    Prefix { least: u8, most: u8, found: u8 },
    #[error("{network} and {other}, which is {owner}, overlap; choose another")]
    Overlap { network: Ipv4Net, other: Ipv4Net, owner: String },
    #[error("{address} is inside {network}, which is {owner}; choose another network for the cluster")]
    Inside { address: Ipv4Addr, network: Ipv4Net, owner: String },
    #[error("{0} is the node's own address; write that of the control plane")]
    OwnAddress(Ipv4Addr),
    #[error(transparent)]
    Digest(#[from] DigestError),
    #[error(transparent)]
    Token(#[from] TokenError),
    #[error("gateway {gateway} must be another address in the network of {interface}")]
    Unreachable { gateway: Ipv4Addr, interface: Ipv4Net },
    #[error("{found} is out of range; choose a value from {least} to {most}")]
    Range { found: u32, least: u32, most: u32 },
    #[error("the list has {found} items; the maximum is {most}")]
    Many { found: usize, most: usize },
    #[error("{0}; write a size such as 10GiB")]
    Bytes(#[from] units::ParseError),
    #[error(transparent)]
    Overcommit(#[from] OvercommitError),
    #[error(transparent)]
    Registry(#[from] RegistryError),
    #[error(transparent)]
    Administrator(#[from] AdministratorError),
    #[error("{0} is listed twice; remove one")]
    Listed(String),
    #[error(
        "a password of the registry or of the mirror would be sent without TLS; write https:, or remove the credentials"
    )]
    Cleartext,
    #[error(
        "without TLS, the certificate cannot be verified: write https:, or set the verification of the registry to DISABLED"
    )]
    Unverified,
    #[error(
        "the node's own pod network needs kube-proxy; remove the field, or set cni to NONE and install a CNI plugin that \
         replaces both"
    )]
    KubeProxy,
    #[error("the name of a disk must have 1 to 64 characters, without spaces and control characters")]
    Disk,
}

fn listed(known: &[String]) -> String {
    match known {
        [] => "this object has no fields: write {}".to_owned(),
        known => format!("known fields: {}", known.join(", ")),
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FieldPath(String);

impl FieldPath {
    /// Quotes a name with other characters than those of fields, because it is printed on a console.
    pub(crate) fn field(&self, name: &str) -> Self {
        let plain = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.".contains(&byte));
        let name = if plain { name.to_owned() } else { format!("{name:?}") };
        if self.0.is_empty() { Self(name) } else { Self(format!("{}.{name}", self.0)) }
    }

    pub(crate) fn item(&self, index: usize) -> Self {
        Self(format!("{}[{index}]", self.0))
    }

    pub(crate) fn problem(&self, violation: impl Into<Violation>) -> Problem {
        Problem { field: self.to_string(), violation: violation.into() }
    }
}

impl fmt::Display for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "(top)" } else { &self.0 })
    }
}
