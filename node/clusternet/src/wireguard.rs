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

use crate::device::{AddressError, ChangeError, Device, EnsureError, LookError, PeerState, Place};
use crate::message::{self, Found};
use crate::netlink::{Netlink, RequestError};
use crate::route::{LinkState, Route};
use crate::{Change, INTERFACE, OVERHEAD, PrivateKey, PublicKey};

/// Name of WireGuard's generic netlink family.
const FAMILY: &str = "wireguard";

/// Fixed configuration of the interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    pub name: String,
    /// UDP port.
    pub port: u16,
    /// MTU in bytes: that of the path to other nodes, less [`OVERHEAD`].
    pub mtu: u32,
}

impl Default for Link {
    /// [`INTERFACE`] at [`MESH_PORT`], over Ethernet.
    fn default() -> Self {
        Self { name: INTERFACE.to_owned(), port: MESH_PORT, mtu: 1500 - OVERHEAD }
    }
}

/// The interface in the network namespace of the calling thread. Requires `CAP_NET_ADMIN`.
#[derive(Debug)]
pub struct Wireguard {
    key: PrivateKey,
    link: Link,
    /// Cached family number, constant while the module is loaded; 0 if unknown.
    family: AtomicU16,
}

impl Wireguard {
    /// Does not access the kernel.
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

    fn found(&self, netlink: &mut Netlink) -> Result<Found, RequestError> {
        let question = message::get(self.family(netlink)?, &self.link.name);
        Ok(message::found(netlink.dump(&question)?))
    }

    fn ensured<T>(&self, step: &'static str, result: Result<T, RequestError>) -> Result<T, EnsureError> {
        result.map_err(|source| EnsureError::Request { step, interface: self.link.name.clone(), source })
    }

    fn placed<T>(&self, step: &'static str, result: Result<T, RequestError>) -> Result<T, AddressError> {
        result.map_err(|source| AddressError { step, interface: self.link.name.clone(), source })
    }

    fn place_route(&self, netlink: &mut Netlink, index: u32, place: Place) -> Result<(), AddressError> {
        let flags = match self.placed("find the route", netlink.route_to(index, place))? {
            Route::Right => return Ok(()),
            Route::OtherSource => NLM_F_REPLACE,
            Route::None | Route::Elsewhere => NLM_F_EXCL,
        };
        match netlink.set_route(index, place, flags) {
            Err(error) if error.is(Errno::EEXIST) => {
                warn!(network = %place.network, "pod network has a route that does not belong to the mesh, leaving it unchanged");
                Ok(())
            }
            set => self.placed("set the route", set),
        }
    }
}

impl Device for Wireguard {
    fn ensure(&self) -> Result<PublicKey, EnsureError> {
        let Link { name, port, mtu } = &self.link;
        let mut route = self.ensured("open a socket", Netlink::route())?;
        let (state, is_adopted) = match self.ensured("read the link", route.link(name))? {
            Some(found) => (found, true),
            None => {
                match route.add_link(name) {
                    Err(error) if error.is(Errno::EOPNOTSUPP) => return Err(EnsureError::Unsupported(error)),
                    // Another process created it at the same time.
                    Err(error) if error.is(Errno::EEXIST) => {}
                    added => self.ensured("create the link", added)?,
                }
                info!(interface = name, "mesh interface created");
                let made = self.ensured("read the link", route.link(name))?;
                (self.ensured("read the link", made.ok_or(RequestError::Kernel(Errno::ENODEV)))?, false)
            }
        };
        if !state.is_wireguard {
            return Err(EnsureError::OtherKind(name.clone()));
        }
        let mut generic = self.ensured("open a socket", Netlink::generic())?;
        let mut found = self.ensured("read the key", self.found(&mut generic))?;
        let key = (found.private.as_ref() != Some(self.key.bytes())).then_some(&self.key);
        let port = (found.port != *port).then_some(*port);
        if key.is_some() || port.is_some() {
            let family = self.ensured("find the family", self.family(&mut generic))?;
            let set = generic.request(message::set(family, name, key, port), 0).map(drop);
            self.ensured("set key and port", set)?;
            found = self.ensured("read the key", self.found(&mut generic))?;
        }
        let link = !state.is_up || state.mtu != *mtu;
        if link {
            self.ensured("bring up the link", route.set_link(state.index, *mtu))?;
        }
        if is_adopted && (key.is_some() || port.is_some() || link) {
            info!(interface = name, key = key.is_some(), port = port.is_some(), link, "mesh interface repaired");
        }
        found.public.ok_or_else(|| EnsureError::NoKey(name.clone()))
    }

    fn place(&self, places: &BTreeSet<Place>) -> Result<(), AddressError> {
        let mut route = self.placed("open a socket", Netlink::route())?;
        let state = self.placed("read the link", route.link(&self.link.name))?;
        let LinkState { index, .. } = self.placed("read the link", state.ok_or(RequestError::Kernel(Errno::ENODEV)))?;
        let have = self.placed("list the addresses", route.addresses(index))?;
        let want: BTreeSet<IpNet> = places.iter().map(|place| IpNet::from(place.address)).collect();
        for address in want.iter().filter(|address| !have.contains(address)).map(IpNet::addr) {
            self.placed("add an address", route.add_address(index, address))?;
            info!(interface = self.link.name, %address, "address in the pod network set");
        }
        for place in places {
            self.place_route(&mut route, index, *place)?;
        }
        // Last, because removing an address also removes the routes with this source.
        for address in have.into_iter().filter(|address| !want.contains(address)) {
            self.placed("remove an address", route.remove_address(index, address))?;
        }
        Ok(())
    }

    fn look(&self) -> Result<BTreeMap<PublicKey, PeerState>, LookError> {
        let look = || Ok(self.found(&mut Netlink::generic()?)?.peers);
        look().map_err(|source| LookError { interface: self.link.name.clone(), source })
    }

    fn change(&self, changes: &[Change]) -> Result<(), ChangeError> {
        let change = || {
            let mut netlink = Netlink::generic()?;
            let family = self.family(&mut netlink)?;
            for message in message::changes(family, &self.link.name, changes) {
                netlink.request(message, 0)?;
            }
            Ok(())
        };
        change().map_err(|source| ChangeError { interface: self.link.name.clone(), source })
    }
}
