//! Pod networks and their division into node ranges.

use std::net::IpAddr;

use ipnet::IpNet;

/// A pod network in which each node gets a part of the same size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodNetwork {
    /// Network address without host bits.
    pub network: IpNet,
    /// Prefix length of each node's part (`--node-cidr-mask-size` of kube-controller-manager).
    pub node_prefix: u8,
}

impl PodNetwork {
    /// Whether the allocator may assign this range to a node. Two such ranges are equal or disjoint.
    pub fn has_part(&self, part: IpNet) -> bool {
        part.prefix_len() == self.node_prefix && part.trunc() == part && self.network.contains(&part)
    }
}

/// The first address of a range, which is the address of the node.
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
    fn a_part_has_the_size_that_the_allocator_gives() {
        let pods = PodNetwork { network: net("10.244.0.0/16"), node_prefix: 24 };
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
            let pods = PodNetwork { network: net("10.244.0.0/16"), node_prefix: prefix };
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
