//! Reasons to reject a Node, or a part of it, as a peer.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::ParseKeyError;

/// An invalid or conflicting field of a Node. The texts are for administrators.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum MemberError {
    #[error("invalid public key: {0}")]
    Key(ParseKeyError),
    #[error("the older node {owner} has the same public key; one of them has a copied disk")]
    KeyTaken { owner: String },
    #[error("this node has the same public key; one of them has a copied disk")]
    OwnKey,
    #[error("no InternalIP")]
    NoAddress,
    #[error("InternalIP {0:?} is not an address")]
    Address(String),
    /// InternalIP that a node cannot have, or that is in a pod network: packets to it would go through the mesh.
    #[error("InternalIP {0} cannot be the address of a node")]
    UnusableAddress(IpAddr),
    #[error("pod range {0:?} is not a network")]
    Range(String),
    /// Range that the allocator does not assign.
    #[error("pod range {0} is not a node's part of a pod network")]
    Foreign(IpNet),
    #[error("pod range {range} belongs to the older node {owner}")]
    RangeTaken { range: IpNet, owner: String },
}

impl MemberError {
    pub(crate) const REASONS: [&str; 5] = ["key", "key_taken", "address", "range", "range_taken"];

    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Key(_) => "key",
            Self::KeyTaken { .. } | Self::OwnKey => "key_taken",
            Self::NoAddress | Self::Address(_) | Self::UnusableAddress(_) => "address",
            Self::Range(_) | Self::Foreign(_) => "range",
            Self::RangeTaken { .. } => "range_taken",
        }
    }
}
