//! Determines the wanted peers from all Nodes. Pure.
//!
//! If two Nodes have the same key or range, it belongs to the older Node, and with equal creation times to the one
//! whose name sorts first. All nodes of the cluster therefore get the same result. A Node keeps its key and range while
//! it is unreachable.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use cluster::MESH_PORT;
use ipnet::IpNet;
use k8s_openapi::jiff::Timestamp;

use crate::diff::{Peer, Peers};
use crate::member_error::MemberError;
use crate::{Member, PodNetwork, PublicKey};

/// Maximum length of text from Nodes in messages.
const SHOWN: usize = 64;

/// The node from whose perspective the peers are determined.
#[derive(Clone, Copy, Debug)]
pub struct Mesh<'a> {
    pub node: &'a str,
    /// Own public key, regardless of the own Node's annotation.
    pub key: PublicKey,
    pub networks: &'a [PodNetwork],
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MeshPlan {
    pub own: Option<OwnNode>,
    /// Peers. Each has an endpoint and at least one range.
    pub peers: Peers,
    pub nodes: BTreeMap<PublicKey, String>,
    /// Rejected Nodes with the reasons. A Node with a rejected range may still be a peer.
    pub rejected: BTreeSet<(String, MemberError)>,
    /// Nodes with several addresses, and the first address, which the mesh uses.
    pub several: BTreeSet<(String, IpAddr)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnNode {
    /// Pod ranges. Empty if no range is assigned yet.
    pub ranges: BTreeSet<IpNet>,
    /// Whether the annotation contains the own key.
    pub is_announced: bool,
}

pub fn plan(mesh: Mesh<'_>, members: &[Member]) -> MeshPlan {
    let mut in_order: Vec<&Member> = members.iter().collect();
    in_order.sort_by(|one, two| age(one).cmp(&age(two)));
    let mut planner = Planner { mesh, keys: BTreeMap::new(), ranges: BTreeMap::new(), plan: MeshPlan::default() };
    in_order.into_iter().for_each(|member| planner.add(member));
    planner.plan
}

/// Sort key: creation time, oldest first, Nodes without a creation time last; then the name.
fn age(member: &Member) -> (bool, Option<Timestamp>, &str) {
    (member.created.is_none(), member.created, &member.name)
}

struct Planner<'m> {
    mesh: Mesh<'m>,
    keys: BTreeMap<PublicKey, &'m str>,
    ranges: BTreeMap<IpNet, &'m str>,
    plan: MeshPlan,
}

impl<'m> Planner<'m> {
    fn add(&mut self, member: &'m Member) {
        let ranges = self.ranges(member);
        if member.name == self.mesh.node {
            let is_announced = member.key.as_ref() == Some(&self.mesh.key.to_string());
            self.plan.own = Some(OwnNode { ranges, is_announced });
            return;
        }
        let Some(key) = self.key(member) else { return };
        let Some(address) = self.address(member) else { return };
        if !ranges.is_empty() {
            let endpoint = Some(SocketAddr::new(address, MESH_PORT));
            self.plan.peers.insert(key, Peer { endpoint, allowed: ranges });
            self.plan.nodes.insert(key, member.name.clone());
        }
    }

    fn reject(&mut self, member: &Member, error: MemberError) {
        self.plan.rejected.insert((member.name.clone(), error));
    }

    fn ranges(&mut self, member: &'m Member) -> BTreeSet<IpNet> {
        let mut ranges = BTreeSet::new();
        for text in &member.networks {
            let error = match text.parse::<IpNet>() {
                Err(_) => MemberError::Range(shown(text)),
                Ok(range) if !self.mesh.networks.iter().any(|network| network.has_part(range)) => {
                    MemberError::Foreign(range)
                }
                // All ranges have one size, so overlapping ranges are equal.
                Ok(range) => match *self.ranges.entry(range).or_insert(&member.name) {
                    owner if owner == member.name => {
                        ranges.insert(range);
                        continue;
                    }
                    owner => MemberError::RangeTaken { range, owner: owner.to_owned() },
                },
            };
            self.reject(member, error);
        }
        ranges
    }

    fn key(&mut self, member: &'m Member) -> Option<PublicKey> {
        let error = match member.key.as_ref()?.parse::<PublicKey>() {
            Err(error) => MemberError::Key(error),
            Ok(key) if key == self.mesh.key => MemberError::OwnKey,
            Ok(key) => match *self.keys.entry(key).or_insert(&member.name) {
                owner if owner == member.name => return Some(key),
                owner => MemberError::KeyTaken { owner: owner.to_owned() },
            },
        };
        self.reject(member, error);
        None
    }

    fn address(&mut self, member: &Member) -> Option<IpAddr> {
        let error = match member.addresses.first().map(|text| (text, text.parse())) {
            None => MemberError::NoAddress,
            Some((text, Err(_))) => MemberError::Address(shown(text)),
            Some((_, Ok(address))) if !is_node(self.mesh, address) => MemberError::UnusableAddress(address),
            Some((_, Ok(address))) => {
                if member.addresses.len() > 1 {
                    self.plan.several.insert((member.name.clone(), address));
                }
                return Some(address);
            }
        };
        self.reject(member, error);
        None
    }
}

/// Whether the address can be a node's. Link-local addresses cannot be endpoints.
fn is_node(mesh: Mesh<'_>, address: IpAddr) -> bool {
    let is_special = match address {
        IpAddr::V4(address) => address.is_broadcast() || address.octets()[0] == 0,
        IpAddr::V6(address) => address.is_unicast_link_local() || address.to_ipv4_mapped().is_some(),
    };
    !is_special
        && !address.is_unspecified()
        && !address.is_loopback()
        && !address.is_multicast()
        && !mesh.networks.iter().any(|network| network.network.contains(&address))
}

fn shown(text: &str) -> String {
    text.chars().take(SHOWN).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::diff::tests::key;

    fn pods() -> PodNetwork {
        PodNetwork { network: "10.244.0.0/16".parse().unwrap(), node_prefix: 24 }
    }

    fn member(number: u8) -> Member {
        Member {
            name: format!("node-{number:03}"),
            created: Some(Timestamp::from_second(i64::from(number)).unwrap()),
            key: Some(key(number).to_string()),
            addresses: vec![format!("192.0.2.{number}")],
            networks: vec![format!("10.244.{number}.0/24")],
        }
    }

    /// The plan of node 1.
    fn seen(others: impl IntoIterator<Item = Member>) -> MeshPlan {
        let members: Vec<_> = [member(1)].into_iter().chain(others).collect();
        plan(Mesh { node: "node-001", key: key(1), networks: &[pods()] }, &members)
    }

    #[track_caller]
    fn rejects(plan: &MeshPlan, expected: &[(&str, MemberError)]) {
        let expected = expected.iter().map(|(node, refusal)| ((*node).to_owned(), refusal.clone())).collect();
        assert_eq!(plan.rejected, expected);
    }

    #[test]
    fn an_incomplete_node_is_neither_a_peer_nor_rejected() {
        let found = seen([Member { key: None, ..member(2) }, Member { networks: vec![], ..member(3) }]);
        rejects(&found, &[]);
        assert_eq!(found.peers, Peers::new());
    }

    #[test]
    fn nodes_of_the_same_age_are_ordered_by_name() {
        let twin = Member { created: member(3).created, key: member(3).key, ..member(2) };
        let found = seen([member(3), twin]);
        rejects(&found, &[("node-003", MemberError::KeyTaken { owner: "node-002".into() })]);
    }

    #[test]
    fn the_key_of_this_node_is_rejected_in_others() {
        let older = Member { created: Some(Timestamp::from_second(0).unwrap()), key: member(1).key, ..member(2) };
        let found = seen([older]);
        rejects(&found, &[("node-002", MemberError::OwnKey)]);
        assert_eq!(found.peers, Peers::new());
    }

    /// A Node without a key or an address keeps its range, because its pods may exist.
    #[test]
    fn an_incomplete_node_keeps_its_range() {
        for silent in [Member { key: None, ..member(2) }, Member { addresses: vec![], ..member(2) }] {
            let found = seen([Member { networks: member(2).networks, ..member(3) }, silent]);
            assert_eq!(found.peers, Peers::new());
            assert!(found.rejected.iter().any(|(_, refusal)| refusal.reason() == "range_taken"));
        }
    }

    #[test]
    fn the_range_of_this_node_is_rejected_in_others() {
        let found = seen([Member { networks: member(1).networks, ..member(2) }]);
        let range = "10.244.1.0/24".parse().unwrap();
        rejects(&found, &[("node-002", MemberError::RangeTaken { range, owner: "node-001".into() })]);
    }

    #[test]
    fn an_invalid_range_is_skipped_and_others_are_used() {
        let networks = ["10.244.0.0/16", "10.244.2.0/24", "0.0.0.0/0", "10.244.2.128/25", "10.96.0.0/24", "x"];
        let found = seen([Member { networks: networks.map(str::to_owned).into(), ..member(2) }]);
        let foreign = |text: &str| ("node-002", MemberError::Foreign(text.parse().unwrap()));
        rejects(
            &found,
            &[
                ("node-002", MemberError::Range("x".into())),
                foreign("0.0.0.0/0"),
                foreign("10.96.0.0/24"),
                foreign("10.244.0.0/16"),
                foreign("10.244.2.128/25"),
            ],
        );
        assert_eq!(found.peers[&key(2)].allowed, ["10.244.2.0/24".parse().unwrap()].into());
    }

    #[test]
    fn the_first_address_is_the_endpoint() {
        let several = Member { addresses: vec!["2001:db8::2".into(), "192.0.2.2".into()], ..member(2) };
        let found = seen([several]);
        assert_eq!(found.peers[&key(2)].endpoint, Some("[2001:db8::2]:7838".parse().unwrap()));
        assert_eq!(found.several, [("node-002".to_owned(), "2001:db8::2".parse().unwrap())].into());
        rejects(&found, &[]);
    }

    #[test]
    fn a_node_without_a_usable_address_is_rejected() {
        let at = |address: &str| seen([Member { addresses: vec![address.to_owned()], ..member(2) }]);
        for address in ["127.0.0.1", "0.0.0.0", "224.0.0.1", "255.255.255.255", "fe80::1", "::1", "10.244.3.4"] {
            let found = at(address);
            rejects(&found, &[("node-002", MemberError::UnusableAddress(address.parse().unwrap()))]);
            assert_eq!(found.peers, Peers::new(), "{address}");
        }
        rejects(&at("one.example"), &[("node-002", MemberError::Address("one.example".into()))]);
        rejects(&at(&"x".repeat(9999)), &[("node-002", MemberError::Address("x".repeat(SHOWN)))]);
        rejects(&seen([Member { addresses: vec![], ..member(2) }]), &[("node-002", MemberError::NoAddress)]);
    }

    /// Nodes that may have the keys and ranges of others.
    fn any_member() -> impl Strategy<Value = Member> {
        let range = prop_oneof![
            8 => (0_u8..6).prop_map(|number| format!("10.244.{number}.0/24")),
            1 => Just("10.244.0.0/16".to_owned()),
            1 => Just("10.244.2.64/26".to_owned()),
            1 => ".{0,8}",
        ];
        let key = prop_oneof![8 => (1_u8..6).prop_map(|number| key(number).to_string()), 1 => ".{0,8}"];
        let address = prop_oneof![8 => (1_u8..6).prop_map(|number| format!("192.0.2.{number}")), 1 => ".{0,8}"];
        let created = proptest::option::of((0_i64..4).prop_map(|second| Timestamp::from_second(second).unwrap()));
        (
            created,
            proptest::option::of(key),
            proptest::collection::vec(address, 0..3),
            proptest::collection::vec(range, 0..3),
        )
            .prop_map(|(created, key, addresses, networks)| Member {
                name: String::new(),
                created,
                key,
                addresses,
                networks,
            })
    }

    fn any_members() -> impl Strategy<Value = Vec<Member>> {
        proptest::collection::vec(any_member(), 0..8).prop_map(|members| {
            let named = |(number, member)| Member { name: format!("node-{number:03}"), ..member };
            members.into_iter().enumerate().map(named).collect()
        })
    }

    proptest! {
        #[test]
        fn each_address_has_one_owner_within_the_pod_networks(members in any_members()) {
            let found = plan(Mesh { node: "node-001", key: key(1), networks: &[pods()] }, &members);
            let mut ranges: Vec<IpNet> = found.peers.values().flat_map(|peer| peer.allowed.clone()).collect();
            ranges.extend(found.own.iter().flat_map(|own| own.ranges.clone()));
            for (at, one) in ranges.iter().enumerate() {
                prop_assert!(pods().has_part(*one));
                prop_assert!(!ranges[at + 1..].iter().any(|two| one.contains(two) || two.contains(one)));
            }
            prop_assert!(!found.peers.contains_key(&key(1)));
            prop_assert!(found.peers.values().all(|peer| peer.endpoint.is_some() && !peer.allowed.is_empty()));
            prop_assert!(found.nodes.keys().eq(found.peers.keys()));
            prop_assert!(!found.nodes.values().any(|node| node == "node-001"));
        }

        /// The API server sorts lists by name, and watches deliver Nodes in the order of their changes.
        #[test]
        fn the_order_of_the_nodes_is_irrelevant(
            (sorted, shuffled) in any_members().prop_flat_map(|all| (Just(all.clone()), Just(all).prop_shuffle())),
        ) {
            let mesh = Mesh { node: "node-001", key: key(1), networks: &[pods()] };
            prop_assert_eq!(plan(mesh, &sorted), plan(mesh, &shuffled));
        }

        /// If a node has a peer, all other nodes have this peer with the same range, provided that the annotations are
        /// correct.
        #[test]
        fn all_nodes_determine_the_same_peers(members in any_members()) {
            let mut owners: BTreeMap<IpNet, String> = BTreeMap::new();
            for member in &members {
                let Some(Ok(key)) = member.key.as_ref().map(|key| key.parse()) else { continue };
                let found = plan(Mesh { node: &member.name, key, networks: &[pods()] }, &members);
                for (key, peer) in &found.peers {
                    for range in &peer.allowed {
                        let owner = owners.entry(*range).or_insert_with(|| found.nodes[key].clone());
                        prop_assert_eq!(&*owner, &found.nodes[key]);
                    }
                }
            }
        }
    }
}
