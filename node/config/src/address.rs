//! Addresses of the node's network.

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

/// An IPv4 address with the length of its network's prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Interface {
    /// The address.
    pub address: Ipv4Addr,
    /// Bits of the network's prefix, at most 32.
    pub prefix: u8,
}

/// Where an API server is: an IPv4 address with a port, which is 6443 where none is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Server {
    /// The machine.
    pub address: Ipv4Addr,
    /// Its port.
    pub port: u16,
}

impl FromStr for Server {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let Some((address, port)) = text.split_once(':') else {
            return Ok(Self { address: host(text)?, port: programs::API_PORT });
        };
        let address = host(address)?;
        match port.parse() {
            Ok(port @ 1..) => Ok(Self { address, port }),
            _ => Err(AddressError::Port(text.to_owned())),
        }
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.address, self.port)
    }
}

/// The text is no address that a machine can have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// No address.
    #[error("{0:?} is no IPv4 address, such as 192.0.2.1")]
    Form(String),
    /// No `/`, or no number behind it.
    #[error("{0:?} is no address with a prefix, such as 192.0.2.10/24")]
    Prefix(String),
    /// Behind the `:` is no port.
    #[error("{0:?} is no address with a port, such as 192.0.2.10:6443")]
    Port(String),
    /// Nobody has it.
    #[error("{0} is no address of a machine")]
    NoMachine(Ipv4Addr),
    /// It stands for the network, or for all that are in it.
    #[error("{address} is the {end} address of its network /{prefix}, which no machine can have")]
    End {
        /// The address.
        address: Ipv4Addr,
        /// First or last.
        end: &'static str,
        /// Bits of the prefix.
        prefix: u8,
    },
}

/// Reads the address of a machine.
///
/// # Errors
/// [`AddressError::Form`], [`AddressError::NoMachine`].
pub(crate) fn host(text: &str) -> Result<Ipv4Addr, AddressError> {
    let address: Ipv4Addr = text.parse().map_err(|_| AddressError::Form(text.to_owned()))?;
    let nobody = address.is_unspecified()
        || address.is_broadcast()
        || address.is_multicast()
        || address.is_loopback()
        || address.octets()[0] == 0
        || address.octets()[0] >= 240;
    if nobody { Err(AddressError::NoMachine(address)) } else { Ok(address) }
}

impl Interface {
    /// Whether the address is another one of the same network.
    pub fn reaches(self, other: Ipv4Addr) -> bool {
        let mask = mask(self.prefix);
        other != self.address && (other.to_bits() ^ self.address.to_bits()) & mask == 0
    }
}

fn mask(prefix: u8) -> u32 {
    u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0)
}

impl FromStr for Interface {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let (address, prefix) = text.split_once('/').ok_or_else(|| AddressError::Prefix(text.to_owned()))?;
        let address = host(address)?;
        let prefix = match prefix.parse() {
            Ok(prefix @ 1..=32) => prefix,
            _ => return Err(AddressError::Prefix(text.to_owned())),
        };
        // A network of one or two addresses has none to spare (RFC 3021).
        let inside = address.to_bits() & !mask(prefix);
        if prefix < 31 && (inside == 0 || inside == !mask(prefix)) {
            let end = if inside == 0 { "first" } else { "last" };
            return Err(AddressError::End { address, end, prefix });
        }
        Ok(Self { address, prefix })
    }
}

impl fmt::Display for Interface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_no_machine_can_have_is_refused() {
        for text in ["0.0.0.0", "127.0.0.1", "224.0.0.1", "255.255.255.255", "240.0.0.1"] {
            assert_eq!(host(text), Err(AddressError::NoMachine(text.parse().unwrap())));
        }
        assert_eq!(host("fe80::1"), Err(AddressError::Form("fe80::1".into())));
        let end = |text: &str| match text.parse::<Interface>() {
            Err(AddressError::End { end, .. }) => Some(end),
            _ => None,
        };
        assert_eq!(end("192.0.2.0/24"), Some("first"));
        assert_eq!(end("192.0.2.255/24"), Some("last"));
        assert_eq!(end("192.0.2.0/31"), None);
    }

    #[test]
    fn a_server_without_a_port_has_the_usual_one() {
        let read = |text: &str| text.parse::<Server>().map(|server| server.to_string());
        assert_eq!(read("192.0.2.10").as_deref(), Ok("192.0.2.10:6443"));
        assert_eq!(read("192.0.2.10:443").as_deref(), Ok("192.0.2.10:443"));
        for text in ["192.0.2.10:", "192.0.2.10:0", "192.0.2.10:65536", "192.0.2.10:api", "192.0.2.10:1:2"] {
            assert_eq!(read(text), Err(AddressError::Port(text.into())));
        }
        assert_eq!(read("granary.example:6443"), Err(AddressError::Form("granary.example".into())));
        assert_eq!(read("127.0.0.1"), Err(AddressError::NoMachine(Ipv4Addr::LOCALHOST)));
    }

    #[test]
    fn a_router_is_in_the_same_network() {
        let interface: Interface = "192.0.2.10/24".parse().unwrap();
        assert!(interface.reaches(Ipv4Addr::new(192, 0, 2, 1)));
        assert!(!interface.reaches(interface.address));
        assert!(!interface.reaches(Ipv4Addr::new(192, 0, 3, 1)));
    }
}
