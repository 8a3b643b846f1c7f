//! Pod networks and their division into node ranges.

use std::net::IpAddr;

use ipnet::IpNet;

/// A pod network in which each node gets a part of the same size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodNetwork {
    network: IpNet,
    node_prefix: u8,
}

/// The pod network is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PodNetworkError {
    /// The address is not the first one of the network.
    #[error("pod network {given} has host bits; use {meant}")]
    HostBits {
        given: IpNet,
        /// The network of this address.
        meant: IpNet,
    },
    /// The parts are larger than the network, or too small for pods.
    #[error("pod network {network} cannot be divided into node ranges of /{node_prefix}")]
    NodePrefix { network: IpNet, node_prefix: u8 },
}

impl PodNetwork {
    /// A network and the prefix length of each node's part (`--node-cidr-mask-size` of kube-controller-manager).
    pub fn new(network: IpNet, node_prefix: u8) -> Result<Self, PodNetworkError> {
        let meant = network.trunc();
        if meant != network {
            return Err(PodNetworkError::HostBits { given: network, meant });
        }
        // A part needs the gateway and one pod, besides the first and the last address.
        if node_prefix < network.prefix_len() || node_prefix > network.max_prefix_len() - 2 {
            return Err(PodNetworkError::NodePrefix { network, node_prefix });
        }
        Ok(Self { network, node_prefix })
    }

    pub const fn network(&self) -> IpNet {
        self.network
    }

    pub const fn node_prefix(&self) -> u8 {
        self.node_prefix
    }

    /// Whether the allocator may give this part to a node. Two such parts are equal or disjoint.
    pub fn has_part(&self, part: IpNet) -> bool {
        part.prefix_len() == self.node_prefix && part.trunc() == part && self.network.contains(&part)
    }

    /// Whether the address belongs to the pod network.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.network.contains(&address)
    }
}

/// The first address of a part, which is that of the node.
pub(crate) fn first_address(part: IpNet) -> IpAddr {
    match part {
        IpNet::V4(part) => std::net::Ipv4Addr::from_bits(part.network().to_bits() | 1).into(),
        IpNet::V6(part) => std::net::Ipv6Addr::from_bits(part.network().to_bits() | 1).into(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    #[test]
    fn a_network_is_divided_into_parts_for_pods() {
        assert!(PodNetwork::new(net("10.244.0.0/16"), 24).is_ok());
        assert!(PodNetwork::new(net("fd00::/48"), 64).is_ok());
        let (given, meant) = (net("10.244.0.1/16"), net("10.244.0.0/16"));
        assert_eq!(PodNetwork::new(given, 24), Err(PodNetworkError::HostBits { given, meant }));
        for node_prefix in [15, 31, 32, 64] {
            let error = PodNetworkError::NodePrefix { network: net("10.244.0.0/16"), node_prefix };
            assert_eq!(PodNetwork::new(net("10.244.0.0/16"), node_prefix), Err(error));
        }
    }

    #[test]
    fn a_part_has_the_size_that_the_allocator_gives() {
        let pods = PodNetwork::new(net("10.244.0.0/16"), 24).unwrap();
        assert!(pods.has_part(net("10.244.0.0/24")) && pods.has_part(net("10.244.255.0/24")));
        for other in ["10.244.0.0/16", "10.244.0.0/25", "10.244.0.1/24", "10.245.0.0/24", "0.0.0.0/0", "fd00::/24"] {
            assert!(!pods.has_part(net(other)), "{other}");
        }
    }

    #[test]
    fn the_first_address_is_the_nodes() {
        assert_eq!(first_address(net("10.244.3.0/24")), net("10.244.3.1/32").addr());
        assert_eq!(first_address(net("fd00:0:0:3::/64")), net("fd00:0:0:3::1/128").addr());
    }

    proptest! {
        #[test]
        fn two_parts_are_equal_or_disjoint(one: u16, two: u16, prefix in 17_u8..=30) {
            let pods = PodNetwork::new(net("10.244.0.0/16"), prefix).unwrap();
            let part = |number: u16| {
                let address = std::net::Ipv4Addr::from_bits(0x0af4_0000 | u32::from(number));
                IpNet::new(address.into(), prefix).unwrap().trunc()
            };
            let (one, two) = (part(one), part(two));
            prop_assert!(pods.has_part(one) && pods.has_part(two));
            prop_assert_eq!(one.contains(&two) || two.contains(&one), one == two);
            prop_assert!(one.contains(&first_address(one)));
        }
    }
}
