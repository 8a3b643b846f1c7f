//! The network device, by netlink.

use std::io;
use std::net::{IpAddr, Ipv4Addr};

use config::Interface;
use futures::TryStreamExt;
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::address::{AddressAttribute, AddressMessage};
use rtnetlink::packet_route::link::{LinkAttribute, LinkFlags, LinkLayerType, LinkMessage};
use rtnetlink::{Handle, LinkUnspec, RouteMessageBuilder};
use tokio::task::JoinSet;

use crate::message::Hardware;

/// Why a device cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// No netlink socket.
    #[error("cannot open a netlink socket")]
    Socket(#[source] io::Error),
    /// The kernel refused a request.
    #[error("cannot {step}")]
    Request {
        /// What was asked for.
        step: &'static str,
        /// The kernel's answer.
        #[source]
        source: rtnetlink::Error,
    },
    /// Nothing but loopback.
    #[error("there is no network interface: give the machine a virtio network device")]
    None,
    /// No Ethernet.
    #[error("network interface {0} has no Ethernet address; DHCP needs one, or give the node a static address")]
    NotEthernet(String),
}

/// What a device is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Addressing {
    /// Its one address.
    pub interface: Interface,
    /// The way to everywhere else.
    pub gateway: Option<Ipv4Addr>,
    /// The largest packet in bytes, if it is not the device's own.
    pub mtu: Option<u32>,
    /// Name servers, the preferred one first.
    pub name_servers: Vec<Ipv4Addr>,
    /// Servers that clocks are set by, the preferred one first.
    pub time_servers: Vec<Ipv4Addr>,
}

/// A device that is up.
#[derive(Debug)]
pub struct Link {
    netlink: Handle,
    /// One task, which ends with this.
    _driver: JoinSet<()>,
    index: u32,
    name: String,
    hardware: Option<Hardware>,
}

fn step(step: &'static str) -> impl FnOnce(rtnetlink::Error) -> LinkError {
    move |source| LinkError::Request { step, source }
}

impl Link {
    /// Brings loopback and the first other device up.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn first() -> Result<Self, LinkError> {
        Self::find(|_| true).await
    }

    /// Brings loopback and the device of this name up.
    ///
    /// # Errors
    /// As [`Link::first`].
    pub async fn named(name: &str) -> Result<Self, LinkError> {
        Self::find(|link| name_of(link) == Some(name)).await
    }

    async fn find(wanted: impl Fn(&LinkMessage) -> bool) -> Result<Self, LinkError> {
        let (connection, netlink, _) = rtnetlink::new_connection().map_err(LinkError::Socket)?;
        let mut driver = JoinSet::new();
        driver.spawn(connection);
        let links: Vec<LinkMessage> =
            netlink.link().get().execute().try_collect().await.map_err(step("list the network interfaces"))?;
        let (loopback, others): (Vec<_>, Vec<_>) =
            links.into_iter().partition(|link| link.header.flags.contains(LinkFlags::Loopback));
        for link in &loopback {
            let up = LinkUnspec::new_with_index(link.header.index).up().build();
            netlink.link().set(up).execute().await.map_err(step("bring loopback up"))?;
        }
        let link = others.iter().find(|link| wanted(link)).ok_or(LinkError::None)?;
        let index = link.header.index;
        let up = LinkUnspec::new_with_index(index).up().build();
        netlink.link().set(up).execute().await.map_err(step("bring the network interface up"))?;
        let hardware = hardware_of(link);
        Ok(Self { netlink, _driver: driver, index, name: name_of(link).unwrap_or("?").to_owned(), hardware })
    }

    /// The kernel's name of it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its Ethernet address.
    ///
    /// # Errors
    /// [`LinkError::NotEthernet`].
    pub fn hardware(&self) -> Result<Hardware, LinkError> {
        self.hardware.ok_or_else(|| LinkError::NotEthernet(self.name.clone()))
    }

    /// Gives it this address and no other, the route and, if the device can, the size of packets. Idempotent.
    ///
    /// # Errors
    /// [`LinkError::Request`].
    pub async fn apply(&self, what: &Addressing) -> Result<(), LinkError> {
        let Interface { address, prefix } = what.interface;
        let new = self.netlink.address().add(self.index, address.into(), prefix).replace().execute();
        new.await.map_err(step("give the network interface its address"))?;
        self.remove_but(Some(what.interface)).await?;
        if let Some(mtu) = what.mtu {
            let set = LinkUnspec::new_with_index(self.index).mtu(mtu).build();
            // A device has its own limit, and the network works without.
            if let Err(error) = self.netlink.link().set(set).execute().await {
                tracing::warn!(device = self.name, mtu, %error, "cannot set the largest packet (MTU)");
            }
        }
        if let Some(gateway) = what.gateway {
            let route = RouteMessageBuilder::<Ipv4Addr>::new().gateway(gateway).build();
            self.netlink.route().add(route).replace().execute().await.map_err(step("set the default route"))?;
        }
        tracing::info!(device = self.name, address = %what.interface, "network configured");
        Ok(())
    }

    /// Takes all its addresses away, and with them its routes.
    ///
    /// # Errors
    /// [`LinkError::Request`].
    pub async fn clear(&self) -> Result<(), LinkError> {
        self.remove_but(None).await
    }

    async fn remove_but(&self, wanted: Option<Interface>) -> Result<(), LinkError> {
        let all = self.netlink.address().get().set_link_index_filter(self.index).execute();
        let all: Vec<AddressMessage> = all.try_collect().await.map_err(step("list the addresses"))?;
        let others = all.into_iter().filter(|message| message.header.family == AddressFamily::Inet);
        for message in others.filter(|message| interface_of(message) != wanted) {
            self.netlink.address().del(message).execute().await.map_err(step("take an address away"))?;
        }
        Ok(())
    }
}

fn name_of(link: &LinkMessage) -> Option<&str> {
    link.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::IfName(name) => Some(name.as_str()),
        _ => None,
    })
}

fn hardware_of(link: &LinkMessage) -> Option<Hardware> {
    link.attributes.iter().filter(|_| link.header.link_layer_type == LinkLayerType::Ether).find_map(|attribute| {
        match attribute {
            LinkAttribute::Address(bytes) => bytes.as_slice().try_into().ok(),
            _ => None,
        }
    })
}

/// The device's own address: `IFA_LOCAL`, rtnetlink(7).
fn interface_of(message: &AddressMessage) -> Option<Interface> {
    message.attributes.iter().find_map(|attribute| match attribute {
        AddressAttribute::Local(IpAddr::V4(address)) => {
            Some(Interface { address: *address, prefix: message.header.prefix_len })
        }
        _ => None,
    })
}
