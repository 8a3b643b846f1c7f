//! What is wrong with a configuration, field by field.

use std::fmt;
use std::net::Ipv4Addr;

use cluster::{AddressError, DigestError, OvercommitError, TokenError};
use ipnet::Ipv4Net;

use crate::name::NameError;

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum ParseError {
    /// It is no JSON at all.
    #[error("the configuration is no JSON: mend it at the place that is named")]
    Syntax(#[source] serde_json::Error),
    /// The program cannot read any configuration.
    #[error("this build of the node cannot read configurations: build it anew")]
    Build,
    /// Every problem that there is, a line each.
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

/// What is wrong with one field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {what}")]
pub struct Problem {
    /// The field, as its path from the top: `network.static.address`, `timeServers[1]`. The top itself is `(top)`.
    pub field: String,
    /// What is wrong, and what would be right.
    pub what: What,
}

/// What is wrong with a field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum What {
    /// There is no such field.
    #[error("there is no such field here; there {}", listed(.known))]
    Unknown {
        /// Those that there are.
        known: Vec<String>,
    },
    /// It stands there more than once.
    #[error("it stands here twice; leave one")]
    Twice,
    /// It excludes another that is there too.
    #[error("only one of it and {other} can be there; leave one")]
    Excludes {
        /// The other.
        other: String,
    },
    /// It is of another kind.
    #[error("it is {found}, and has to be {wanted}")]
    Kind {
        /// What it has to be.
        wanted: &'static str,
        /// What it is.
        found: &'static str,
    },
    /// No such word.
    #[error("{found:?} is none of its values, {}", .known.join(", "))]
    Word {
        /// What it is.
        found: String,
        /// The words that there are.
        known: Vec<String>,
    },
    /// It has to be there.
    #[error("it is missing, and cannot be left out here")]
    Missing,
    /// No name.
    #[error(transparent)]
    Name(#[from] NameError),
    /// Not a name of a kernel module.
    #[error(transparent)]
    Module(#[from] kmod::NameError),
    /// No address.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// A network of an unfit size.
    #[error("a network with a prefix of {least} to {most} bits is wanted, not of {found}")]
    Size {
        /// The least.
        least: u8,
        /// The most.
        most: u8,
        /// What it has.
        found: u8,
    },
    /// Two networks that have addresses in common.
    #[error("{network} and {other}, which is {whose}, have addresses in common; choose another")]
    Overlap {
        /// The network.
        network: Ipv4Net,
        /// The other.
        other: Ipv4Net,
        /// The field of the other.
        whose: String,
    },
    /// An address in a network that belongs to the cluster.
    #[error("{address} is inside {network}, which is {whose}; choose another network for the cluster")]
    Inside {
        /// The address.
        address: Ipv4Addr,
        /// The network.
        network: Ipv4Net,
        /// The field of the network.
        whose: String,
    },
    /// The node's address where another machine's is wanted.
    #[error("{0} is the node's own address; the control plane's is wanted")]
    Own(Ipv4Addr),
    /// No digest.
    #[error(transparent)]
    Digest(#[from] DigestError),
    /// No token. What stands there is not shown.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// A router that the node cannot reach.
    #[error("{gateway} is not another address of the network of {interface}, so that it cannot be reached")]
    Unreachable {
        /// The router.
        gateway: Ipv4Addr,
        /// The node's own address.
        interface: Ipv4Net,
    },
    /// A number out of its range.
    #[error("{found} is out of range: {least} to {most} is possible")]
    Range {
        /// What it is.
        found: u64,
        /// The least.
        least: u64,
        /// The most.
        most: u64,
    },
    /// More items than can be used.
    #[error("it has {found} items, {most} at most are used")]
    Many {
        /// How many.
        found: usize,
        /// How many at most.
        most: usize,
    },
    /// No size.
    #[error("{0}; a size is wanted, such as 10GiB")]
    Bytes(#[from] units::ParseError),
    /// No factor.
    #[error(transparent)]
    Overcommit(#[from] OvercommitError),
    /// No name of a disk.
    #[error("a disk's name is 1 to 64 characters without spaces or control characters")]
    Disk,
}

fn listed(known: &[String]) -> String {
    match known {
        [] => "are none: write {}".to_owned(),
        [one] => format!("is {one}"),
        many => format!("are {}", many.join(", ")),
    }
}

/// Where in the configuration something is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Path(String);

impl Path {
    /// A name that could not be one of ours is quoted: it ends on a console.
    pub(crate) fn field(&self, name: &str) -> Self {
        let plain = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.".contains(&byte));
        let name = if plain { name.to_owned() } else { format!("{name:?}") };
        if self.0.is_empty() { Self(name) } else { Self(format!("{}.{name}", self.0)) }
    }

    pub(crate) fn item(&self, index: usize) -> Self {
        Self(format!("{}[{index}]", self.0))
    }

    pub(crate) fn problem(&self, what: impl Into<What>) -> Problem {
        Problem { field: self.to_string(), what: what.into() }
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "(top)" } else { &self.0 })
    }
}
