//! The mesh: what one node's pods send to another node's goes through WireGuard, and who is in it, the cluster's Nodes
//! say.
//!
//! A node has a key ([`PrivateKey::ensure`]) and tells its public half in an annotation of its own Node
//! ([`ANNOTATION`]). [`run`] watches all Nodes: [`wanted`] says who shall be a peer, and which Nodes are refused for
//! what; [`diff`] what the kernel lacks of that; a [`Device`] does it: [`Wireguard`], by netlink.
//!
//! The interface is adopted if an earlier run has left it, and never removed: packets go on while the program is
//! replaced. A peer gets no address beyond the range that its Node was given: WireGuard drops what comes from others.
//! Nothing here decides who may be a Node, or which range it has. [`Neighbours`] tells who the peers are.
//!
//! `WireGuard` is in Linux 5.6 and later (module `wireguard`, which has to be loaded).
//!
//! ```no_run
//! # async fn example(client: kube::Client, registry: &prometheus::Registry) -> Result<(), Box<dyn std::error::Error>> {
//! use std::sync::Arc;
//! use clusternet::{Link, Metrics, PodNetwork, PrivateKey, Settings, Wireguard};
//!
//! let key = PrivateKey::ensure(&dir::Dir::open("/data/pki".as_ref())?)?;
//! let device = Arc::new(Wireguard::new(key.into_inner(), Link::default()));
//! let metrics = Metrics::register(registry, device.clone())?;
//! let networks = vec![PodNetwork::new("10.244.0.0/16".parse()?, 24)?];
//! let settings = Settings { client, node: "one".into(), networks, device, metrics };
//! let mesh = supervisor::Supervisor::start("mesh", supervisor::Settings::default(), move |cx| {
//!     clusternet::run(cx, settings.clone())
//! });
//! mesh.handle().healthy().await?;
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod annotation;
mod controller;
mod device;
mod diff;
mod key;
mod member;
mod message;
mod metrics;
mod neighbours;
mod netlink;
mod network;
mod peers;
mod refusal;
mod route;
mod traffic;
mod wireguard;

pub use annotation::ANNOTATION;
pub use controller::{RunError, Settings, run};
pub use device::{AddressError, ChangeError, Device, EnsureError, LookError, Place, Seen, Traffic};
pub use diff::{Change, Peer, Peers, diff};
pub use key::{KeyError, ParseKeyError, PrivateKey, PublicKey};
pub use member::Member;
pub use message::{Cost, cost};
pub use metrics::Metrics;
pub use neighbours::{Neighbour, Neighbours};
pub use netlink::RequestError;
pub use network::{PodNetwork, PodNetworkError};
pub use peers::{Mesh, Own, Wanted, wanted};
pub use refusal::{Reason, Refusal};
pub use wireguard::{Link, Wireguard};

/// The name of the interface.
pub const INTERFACE: &str = "clusternet";

/// The UDP port at which every node hears the others.
pub const PORT: u16 = 7838;

/// What WireGuard adds to a packet, in bytes, with IPv6 outside: IPv6 40, UDP 8, its own header and tag 32. With IPv4 it
/// is 20 less.
pub const OVERHEAD: u32 = 80;
