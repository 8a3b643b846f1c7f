//! Interface between the controller and the kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::SystemTime;

use ipnet::IpNet;

use crate::{Change, Peer, PublicKey, RequestError};

/// Operations on the mesh interface. Methods block on the kernel and are idempotent: a call completes an earlier one
/// that was interrupted.
pub trait Device: Send + Sync + 'static {
    /// Creates and configures the interface except for addresses and peers, and returns the public key that the kernel
    /// derives from the private one. Adopts an existing interface with its peers, and changes only what differs.
    fn ensure(&self) -> Result<PublicKey, EnsureError>;

    /// Sets exactly these addresses, and routes the networks through the interface.
    fn place(&self, places: &BTreeSet<Place>) -> Result<(), AddressError>;

    /// Reads the peers.
    fn look(&self) -> Result<BTreeMap<PublicKey, PeerState>, LookError>;

    /// Applies the changes in this order. On an error, some of them are applied.
    fn change(&self, changes: &[Change]) -> Result<(), ChangeError>;
}

/// Address of the node in one of the pod networks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Address of the node. The host sends from it, because other nodes drop packets from other addresses.
    pub address: IpAddr,
    /// The pod network of the cluster.
    pub network: IpNet,
}

/// A peer in the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerState {
    pub peer: Peer,
    pub traffic: Traffic,
}

/// Traffic with a peer. The kernel counts bytes from the creation of the peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Time of the last handshake. Peers repeat it every two minutes while they send.
    pub handshake: Option<SystemTime>,
    /// Bytes received from the peer.
    pub received: u64,
    /// Bytes sent to the peer.
    pub sent: u64,
}

/// The interface cannot be created or configured.
#[derive(Debug, thiserror::Error)]
pub enum EnsureError {
    #[error("the kernel does not support WireGuard; load its module wireguard")]
    Unsupported(#[source] RequestError),
    #[error("network interface {0} exists and is not a WireGuard interface; remove or rename it")]
    OtherKind(String),
    #[error("mesh interface {interface}: cannot {step}")]
    Request {
        step: &'static str,
        interface: String,
        #[source]
        source: RequestError,
    },
    /// The kernel returned no public key after the private key was set.
    #[error("network interface {0} has no public key after the private key was set")]
    NoKey(String),
}

/// The addresses or routes cannot be set.
#[derive(Debug, thiserror::Error)]
#[error("mesh interface {interface}: cannot {step}")]
pub struct AddressError {
    pub(crate) step: &'static str,
    pub(crate) interface: String,
    pub(crate) source: RequestError,
}

/// The peers cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("mesh interface {interface}: cannot list the peers")]
pub struct LookError {
    pub(crate) interface: String,
    pub(crate) source: RequestError,
}

/// The peers cannot be changed. Some of the changes are applied.
#[derive(Debug, thiserror::Error)]
#[error("mesh interface {interface}: cannot change the peers")]
pub struct ChangeError {
    pub(crate) interface: String,
    pub(crate) source: RequestError,
}
