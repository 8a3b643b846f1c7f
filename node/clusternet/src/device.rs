//! The interface, seen from the controller.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::SystemTime;

use ipnet::IpNet;

use crate::{Change, Peer, PublicKey, RequestError};

/// What the controller does with the kernel. Methods wait for the kernel; each may be called again at any time, and
/// goes on where an earlier call stopped.
pub trait Device: Send + Sync + 'static {
    /// Makes the interface what it shall be, but for addresses and peers, and tells the public key that the kernel
    /// computes of the private one. An interface that is there is adopted with its peers, and what is right is not
    /// touched.
    ///
    /// # Errors
    /// [`EnsureError`].
    fn ensure(&self) -> Result<PublicKey, EnsureError>;

    /// Gives the interface these addresses and no others, and sends what goes to the networks through it.
    ///
    /// # Errors
    /// [`AddressError`].
    fn place(&self, places: &BTreeSet<Place>) -> Result<(), AddressError>;

    /// The peers as they are.
    ///
    /// # Errors
    /// [`LookError`].
    fn look(&self) -> Result<BTreeMap<PublicKey, Seen>, LookError>;

    /// Makes these changes, in this order. After an error some of them are made.
    ///
    /// # Errors
    /// [`ChangeError`].
    fn change(&self, changes: &[Change]) -> Result<(), ChangeError>;
}

/// The node's place in one of the pod networks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The node's own address. The host sends from it: others drop what comes from anywhere else.
    pub address: IpAddr,
    /// All pods of the cluster.
    pub network: IpNet,
}

/// A peer that the kernel has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// What it is.
    pub peer: Peer,
    /// What goes to and fro.
    pub traffic: Traffic,
}

/// What goes between two nodes. Bytes count from the moment at which the kernel was told of the peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// When both agreed on keys, the last time. They do it again every two minutes in which something is sent.
    pub handshake: Option<SystemTime>,
    /// Bytes received from it.
    pub received: u64,
    /// Bytes sent to it.
    pub sent: u64,
}

/// Why there is no interface.
#[derive(Debug, thiserror::Error)]
pub enum EnsureError {
    /// The kernel does not know WireGuard.
    #[error("the kernel has no WireGuard: load its module wireguard")]
    Unsupported(#[source] RequestError),
    /// Something else has its name.
    #[error("network interface {0} is none of WireGuard's; remove it, or give it another name")]
    OtherKind(String),
    /// The kernel does not do it.
    #[error("mesh interface {interface}: cannot {step}")]
    Request {
        /// What was asked for.
        step: &'static str,
        /// Of which.
        interface: String,
        /// The kernel's answer.
        #[source]
        source: RequestError,
    },
    /// The kernel has no key of it, just after it was set.
    #[error("network interface {0} has no key after it was set")]
    NoKey(String),
}

/// Why the node has no place in the pod network.
#[derive(Debug, thiserror::Error)]
#[error("mesh interface {interface}: cannot {step}")]
pub struct AddressError {
    /// What was asked for.
    pub(crate) step: &'static str,
    /// Of which.
    pub(crate) interface: String,
    /// The kernel's answer.
    pub(crate) source: RequestError,
}

/// The peers cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("mesh interface {interface}: cannot list its peers")]
pub struct LookError {
    /// Whose.
    pub(crate) interface: String,
    /// The kernel's answer.
    pub(crate) source: RequestError,
}

/// The peers cannot be changed. Some of the changes are made.
#[derive(Debug, thiserror::Error)]
#[error("mesh interface {interface}: cannot change its peers")]
pub struct ChangeError {
    /// Whose.
    pub(crate) interface: String,
    /// The kernel's answer.
    pub(crate) source: RequestError,
}
