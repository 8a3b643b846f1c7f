//! IPv4 networks in CIDR notation.

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

/// An IPv4 network with room for hosts: `10.96.0.0/16`. The address has no host bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Network {
    address: Ipv4Addr,
    prefix: u8,
}

/// A text that is no [`Network`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NetworkError {
    /// Not an address, a slash and a number.
    #[error("{0:?} is no network: write it like 10.96.0.0/16")]
    Form(String),
    /// No room for hosts, or no such prefix.
    #[error("network {0:?} needs a prefix from 1 to 30")]
    Prefix(String),
    /// An address inside the network instead of its first one.
    #[error("network {given:?} has host bits: write it as {meant}")]
    HostBits {
        /// What was written.
        given: String,
        /// The network that has this address.
        meant: Network,
    },
}

impl Network {
    /// The network with this first address; `None` if that has host bits, or if there is no room for hosts.
    pub const fn new(address: Ipv4Addr, prefix: u8) -> Option<Self> {
        if prefix == 0 || prefix > 30 || address.to_bits() & !(u32::MAX << (32 - prefix)) != 0 {
            return None;
        }
        Some(Self { address, prefix })
    }

    /// The address with the number `number`, if the network has it and it is not the broadcast address.
    pub fn host(self, number: u32) -> Option<Ipv4Addr> {
        let size = 1_u32 << (32 - self.prefix);
        (number > 0 && number < size - 1).then(|| Ipv4Addr::from_bits(self.address.to_bits() + number))
    }

    /// Its first address.
    pub const fn address(self) -> Ipv4Addr {
        self.address
    }

    /// The first and the last address that hosts can have.
    pub const fn hosts(self) -> (Ipv4Addr, Ipv4Addr) {
        let network = self.address.to_bits();
        (Ipv4Addr::from_bits(network | 1), Ipv4Addr::from_bits((network | (u32::MAX >> self.prefix)) - 1))
    }

    /// Bits of the prefix, 1 to 30.
    pub const fn prefix(self) -> u8 {
        self.prefix
    }

    /// Whether the address is in it.
    pub fn contains(self, address: Ipv4Addr) -> bool {
        address.to_bits() & (u32::MAX << (32 - self.prefix)) == self.address.to_bits()
    }

    /// Whether an address is in both.
    pub fn overlaps(self, other: Self) -> bool {
        self.contains(other.address) || other.contains(self.address)
    }

    /// Whether the other is one of its parts with this prefix. Two of these are the same, or have no address in common.
    pub fn has_part(self, other: Self, prefix: u8) -> bool {
        other.prefix == prefix && self.prefix <= prefix && self.contains(other.address)
    }
}

impl FromStr for Network {
    type Err = NetworkError;

    fn from_str(text: &str) -> Result<Self, NetworkError> {
        let form = || NetworkError::Form(text.to_owned());
        let (address, prefix) = text.split_once('/').ok_or_else(form)?;
        let address: Ipv4Addr = address.parse().map_err(|_| form())?;
        let prefix: u8 = prefix.parse().map_err(|_| form())?;
        if !(1..=30).contains(&prefix) {
            return Err(NetworkError::Prefix(text.to_owned()));
        }
        let mask = u32::MAX << (32 - prefix);
        let meant = Self { address: Ipv4Addr::from_bits(address.to_bits() & mask), prefix };
        if meant.address != address {
            return Err(NetworkError::HostBits { given: text.to_owned(), meant });
        }
        Ok(meant)
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_network_reads_back_and_its_hosts_are_inside(bits: u32, prefix in 1_u8..=30, number: u32) {
            let network = Network { address: Ipv4Addr::from_bits(bits & (u32::MAX << (32 - prefix))), prefix };
            prop_assert_eq!(network.to_string().parse(), Ok(network));
            if let Some(host) = network.host(number) {
                prop_assert_eq!(host.to_bits() & (u32::MAX << (32 - prefix)), network.address.to_bits());
                prop_assert_ne!(host, network.address);
                let (first, last) = network.hosts();
                prop_assert!(first <= host && host <= last);
                prop_assert_eq!((network.host(1), network.host(last.to_bits() - network.address.to_bits())), (Some(first), Some(last)));
            }
        }
    }

    #[test]
    fn hosts_are_counted_from_the_network_address() {
        let services: Network = "10.96.0.0/16".parse().unwrap();
        assert_eq!(services.host(1), Some(Ipv4Addr::new(10, 96, 0, 1)));
        assert_eq!(services.host(0), None);
        assert_eq!(services.host(65_534), Some(Ipv4Addr::new(10, 96, 255, 254)));
        assert_eq!(services.host(65_535), None);
    }

    #[test]
    fn networks_overlap_when_one_is_inside_the_other() {
        let network = |text: &str| text.parse::<Network>().unwrap();
        let (pods, part, services) = (network("10.244.0.0/16"), network("10.244.3.0/24"), network("10.96.0.0/16"));
        assert!(pods.overlaps(part) && part.overlaps(pods) && pods.overlaps(pods));
        assert!(!pods.overlaps(services));
        assert!(part.contains(Ipv4Addr::new(10, 244, 3, 255)) && !part.contains(Ipv4Addr::new(10, 244, 4, 0)));
    }

    #[test]
    fn a_part_is_inside_and_has_the_prefix() {
        let network = |text: &str| text.parse::<Network>().unwrap();
        let pods = network("10.244.0.0/16");
        assert!(pods.has_part(network("10.244.0.0/24"), 24) && pods.has_part(network("10.244.255.0/24"), 24));
        for other in ["10.244.0.0/16", "10.244.0.0/25", "10.245.0.0/24", "10.0.0.0/8"] {
            assert!(!pods.has_part(network(other), 24), "{other}");
        }
        assert!(!network("10.244.3.0/25").has_part(network("10.244.3.0/24"), 24));
    }

    #[test]
    fn mistakes_are_named_with_the_remedy() {
        let error = |text: &str| text.parse::<Network>().unwrap_err().to_string();
        assert_eq!(error("10.96.0.1/16"), "network \"10.96.0.1/16\" has host bits: write it as 10.96.0.0/16");
        assert_eq!(error("10.96.0.0"), "\"10.96.0.0\" is no network: write it like 10.96.0.0/16");
        assert_eq!(error("10.96.0.0/31"), "network \"10.96.0.0/31\" needs a prefix from 1 to 30");
        assert_eq!(error("::/64"), "\"::/64\" is no network: write it like 10.96.0.0/16");
    }
}
