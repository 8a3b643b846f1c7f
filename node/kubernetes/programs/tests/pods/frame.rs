//! Frames that no socket of a network protocol sends. A pod may open raw sockets (`NET_RAW`).

use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::AsRawFd as _;

use ktest_support::Namespace;
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::{AddressFamily, LinkAddr, MsgFlags, SockFlag, SockType, sendto, socket};

/// VLAN tags of IEEE 802.1Q and of providers. A tag with zeros after it names no VLAN: the receiver removes it and
/// processes the rest.
pub const TAG: [u8; 4] = [0x81, 0x00, 0, 0];
pub const PROVIDERS_TAG: [u8; 4] = [0x88, 0xa8, 0, 0];

const IPV4: [u8; 2] = [0x08, 0x00];
const ARP: [u8; 2] = [0x08, 0x06];
const UDP: u8 = 17;

pub type Mac = [u8; 6];

const BROADCAST: Mac = [0xff; 6];

#[derive(Clone, Copy)]
pub struct Frame<'a> {
    pub tags: &'a [[u8; 4]],
    pub source: Ipv4Addr,
    pub destination: SocketAddrV4,
}

impl Frame<'_> {
    pub fn send(self, from: (&Namespace, &'static str), to: (&Namespace, &'static str)) {
        self.send_as(mac(from.0, from.1), from, to);
    }

    pub fn send_as(self, sender: Mac, from: (&Namespace, &'static str), to: (&Namespace, &'static str)) {
        let bytes = [&mac(to.0, to.1)[..], &sender, &self.tags.concat(), &IPV4, &self.packet()].concat();
        send(from, bytes);
    }

    /// RFC 791 and RFC 768; the datagram has no checksum.
    fn packet(self) -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0, 29, 0, 0, 0, 0, 64, UDP, 0, 0];
        packet.extend(self.source.octets());
        packet.extend(self.destination.ip().octets());
        let sum: u32 = packet.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
        let sum = !u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap();
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
        for field in [9, self.destination.port(), 9, 0] {
            packet.extend(field.to_be_bytes());
        }
        packet.push(b'?');
        packet
    }
}

/// Announces on the link that `address` is at the MAC address `at` (a gratuitous ARP request, RFC 5227). Hosts that
/// have an entry for the address update it immediately.
pub fn claim(address: Ipv4Addr, at: Mac, from: (&Namespace, &'static str)) {
    let address = address.octets();
    // Ethernet, IPv4, lengths of their addresses, request.
    let head = [0, 1, 8, 0, 6, 4, 0, 1];
    send(from, [&BROADCAST[..], &at, &ARP, &head, &at, &address, &[0; 6], &address].concat());
}

fn send((from, interface): (&Namespace, &'static str), bytes: Vec<u8>) {
    let link = link(from, interface);
    from.run(move || {
        let socket = socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, None).unwrap();
        assert_eq!(sendto(socket.as_raw_fd(), &bytes, &link, MsgFlags::empty()), Ok(bytes.len()));
    });
}

pub fn mac(host: &Namespace, interface: &'static str) -> Mac {
    link(host, interface).addr().unwrap()
}

fn link(host: &Namespace, interface: &'static str) -> LinkAddr {
    host.run(move || {
        let mut all = getifaddrs().unwrap().filter(|found| found.interface_name == interface);
        all.find_map(|found| found.address?.as_link_addr().copied()).unwrap()
    })
}
