//! IPv4 addresses of machines and networks.

use std::net::{Ipv4Addr, SocketAddrV4};

use ipnet::Ipv4Net;

use crate::API_PORT;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    #[error("{0:?} is not an IPv4 address, such as 192.0.2.1")]
    Address(String),
    #[error("{0:?} is not an address with a prefix, such as 192.0.2.10/24")]
    Interface(String),
    #[error("{0:?} is not an address with a port, such as 192.0.2.10:6443")]
    Server(String),
    #[error("{0:?} is not a network, such as 10.96.0.0/16")]
    Network(String),
    #[error("a machine cannot have the address {0}")]
    NoMachine(Ipv4Addr),
    #[error("{0} is the first or last address of its network, which a machine cannot have")]
    End(Ipv4Net),
    #[error("network {0} has host bits; write {network}", network = .0.trunc())]
    HostBits(Ipv4Net),
    #[error("network {0} needs a prefix from 1 to 30")]
    Prefix(Ipv4Net),
    #[error("network {0} has loopback, multicast or unspecified addresses; choose a private one, such as 10.96.0.0/16")]
    Reserved(Ipv4Net),
}

pub fn host(text: &str) -> Result<Ipv4Addr, AddressError> {
    let address: Ipv4Addr = text.parse().map_err(|_| AddressError::Address(text.to_owned()))?;
    machine(address)
}

fn machine(address: Ipv4Addr) -> Result<Ipv4Addr, AddressError> {
    let first = address.octets()[0];
    if first == 0 || first >= 224 || address.is_loopback() {
        Err(AddressError::NoMachine(address))
    } else {
        Ok(address)
    }
}

/// Parses the address of an API server. The port is [`API_PORT`] if omitted.
pub fn server(text: &str) -> Result<SocketAddrV4, AddressError> {
    let Some((address, port)) = text.split_once(':') else {
        return Ok(SocketAddrV4::new(host(text)?, API_PORT));
    };
    let address = host(address)?;
    match port.parse() {
        Ok(port @ 1..) => Ok(SocketAddrV4::new(address, port)),
        _ => Err(AddressError::Server(text.to_owned())),
    }
}

pub fn interface(text: &str) -> Result<Ipv4Net, AddressError> {
    let interface = with_prefix(text).filter(|interface| interface.prefix_len() > 0);
    let interface = interface.ok_or_else(|| AddressError::Interface(text.to_owned()))?;
    let address = machine(interface.addr())?;
    // Networks of one or two addresses have no network or broadcast address (RFC 3021).
    if interface.prefix_len() < 31 && [interface.network(), interface.broadcast()].contains(&address) {
        return Err(AddressError::End(interface));
    }
    Ok(interface)
}

/// Parses a network for many hosts, without host bits.
pub fn network(text: &str) -> Result<Ipv4Net, AddressError> {
    let network = with_prefix(text).ok_or_else(|| AddressError::Network(text.to_owned()))?;
    if !(1..=30).contains(&network.prefix_len()) {
        return Err(AddressError::Prefix(network));
    }
    if network != network.trunc() {
        return Err(AddressError::HostBits(network));
    }
    let is_reserved = |end: Ipv4Addr| end.octets()[0] == 0 || end.is_loopback() || end.is_multicast();
    let has_multicast = network.contains(&Ipv4Addr::new(224, 0, 0, 0));
    if has_multicast || [network.network(), network.broadcast()].into_iter().any(is_reserved) {
        return Err(AddressError::Reserved(network));
    }
    Ok(network)
}

// The parser of ipnet accepts octets with leading zeros, which other programs read as octal numbers.
fn with_prefix(text: &str) -> Option<Ipv4Net> {
    let (address, prefix) = text.split_once('/')?;
    Ipv4Net::new(address.parse().ok()?, prefix.parse().ok()?).ok()
}

pub fn reaches(interface: Ipv4Net, other: Ipv4Addr) -> bool {
    other != interface.addr() && interface.contains(&other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_machines_cannot_have_are_rejected() {
        for text in ["0.0.0.0", "127.0.0.1", "224.0.0.1", "255.255.255.255", "240.0.0.1"] {
            assert_eq!(host(text), Err(AddressError::NoMachine(text.parse().unwrap())));
        }
        assert_eq!(host("fe80::1"), Err(AddressError::Address("fe80::1".into())));
        for text in ["192.0.2.0/24", "192.0.2.255/24"] {
            assert_eq!(interface(text), Err(AddressError::End(text.parse().unwrap())));
        }
        assert_eq!(interface("192.0.2.0/31").unwrap().to_string(), "192.0.2.0/31");
        for text in ["192.0.2.1", "192.0.2.1/0", "192.0.2.1/33", "192.0.2.010/24", "router/24"] {
            assert_eq!(interface(text), Err(AddressError::Interface(text.into())));
        }
    }

    #[test]
    fn a_server_without_a_port_has_the_default_port() {
        let parse = |text: &str| server(text).map(|server| server.to_string());
        assert_eq!(parse("192.0.2.10").as_deref(), Ok("192.0.2.10:6443"));
        assert_eq!(parse("192.0.2.10:443").as_deref(), Ok("192.0.2.10:443"));
        for text in ["192.0.2.10:", "192.0.2.10:0", "192.0.2.10:65536", "192.0.2.10:api", "192.0.2.10:1:2"] {
            assert_eq!(parse(text), Err(AddressError::Server(text.into())));
        }
        assert_eq!(parse("granary.example:6443"), Err(AddressError::Address("granary.example".into())));
        assert_eq!(parse("127.0.0.1"), Err(AddressError::NoMachine(Ipv4Addr::LOCALHOST)));
    }

    #[test]
    fn a_router_is_in_the_same_network() {
        let interface = interface("192.0.2.10/24").unwrap();
        assert!(reaches(interface, Ipv4Addr::new(192, 0, 2, 1)));
        assert!(!reaches(interface, interface.addr()));
        assert!(!reaches(interface, Ipv4Addr::new(192, 0, 3, 1)));
    }

    #[test]
    fn errors_of_networks_name_the_remedy() {
        let error = |text: &str| network(text).unwrap_err().to_string();
        assert_eq!(error("10.96.0.1/16"), "network 10.96.0.1/16 has host bits; write 10.96.0.0/16");
        assert_eq!(error("10.96.0.0/31"), "network 10.96.0.0/31 needs a prefix from 1 to 30");
        for text in ["0.0.0.0/8", "127.0.0.0/16", "64.0.0.0/2", "192.0.0.0/2", "224.0.0.0/8"] {
            assert_eq!(network(text), Err(AddressError::Reserved(text.parse().unwrap())));
        }
        for text in ["10.96.0.0", "::/64"] {
            assert_eq!(error(text), format!("{text:?} is not a network, such as 10.96.0.0/16"));
        }
    }
}
