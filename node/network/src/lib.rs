//! The node's own network: loopback, the one device, its address, the way out.
//!
//! [`Network::configure`] gives the device its address, from the configuration or by DHCP; [`Network::keep`] renews
//! what DHCP gave. The protocol is a pure state machine ([`client`]) on messages that are read and written here
//! ([`message`]); only [`Session`] and [`Link`] talk to the kernel.
//!
//! IPv4 only, on Ethernet. An address that DHCP does not renew is kept while no server says anything: a node that
//! drops it helps nobody, and its certificates are for this address. A node that gets another address has to start
//! anew, which is for the caller to do.
//!
//! ```no_run
//! # async fn example() -> Result<(), network::NetworkError> {
//! let network = network::Network::open(config::Network::default()).await?;
//! let addressing = network.configure().await?;
//! println!("this node is {}", addressing.interface.address);
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod client;
mod lease;
mod link;
pub mod message;
mod session;

use std::future;

use config::{Addresses, Static};
use tokio::sync::Mutex;
use tracing::{error, warn};

use crate::client::Change;
pub use crate::lease::Lease;
pub use crate::link::{Addressing, Link, LinkError};
pub use crate::session::{Session, SessionError};

/// Why there is no network.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// The device.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// DHCP.
    #[error(transparent)]
    Session(#[from] SessionError),
}

/// The network of a node.
#[derive(Debug)]
pub struct Network {
    settings: config::Network,
    link: Link,
    /// With DHCP.
    session: Option<Mutex<Session>>,
}

impl Network {
    /// Brings the devices up. None has an address after this.
    ///
    /// # Errors
    /// [`NetworkError`].
    pub async fn open(settings: config::Network) -> Result<Self, NetworkError> {
        let link = Link::first().await?;
        Self::on(link, settings).await
    }

    /// The same on a device of the caller's choice.
    ///
    /// # Errors
    /// [`NetworkError`].
    pub async fn on(link: Link, settings: config::Network) -> Result<Self, NetworkError> {
        let session = match settings.addresses {
            Addresses::Dhcp => Some(Mutex::new(Session::open(&link).await?)),
            Addresses::Static(_) => None,
        };
        Ok(Self { settings, link, session })
    }

    /// Gives the device its address. With DHCP this waits until a server answers, for ever if need be. Cancel-safe.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn configure(&self) -> Result<Addressing, LinkError> {
        let addressing = match (self.settings.addresses, &self.session) {
            (Addresses::Static(Static { interface, gateway }), _) => Addressing {
                interface,
                gateway,
                mtu: self.settings.mtu,
                name_servers: self.settings.name_servers.clone(),
                time_servers: Vec::new(),
            },
            (Addresses::Dhcp, Some(session)) => {
                let mut session = session.lock().await;
                loop {
                    if let Change::Bound(lease) = session.next().await {
                        break self.with(lease);
                    }
                }
            }
            (Addresses::Dhcp, None) => future::pending().await,
        };
        self.link.apply(&addressing).await?;
        Ok(addressing)
    }

    /// Renews what [`configure`](Self::configure) gave, and tells of each change but of the address. Returns when
    /// DHCP gives another address than this one, which is not taken. Never without DHCP. Cancel-safe.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn keep(&self, now: &Addressing, mut changed: impl FnMut(&Addressing)) -> Result<Addressing, LinkError> {
        let Some(session) = &self.session else { return future::pending().await };
        let mut session = session.lock().await;
        let mut now = now.clone();
        loop {
            match session.next().await {
                Change::Bound(lease) => {
                    let next = self.with(lease);
                    if next.interface != now.interface {
                        return Ok(next);
                    }
                    // The address may have been taken away meanwhile.
                    self.link.apply(&next).await?;
                    if next != now {
                        changed(&next);
                        now = next;
                    }
                }
                Change::Expired(lease) => {
                    let (device, address) = (self.link.name(), lease.interface.address);
                    warn!(device, %address, "no DHCP server has renewed the lease; the address is kept, asking goes on");
                }
                Change::Lost(lease) => {
                    let (device, address) = (self.link.name(), lease.interface.address);
                    error!(device, %address, "the DHCP server takes the address back; asking for another");
                    self.link.clear().await?;
                }
            }
        }
    }

    /// What the configuration says goes before what DHCP says.
    fn with(&self, lease: Lease) -> Addressing {
        let config::Network { mtu, name_servers, .. } = &self.settings;
        Addressing {
            interface: lease.interface,
            gateway: lease.gateway,
            mtu: mtu.or(lease.mtu.map(u32::from)),
            name_servers: if name_servers.is_empty() { lease.name_servers } else { name_servers.clone() },
            time_servers: lease.time_servers,
        }
    }
}
