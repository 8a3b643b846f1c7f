//! Reasons to reject a Node, or a part of it, as a peer.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::ParseKeyError;

/// An invalid or conflicting field of a Node. The texts are for administrators.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum MemberError {
    /// Invalid annotation.
    #[error("invalid public key: {0}")]
    Key(ParseKeyError),
    /// Public key of an older Node.
    #[error("the public key is that of the older node {owner}; one of them has a copied disk")]
    KeyTaken { owner: String },
    /// Public key of this node.
    #[error("the public key is that of this node; one of them has a copied disk")]
    OwnKey,
    #[error("no InternalIP")]
    NoAddress,
    /// InternalIP that is not an IP address.
    #[error("InternalIP {0:?} is not an address")]
    Address(String),
    /// InternalIP that a node cannot have, or in a pod network: packets to it would go through the mesh.
    #[error("InternalIP {0} cannot be the address of a node")]
    UnusableAddress(IpAddr),
    /// Range that is not an IP network.
    #[error("pod range {0:?} is not a network")]
    Range(String),
    /// Range that the allocator does not assign.
    #[error("pod range {0} is not a node's part of a pod network")]
    Foreign(IpNet),
    /// Range of an older Node.
    #[error("pod range {range} is that of the older node {owner}")]
    RangeTaken { range: IpNet, owner: String },
}

/// Kinds of [`MemberError`], for metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// [`MemberError::Key`].
    Key,
    /// [`MemberError::KeyTaken`], [`MemberError::OwnKey`].
    KeyTaken,
    /// [`MemberError::NoAddress`], [`MemberError::Address`], [`MemberError::UnusableAddress`].
    Address,
    /// [`MemberError::Range`], [`MemberError::Foreign`].
    Range,
    /// [`MemberError::RangeTaken`].
    RangeTaken,
}

impl MemberError {
    pub const fn reason(&self) -> Reason {
        match self {
            Self::Key(_) => Reason::Key,
            Self::KeyTaken { .. } | Self::OwnKey => Reason::KeyTaken,
            Self::NoAddress | Self::Address(_) | Self::UnusableAddress(_) => Reason::Address,
            Self::Range(_) | Self::Foreign(_) => Reason::Range,
            Self::RangeTaken { .. } => Reason::RangeTaken,
        }
    }
}

impl Reason {
    pub const ALL: [Self; 5] = [Self::Key, Self::KeyTaken, Self::Address, Self::Range, Self::RangeTaken];

    /// Value of the metric label.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Key => "key",
            Self::KeyTaken => "key_taken",
            Self::Address => "address",
            Self::Range => "range",
            Self::RangeTaken => "range_taken",
        }
    }
}
