#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod controller;
mod device;
mod diff;
mod key;
mod lost_sessions;
mod member;
mod member_error;
mod message;
mod metrics;
mod netlink;
mod network;
mod peers;
mod route;
mod traffic;
mod wireguard;

pub use controller::{RunError, Settings, run};
pub use device::{Device, DeviceError, PeerState, Place, Traffic};
pub use diff::{Change, Peer, Peers, diff};
pub use key::{KeyError, ParseKeyError, PrivateKey, PublicKey};
pub use lost_sessions::LostSessions;
pub use member::Member;
pub use member_error::MemberError;
pub use metrics::{Metrics, Neighbour};
pub use netlink::RequestError;
pub use network::PodNetwork;
pub use peers::{Mesh, MeshPlan, OwnNode, plan};
pub use wireguard::{Link, Wireguard};

pub const INTERFACE: &str = "clusternet";

/// Maximum overhead of WireGuard per packet in bytes: 40 for IPv6, 8 for UDP, 32 for its header and tag. IPv4 needs 20
/// bytes less.
pub const OVERHEAD: u32 = 80;
