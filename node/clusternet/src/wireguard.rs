//! The WireGuard interface in the kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU16, Ordering};

use cluster::MESH_PORT;
use ipnet::IpNet;
use netlink_packet_core::{NLM_F_EXCL, NLM_F_REPLACE};
use netlink_packet_generic::GenlMessage;
use netlink_packet_generic::ctrl::nlas::GenlCtrlAttrs;
use netlink_packet_generic::ctrl::{GenlCtrl, GenlCtrlCmd};
use nix::errno::Errno;
use tracing::{info, warn};

use crate::device::{Device, DeviceError, PeerState, Place};
use crate::message::{self, InterfaceState, Message};
use crate::netlink::{Netlink, RequestError};
use crate::route::{LinkState, Route};
use crate::{Change, INTERFACE, OVERHEAD, PrivateKey, PublicKey};

const FAMILY: &str = "wireguard";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    pub name: String,
    pub port: u16,
    /// MTU in bytes: the MTU of the path to other nodes minus [`OVERHEAD`].
    pub mtu: u32,
}

impl Default for Link {
    /// Link with the name [`INTERFACE`] and the port [`MESH_PORT`], over Ethernet.
    fn default() -> Self {
        Self { name: INTERFACE.to_owned(), port: MESH_PORT, mtu: 1500 - OVERHEAD }
    }
}

/// The interface in the network namespace of the calling thread. Requires `CAP_NET_ADMIN`.
#[derive(Debug)]
pub struct Wireguard {
    key: PrivateKey,
    link: Link,
    /// Cached family number, constant while the module is loaded. 0 if unknown.
    family: AtomicU16,
}

impl Wireguard {
    /// Creates the device without accessing the kernel.
    pub const fn new(key: PrivateKey, link: Link) -> Self {
        Self { key, link, family: AtomicU16::new(0) }
    }

    fn family(&self, netlink: &mut Netlink) -> Result<u16, RequestError> {
        let known = self.family.load(Ordering::Relaxed);
        if known != 0 {
            return Ok(known);
        }
        let nlas = vec![GenlCtrlAttrs::FamilyName(FAMILY.to_owned())];
        let question = GenlMessage::from_payload(GenlCtrl { cmd: GenlCtrlCmd::GetFamily, nlas });
        let answer = netlink.request(question, 0)?;
        let number =
            answer.into_iter().flat_map(|message| message.payload.nlas).find_map(|attribute| match attribute {
                GenlCtrlAttrs::FamilyId(number) => Some(number),
                _ => None,
            });
        let number = number.ok_or(RequestError::Kernel(Errno::ENOENT))?;
        self.family.store(number, Ordering::Relaxed);
        Ok(number)
    }

    fn found(&self, netlink: &mut Netlink) -> Result<InterfaceState, RequestError> {
        let question = message::get(self.family(netlink)?, &self.link.name);
        Ok(message::found(netlink.dump(&question)?))
    }

    fn step<T>(&self, step: &'static str, result: Result<T, RequestError>) -> Result<T, DeviceError> {
        result.map_err(|source| DeviceError::Request { step, interface: self.link.name.clone(), source })
    }

    fn send(&self, step: &'static str, messages: impl FnOnce(u16, &str) -> Vec<Message>) -> Result<(), DeviceError> {
        let send = || {
            let mut netlink = Netlink::generic()?;
            let family = self.family(&mut netlink)?;
            for message in messages(family, &self.link.name) {
                netlink.request(message, 0)?;
            }
            Ok(())
        };
        self.step(step, send())
    }

    fn place_route(&self, netlink: &mut Netlink, index: u32, place: Place) -> Result<(), DeviceError> {
        let flags = match self.step("find the route", netlink.route_to(index, place))? {
            Route::Right => return Ok(()),
            Route::OtherSource => NLM_F_REPLACE,
            Route::None | Route::Elsewhere => NLM_F_EXCL,
        };
        match netlink.set_route(index, place, flags) {
            Err(error) if error.is(Errno::EEXIST) => {
                warn!(network = %place.network, "pod network has a route that does not belong to the mesh, leaving it unchanged");
                Ok(())
            }
            set => self.step("set the route", set),
        }
    }
}

impl Device for Wireguard {
    fn ensure(&self) -> Result<PublicKey, DeviceError> {
        let Link { name, port, mtu } = &self.link;
        let mut route = self.step("open a socket", Netlink::route())?;
        let (state, is_adopted) = match self.step("read the link", route.link(name))? {
            Some(found) => (found, true),
            None => {
                match route.add_link(name) {
                    Err(error) if error.is(Errno::EOPNOTSUPP) => return Err(DeviceError::Unsupported(error)),
                    // Another process has created the link at the same time.
                    Err(error) if error.is(Errno::EEXIST) => {}
                    added => self.step("create the link", added)?,
                }
                info!(interface = name, "mesh interface created");
                let created = self.step("read the link", route.link(name))?;
                (self.step("read the link", created.ok_or(RequestError::Kernel(Errno::ENODEV)))?, false)
            }
        };
        if !state.is_wireguard {
            return Err(DeviceError::OtherKind(name.clone()));
        }
        let mut generic = self.step("open a socket", Netlink::generic())?;
        let mut found = self.step("read the key", self.found(&mut generic))?;
        let key = (found.private.as_ref() != Some(self.key.bytes())).then_some(&self.key);
        let port = (found.port != *port).then_some(*port);
        if key.is_some() || port.is_some() {
            let family = self.step("find the family", self.family(&mut generic))?;
            let set = generic.request(message::set(family, name, key, port), 0).map(drop);
            self.step("set key and port", set)?;
            found = self.step("read the key", self.found(&mut generic))?;
        }
        let link = !state.is_up || state.mtu != *mtu;
        if link {
            self.step("bring up the link", route.set_link(state.index, *mtu))?;
        }
        if is_adopted && (key.is_some() || port.is_some() || link) {
            info!(interface = name, key = key.is_some(), port = port.is_some(), link, "mesh interface repaired");
        }
        found.public.ok_or_else(|| DeviceError::NoKey(name.clone()))
    }

    fn place(&self, places: &BTreeSet<Place>) -> Result<(), DeviceError> {
        let mut route = self.step("open a socket", Netlink::route())?;
        let state = self.step("read the link", route.link(&self.link.name))?;
        let LinkState { index, .. } = self.step("read the link", state.ok_or(RequestError::Kernel(Errno::ENODEV)))?;
        let have = self.step("list the addresses", route.addresses(index))?;
        let want: BTreeSet<IpNet> = places.iter().map(|place| IpNet::from(place.address)).collect();
        for address in want.iter().filter(|address| !have.contains(address)).map(IpNet::addr) {
            self.step("add an address", route.add_address(index, address))?;
            info!(interface = self.link.name, %address, "address in the pod network set");
        }
        for place in places {
            self.place_route(&mut route, index, *place)?;
        }
        // Remove addresses last, because removing an address also removes the routes with this source.
        for address in have.into_iter().filter(|address| !want.contains(address)) {
            self.step("remove an address", route.remove_address(index, address))?;
        }
        Ok(())
    }

    fn look(&self) -> Result<BTreeMap<PublicKey, PeerState>, DeviceError> {
        let look = || Ok(self.found(&mut Netlink::generic()?)?.peers);
        self.step("list the peers", look())
    }

    fn change(&self, changes: &[Change]) -> Result<(), DeviceError> {
        self.send("change the peers", |family, interface| message::changes(family, interface, changes))
    }

    fn begin_sessions(&self, peers: &[PublicKey]) -> Result<(), DeviceError> {
        self.send("begin sessions", |family, interface| message::sessions(family, interface, peers))
    }
}
