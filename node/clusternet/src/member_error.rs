//! Why a Node, or a part of what it says, has no place in the mesh.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::ParseKeyError;

/// What is wrong with what a Node says. The texts are for an administrator.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum Refusal {
    /// Its annotation.
    #[error("its public key is none: {0}")]
    Key(ParseKeyError),
    /// It has the key of another.
    #[error("its public key is that of the older node {owner}; one of them has a copied disk")]
    KeyTaken {
        /// Who keeps it.
        owner: String,
    },
    /// It has the key of this very node, which no peer can have.
    #[error("its public key is that of this node; one of them has a copied disk")]
    OwnKey,
    /// It does not say where it is.
    #[error("it has no InternalIP")]
    NoAddress,
    /// No text that is an address.
    #[error("its InternalIP {0:?} is no address")]
    Address(String),
    /// Nobody can have this address, or a pod has it: packets to it would go through the mesh.
    #[error("its InternalIP {0} is no address of a node")]
    NoNode(IpAddr),
    /// No text that is a network.
    #[error("its range {0:?} is no network")]
    Range(String),
    /// The allocator does not give such a range.
    #[error("its range {0} is no node's part of a pod network")]
    Foreign(IpNet),
    /// It has the range of another.
    #[error("its range {range} is that of the older node {owner}")]
    RangeTaken {
        /// What both claim.
        range: IpNet,
        /// Who keeps it.
        owner: String,
    },
}

/// Kinds of [`Refusal`], for metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// [`Refusal::Key`].
    Key,
    /// [`Refusal::KeyTaken`], [`Refusal::OwnKey`].
    KeyTaken,
    /// [`Refusal::NoAddress`], [`Refusal::Address`], [`Refusal::NoNode`].
    Address,
    /// [`Refusal::Range`], [`Refusal::Foreign`].
    Range,
    /// [`Refusal::RangeTaken`].
    RangeTaken,
}

impl Refusal {
    /// Its kind.
    pub const fn reason(&self) -> Reason {
        match self {
            Self::Key(_) => Reason::Key,
            Self::KeyTaken { .. } | Self::OwnKey => Reason::KeyTaken,
            Self::NoAddress | Self::Address(_) | Self::NoNode(_) => Reason::Address,
            Self::Range(_) | Self::Foreign(_) => Reason::Range,
            Self::RangeTaken { .. } => Reason::RangeTaken,
        }
    }
}

impl Reason {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Key, Self::KeyTaken, Self::Address, Self::Range, Self::RangeTaken];

    /// The label.
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
