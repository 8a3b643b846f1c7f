//! Link, addresses and routes of the interface on the host, rtnetlink(7).

use std::net::IpAddr;

use ipnet::IpNet;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use nix::errno::Errno;
use rtnetlink::packet_route::address::{AddressAttribute, AddressHeaderFlags, AddressMessage};
use rtnetlink::packet_route::link::{InfoKind, LinkAttribute, LinkFlags, LinkInfo, LinkMessage};
use rtnetlink::packet_route::route::{RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteScope};
use rtnetlink::packet_route::{AddressFamily, RouteNetlinkMessage};
use rtnetlink::{LinkUnspec, LinkWireguard, RouteMessageBuilder};

use crate::device::Place;
use crate::netlink::{Netlink, RequestError};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LinkState {
    pub(crate) index: u32,
    pub(crate) is_wireguard: bool,
    pub(crate) is_up: bool,
    pub(crate) mtu: u32,
}

impl Netlink {
    pub(crate) fn link(&mut self, name: &str) -> Result<Option<LinkState>, RequestError> {
        let mut question = LinkMessage::default();
        question.attributes.push(LinkAttribute::IfName(name.to_owned()));
        let answer = match self.request(RouteNetlinkMessage::GetLink(question), 0) {
            Err(error) if error.is(Errno::ENODEV) => return Ok(None),
            answer => answer?,
        };
        Ok(answer.iter().find_map(|message| match message {
            RouteNetlinkMessage::NewLink(link) => Some(state(link)),
            _ => None,
        }))
    }

    /// Creates the link. `EOPNOTSUPP`: the kernel has no WireGuard. `EEXIST`: the link exists.
    pub(crate) fn add_link(&mut self, name: &str) -> Result<(), RequestError> {
        let link = LinkWireguard::new(name).build();
        self.request(RouteNetlinkMessage::NewLink(link), NLM_F_CREATE | NLM_F_EXCL).map(drop)
    }

    pub(crate) fn set_link(&mut self, index: u32, mtu: u32) -> Result<(), RequestError> {
        let link = LinkUnspec::new_with_index(index).mtu(mtu).up().build();
        self.request(RouteNetlinkMessage::SetLink(link), 0).map(drop)
    }

    pub(crate) fn addresses(&mut self, index: u32) -> Result<Vec<IpNet>, RequestError> {
        let all = self.dump(&RouteNetlinkMessage::GetAddress(AddressMessage::default()))?;
        Ok(all
            .iter()
            .filter_map(|message| match message {
                RouteNetlinkMessage::NewAddress(address) if address.header.index == index => address_of(address),
                _ => None,
            })
            .collect())
    }

    pub(crate) fn add_address(&mut self, index: u32, address: IpAddr) -> Result<(), RequestError> {
        let mut message = address_message(index, address.into());
        // Disable duplicate address detection: an IPv6 address would be tentative first, and the kernel rejects routes
        // from tentative addresses (EINVAL). WireGuard links have no other hosts.
        message.header.flags = AddressHeaderFlags::Nodad;
        let message = RouteNetlinkMessage::NewAddress(message);
        self.request(message, NLM_F_CREATE | NLM_F_REPLACE).map(drop)
    }

    /// Removes an address, which also removes the routes with this source.
    pub(crate) fn remove_address(&mut self, index: u32, address: IpNet) -> Result<(), RequestError> {
        match self.request(RouteNetlinkMessage::DelAddress(address_message(index, address)), 0) {
            Err(error) if error.is(Errno::EADDRNOTAVAIL) => Ok(()),
            answer => answer.map(drop),
        }
    }

    pub(crate) fn route_to(&mut self, index: u32, place: Place) -> Result<Route, RequestError> {
        let mut question = RouteMessage::default();
        question.header.address_family = family(place.network.addr());
        let all = self.dump(&RouteNetlinkMessage::GetRoute(question))?;
        let routes: Vec<_> = all
            .iter()
            .filter_map(|message| match message {
                RouteNetlinkMessage::NewRoute(route) => route_of(route, place.network),
                _ => None,
            })
            .collect();
        Ok(match routes.iter().find(|(to, _)| *to == Some(index)) {
            Some((_, from)) if *from == Some(place.address) => Route::Right,
            Some(_) => Route::OtherSource,
            None if routes.is_empty() => Route::None,
            None => Route::Elsewhere,
        })
    }

    /// Routes the network through the link with this source address. `flags` select the handling of an existing route.
    pub(crate) fn set_route(&mut self, index: u32, place: Place, flags: u16) -> Result<(), RequestError> {
        let builder = RouteMessageBuilder::<IpAddr>::new().output_interface(index).scope(RouteScope::Link);
        let built = builder
            .destination_prefix(place.network.addr(), place.network.prefix_len())
            .and_then(|builder| builder.pref_source(place.address))
            .map(RouteMessageBuilder::build);
        // Address and prefix belong to the same family, so the prefix is valid.
        let Ok(route) = built else { return Err(Errno::EINVAL.into()) };
        self.request(RouteNetlinkMessage::NewRoute(route), NLM_F_CREATE | flags).map(drop)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    None,
    Right,
    /// Route through the link, with another or no source address.
    OtherSource,
    /// Route through another link.
    Elsewhere,
}

fn state(link: &LinkMessage) -> LinkState {
    let mut state = LinkState {
        index: link.header.index,
        is_wireguard: false,
        is_up: link.header.flags.contains(LinkFlags::Up),
        mtu: 0,
    };
    for attribute in &link.attributes {
        match attribute {
            LinkAttribute::Mtu(mtu) => state.mtu = *mtu,
            LinkAttribute::LinkInfo(infos) => {
                state.is_wireguard = infos.contains(&LinkInfo::Kind(InfoKind::Wireguard));
            }
            _ => {}
        }
    }
    state
}

fn family(address: IpAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}

fn address_message(index: u32, address: IpNet) -> AddressMessage {
    let mut message = AddressMessage::default();
    message.header.index = index;
    message.header.family = family(address.addr());
    message.header.prefix_len = address.prefix_len();
    message.attributes = vec![AddressAttribute::Local(address.addr()), AddressAttribute::Address(address.addr())];
    message
}

/// The local address: `IFA_LOCAL` for IPv4, `IFA_ADDRESS` for IPv6.
fn address_of(message: &AddressMessage) -> Option<IpNet> {
    let mut found = None;
    for attribute in &message.attributes {
        match attribute {
            AddressAttribute::Local(address) => found = Some(*address),
            AddressAttribute::Address(address) => found = found.or(Some(*address)),
            _ => {}
        }
    }
    IpNet::new(found?, message.header.prefix_len).ok()
}

fn route_of(message: &RouteMessage, network: IpNet) -> Option<(Option<u32>, Option<IpAddr>)> {
    let header = &message.header;
    if header.table != RouteHeader::RT_TABLE_MAIN || header.destination_prefix_length != network.prefix_len() {
        return None;
    }
    let (mut to, mut from, mut destination) = (None, None, None);
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Destination(address) => destination = ip(address),
            RouteAttribute::Oif(index) => to = Some(*index),
            RouteAttribute::PrefSource(address) => from = ip(address),
            _ => {}
        }
    }
    (destination == Some(network.addr())).then_some((to, from))
}

fn ip(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(address) => Some((*address).into()),
        RouteAddress::Inet6(address) => Some((*address).into()),
        _ => None,
    }
}
