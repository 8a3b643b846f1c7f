//! The mesh: WireGuard tunnels for pod traffic between nodes, configured from the Node objects of the cluster.
//!
//! A node creates a key ([`PrivateKey::ensure`]) and publishes its public half in an annotation of its Node
//! ([`cluster::PUBLIC_KEY_ANNOTATION`]). [`run`] watches all Nodes: [`plan`] determines the peers and the reasons for
//! rejected Nodes, [`diff`] the changes of the kernel's state, and a [`Device`] ([`Wireguard`], by netlink) applies
//! them.
//!
//! An interface of an earlier run is adopted and never removed, so that traffic continues while the program is
//! replaced. The AllowedIPs of a peer are limited to the pod range of its Node; WireGuard drops packets from other
//! addresses. Admission policies, not this crate, control who may create Nodes and which ranges they get.
//! [`Metrics::neighbours`] lists the peers.
//!
//! Requires `CAP_NET_ADMIN` and Linux 5.6 with the module `wireguard` loaded.
//!
//! ```no_run
//! # async fn example(client: kube::Client, registry: &prometheus::Registry) -> Result<(), Box<dyn std::error::Error>> {
//! use std::sync::Arc;
//! use clusternet::{Link, LostSessions, Metrics, PodNetwork, PrivateKey, Settings, Wireguard};
//!
//! let key = PrivateKey::ensure(&dir::Dir::open("/data/pki".as_ref())?)?;
//! let device = Arc::new(Wireguard::new(key.into_inner(), Link::default()));
//! let metrics = Metrics::register(registry, device.clone())?;
//! let networks = vec![PodNetwork { network: "10.244.0.0/16".parse()?, node_prefix: 24 }];
//! let (lost_sessions, interval) = (LostSessions::default(), Settings::INTERVAL);
//! let settings = Settings { client, node: "one".into(), networks, device, lost_sessions, metrics, interval };
//! let mesh = supervisor::Supervisor::start("mesh", supervisor::Settings::default(), move |cx| {
//!     clusternet::run(cx, settings.clone())
//! });
//! mesh.handle().healthy().await?;
//! # Ok(())
//! # }
//! ```
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
pub use message::{Cost, cost};
pub use metrics::{Metrics, Neighbour};
pub use netlink::RequestError;
pub use network::PodNetwork;
pub use peers::{Mesh, MeshPlan, OwnNode, plan};
pub use wireguard::{Link, Wireguard};

pub const INTERFACE: &str = "clusternet";

/// Maximum overhead of WireGuard per packet in bytes: 40 for IPv6, 8 for UDP, 32 for its header and tag. IPv4 needs 20
/// bytes less.
pub const OVERHEAD: u32 = 80;
