//! Interface between the controller and the kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::SystemTime;

use ipnet::IpNet;

use crate::{Change, Peer, PublicKey, RequestError};

/// Operations on the mesh interface. Methods block on the kernel and are idempotent: a repeated call completes an
/// interrupted one.
pub trait Device: Send + Sync + 'static {
    /// Creates and configures the interface except for addresses and peers, and returns the public key that the kernel
    /// derives from the private one. Adopts an existing interface with its peers, and changes only what differs.
    fn ensure(&self) -> Result<PublicKey, DeviceError>;

    /// Sets exactly these addresses, and routes the networks through the interface.
    fn place(&self, places: &BTreeSet<Place>) -> Result<(), DeviceError>;

    fn look(&self) -> Result<BTreeMap<PublicKey, PeerState>, DeviceError>;

    /// Applies the changes in this order. On an error, some of them are applied.
    fn change(&self, changes: &[Change]) -> Result<(), DeviceError>;

    /// Begins a session with each of these peers. Does not wait for the session: the kernel repeats the handshake for
    /// 90 s.
    fn begin_sessions(&self, peers: &[PublicKey]) -> Result<(), DeviceError>;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Address of the node. The host uses it as the source address, because other nodes drop packets from other
    /// addresses.
    pub address: IpAddr,
    pub network: IpNet,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerState {
    pub peer: Peer,
    pub traffic: Traffic,
}

/// Traffic with a peer. The kernel counts bytes from the creation of the peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Time of the last handshake. While peers send, they repeat the handshake every two minutes.
    pub handshake: Option<SystemTime>,
    pub received: u64,
    pub sent: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    #[error("the kernel does not support WireGuard; load its module wireguard")]
    Unsupported(#[source] RequestError),
    #[error("network interface {0} exists and is not a WireGuard interface; remove or rename it")]
    OtherKind(String),
    #[error("mesh interface {interface}: cannot {step}")]
    Request { step: &'static str, interface: String, source: RequestError },
    #[error("network interface {0} has no public key after the private key was set")]
    NoKey(String),
}
