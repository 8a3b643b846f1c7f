//! The network device, configured by netlink.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Mutex, PoisonError};

use cluster::Card;
use cluster::card::shown;
use futures::TryStreamExt;
use ipnet::Ipv4Net;
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::address::{AddressAttribute, AddressMessage};
use rtnetlink::packet_route::link::{LinkAttribute, LinkFlags, LinkLayerType, LinkMessage};
use rtnetlink::packet_route::route::{RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol};
use rtnetlink::{Handle, LinkUnspec, RouteMessageBuilder};
use tokio::task::JoinSet;

use crate::error::NetworkError;
use crate::message::Hardware;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Addressing {
    pub interface: Ipv4Net,
    pub gateway: Option<Ipv4Addr>,
    /// MTU in bytes, if it differs from that of the device.
    pub mtu: Option<u32>,
    /// Name servers in order of preference.
    pub name_servers: Vec<Ipv4Addr>,
    /// NTP servers in order of preference.
    pub time_servers: Vec<Ipv4Addr>,
}

/// Target of leases: a [`Link`], or a fake in tests.
pub(crate) trait Device: Sync {
    /// Name in the kernel.
    fn name(&self) -> &str;
    /// Replaces all addresses with this one, and sets the default route and the MTU of the lease. They replace those of
    /// another program, except for default routes with a metric. Without a router, the route of the former lease is
    /// removed, and that of another program stays. Without an MTU, the device keeps its current one: the mesh and the
    /// pods have the MTU of the start, and their packets would not fit a lower one. Idempotent.
    fn apply(&self, addressing: &Addressing) -> impl Future<Output = Result<(), NetworkError>> + Send;
    /// Removes all addresses, which also removes their routes.
    fn clear(&self) -> impl Future<Output = Result<(), NetworkError>> + Send;
}

#[derive(Debug)]
pub(crate) struct Link {
    netlink: Handle,
    /// Task of the netlink connection; it ends when this is dropped.
    _driver: JoinSet<()>,
    index: u32,
    name: String,
    hardware: Option<Hardware>,
    /// Gateway of the default route that [`Device::apply`] has set.
    gateway: Mutex<Option<Ipv4Addr>>,
}

fn step(step: &'static str) -> impl FnOnce(rtnetlink::Error) -> NetworkError {
    move |source| NetworkError::Request { step, source }
}

impl Link {
    pub(crate) async fn open(card: &Card) -> Result<Self, NetworkError> {
        let (connection, netlink, _) = rtnetlink::new_connection().map_err(NetworkError::Netlink)?;
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
        let wanted = |link: &&LinkMessage| {
            let name = name_of(link).unwrap_or_default();
            card.matches(name, hardware_of(link), driver_of(name).as_deref())
        };
        let Some(link) = others.iter().find(wanted) else {
            if others.is_empty() {
                return Err(NetworkError::NoCard);
            }
            let found = others.iter().map(described).collect();
            return Err(NetworkError::OtherCards { wanted: card.clone(), found });
        };
        let index = link.header.index;
        let up = LinkUnspec::new_with_index(index).up().build();
        netlink.link().set(up).execute().await.map_err(step("bring the network interface up"))?;
        Ok(Self {
            netlink,
            _driver: driver,
            index,
            name: name_of(link).unwrap_or("?").to_owned(),
            hardware: hardware_of(link),
            gateway: Mutex::default(),
        })
    }

    pub(crate) fn hardware(&self) -> Result<Hardware, NetworkError> {
        self.hardware.ok_or_else(|| NetworkError::NotEthernet(self.name.clone()))
    }

    async fn remove_but(&self, wanted: Option<Ipv4Net>) -> Result<(), NetworkError> {
        let all = self.netlink.address().get().set_link_index_filter(self.index).execute();
        let all: Vec<AddressMessage> = all.try_collect().await.map_err(step("list the addresses"))?;
        let others = all.into_iter().filter(|message| message.header.family == AddressFamily::Inet);
        for message in others.filter(|message| interface_of(message) != wanted) {
            self.netlink.address().del(message).execute().await.map_err(step("remove an address"))?;
        }
        Ok(())
    }

    fn set_gateway(&self, gateway: Option<Ipv4Addr>) {
        *self.gateway.lock().unwrap_or_else(PoisonError::into_inner) = gateway;
    }

    /// Removes the default route that `apply` has set: `RouteMessageBuilder` sets `RTPROT_STATIC` and no metric.
    /// Another program may have replaced it by a route with another gateway.
    async fn remove_default_route(&self, gateway: Ipv4Addr) -> Result<(), NetworkError> {
        let all = self.netlink.route().get(RouteMessageBuilder::<Ipv4Addr>::new().build()).execute();
        let all: Vec<RouteMessage> = all.try_collect().await.map_err(step("list the routes"))?;
        let is_default = |route: &RouteMessage| {
            route.header.destination_prefix_length == 0
                && route.header.table == RouteHeader::RT_TABLE_MAIN
                && route.header.protocol == RouteProtocol::Static
                && route.attributes.contains(&RouteAttribute::Oif(self.index))
                && route.attributes.contains(&RouteAttribute::Gateway(RouteAddress::Inet(gateway)))
                && !route.attributes.iter().any(|attribute| matches!(attribute, RouteAttribute::Priority(_)))
        };
        for route in all.into_iter().filter(is_default) {
            self.netlink.route().del(route).execute().await.map_err(step("remove the default route"))?;
        }
        Ok(())
    }
}

impl Device for Link {
    fn name(&self) -> &str {
        &self.name
    }

    async fn apply(&self, addressing: &Addressing) -> Result<(), NetworkError> {
        let (address, prefix) = (addressing.interface.addr(), addressing.interface.prefix_len());
        let new = self.netlink.address().add(self.index, address.into(), prefix).replace().execute();
        new.await.map_err(step("set the address of the network interface"))?;
        self.remove_but(Some(addressing.interface)).await?;
        if let Some(mtu) = addressing.mtu {
            let set = LinkUnspec::new_with_index(self.index).mtu(mtu).build();
            // The device may not support the MTU. The network works without it.
            if let Err(error) = self.netlink.link().set(set).execute().await {
                tracing::warn!(device = self.name, mtu, %error, "cannot set the MTU");
            }
        }
        let former = *self.gateway.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(gateway) = addressing.gateway {
            let route = RouteMessageBuilder::<Ipv4Addr>::new().gateway(gateway).build();
            self.netlink.route().add(route).replace().execute().await.map_err(step("set the default route"))?;
            self.set_gateway(Some(gateway));
        } else if let Some(gateway) = former {
            self.remove_default_route(gateway).await?;
            self.set_gateway(None);
        }
        tracing::info!(device = self.name, address = %addressing.interface, "network configured");
        Ok(())
    }

    async fn clear(&self) -> Result<(), NetworkError> {
        self.remove_but(None).await?;
        self.set_gateway(None);
        Ok(())
    }
}

fn name_of(link: &LinkMessage) -> Option<&str> {
    link.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::IfName(name) => Some(name.as_str()),
        _ => None,
    })
}

/// Name of the driver of an interface. `None` for an interface without a device.
fn driver_of(name: &str) -> Option<String> {
    let driver = fs::read_link(format!("/sys/class/net/{name}/device/driver")).ok()?;
    Some(driver.file_name()?.to_string_lossy().into_owned())
}

/// The properties by which a configuration can choose a card.
fn described(link: &LinkMessage) -> String {
    let name = name_of(link).unwrap_or_default();
    let mac = hardware_of(link).map(|mac| format!(", address {}", shown(mac))).unwrap_or_default();
    let driver = driver_of(name).map(|driver| format!(", driver {driver}")).unwrap_or_default();
    format!("{name}{mac}{driver}")
}

fn hardware_of(link: &LinkMessage) -> Option<Hardware> {
    link.attributes.iter().filter(|_| link.header.link_layer_type == LinkLayerType::Ether).find_map(|attribute| {
        match attribute {
            LinkAttribute::Address(bytes) => bytes.as_slice().try_into().ok(),
            _ => None,
        }
    })
}

/// `LOOPBACK_IFINDEX` of the kernel's `include/net/flow.h`: the index of `lo` in each network namespace.
const LOOPBACK: u32 = 1;

/// Adds an address to loopback. The kernel accepts packets to the address from every interface, until rules drop them.
/// Idempotent.
pub async fn add_to_loopback(address: Ipv4Addr) -> Result<(), NetworkError> {
    let (connection, netlink, _) = rtnetlink::new_connection().map_err(NetworkError::Netlink)?;
    let mut driver = JoinSet::new();
    driver.spawn(connection);
    let new = netlink.address().add(LOOPBACK, address.into(), 32).replace().execute();
    new.await.map_err(step("add an address to loopback"))
}

/// Address of the device itself: `IFA_LOCAL`, rtnetlink(7).
fn interface_of(message: &AddressMessage) -> Option<Ipv4Net> {
    message.attributes.iter().find_map(|attribute| match attribute {
        AddressAttribute::Local(IpAddr::V4(address)) => Ipv4Net::new(*address, message.header.prefix_len).ok(),
        _ => None,
    })
}
