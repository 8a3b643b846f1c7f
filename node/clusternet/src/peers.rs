//! Who shall be a peer, from what all Nodes say. Pure.
//!
//! Of two Nodes that claim the same key or the same range, the one keeps it that the API server made first, then the
//! one whose name comes first: every node of the cluster sees the same, so that all agree. A claim holds whether its
//! Node can be reached at the moment or not.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use k8s_openapi::jiff::Timestamp;

use crate::diff::{Peer, Peers};
use crate::refusal::Refusal;
use crate::{Member, PORT, PodNetwork, PublicKey};

/// Of a text that somebody else wrote, so much is told again.
const SHOWN: usize = 64;

/// The place that all others are seen from.
#[derive(Clone, Copy, Debug)]
pub struct Mesh<'a> {
    /// The name of the own Node.
    pub node: &'a str,
    /// The own key, whatever the own Node says.
    pub key: PublicKey,
    /// The addresses of all pods. They have none in common.
    pub networks: &'a [PodNetwork],
}

/// What the Nodes say, taken together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// The own Node, if there is one.
    pub own: Option<Own>,
    /// All others that packets go to: each has an endpoint, and at least one range.
    pub peers: Peers,
    /// The Nodes of the peers.
    pub nodes: BTreeMap<PublicKey, String>,
    /// Which Nodes are refused for what. Of some, only a range: the rest of them is a peer.
    pub refused: BTreeSet<(String, Refusal)>,
    /// Nodes with several addresses, and the first of them, which is used.
    pub several: BTreeSet<(String, IpAddr)>,
}

/// What the own Node says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Own {
    /// Its ranges; none, if it was given none yet.
    pub ranges: BTreeSet<IpNet>,
    /// It tells the own key.
    pub is_announced: bool,
}

/// Who shall be a peer.
pub fn wanted(mesh: Mesh<'_>, members: &[Member]) -> Wanted {
    let mut in_order: Vec<&Member> = members.iter().collect();
    in_order.sort_by(|one, two| age(one).cmp(&age(two)));
    let mut wanted = Wanted::default();
    let mut claims = Claims::default();
    for member in in_order {
        let ranges = claims.ranges(mesh, member, &mut wanted.refused);
        if member.name == mesh.node {
            let own = mesh.key.to_string();
            wanted.own = Some(Own { ranges, is_announced: member.key.as_ref() == Some(&own) });
            continue;
        }
        let Some(key) = claims.key(mesh, member, &mut wanted.refused) else { continue };
        let Some(address) = address(mesh, member, &mut wanted) else { continue };
        if ranges.is_empty() {
            continue;
        }
        wanted.peers.insert(key, Peer { endpoint: Some(SocketAddr::new(address, PORT)), allowed: ranges });
        wanted.nodes.insert(key, member.name.clone());
    }
    wanted
}

/// The oldest first. One that the API server did not make is the last.
fn age(member: &Member) -> (bool, Option<Timestamp>, &str) {
    (member.created.is_none(), member.created, &member.name)
}

/// What older Nodes have.
#[derive(Default)]
struct Claims<'m> {
    keys: BTreeMap<PublicKey, &'m str>,
    ranges: BTreeMap<IpNet, &'m str>,
}

impl<'m> Claims<'m> {
    /// The ranges that are the member's.
    fn ranges(
        &mut self,
        mesh: Mesh<'_>,
        member: &'m Member,
        refused: &mut BTreeSet<(String, Refusal)>,
    ) -> BTreeSet<IpNet> {
        let mut ranges = BTreeSet::new();
        for text in &member.networks {
            let refusal = match text.parse::<IpNet>() {
                Err(_) => Refusal::Range(shown(text)),
                Ok(range) if !mesh.networks.iter().any(|network| network.has_part(range)) => Refusal::Foreign(range),
                // Of parts of one size, those that overlap are the same.
                Ok(range) => match *self.ranges.entry(range).or_insert(&member.name) {
                    owner if owner == member.name => {
                        ranges.insert(range);
                        continue;
                    }
                    owner => Refusal::RangeTaken { range, owner: owner.to_owned() },
                },
            };
            refused.insert((member.name.clone(), refusal));
        }
        ranges
    }

    /// The key, if it tells one and it is the member's.
    fn key(
        &mut self,
        mesh: Mesh<'_>,
        member: &'m Member,
        refused: &mut BTreeSet<(String, Refusal)>,
    ) -> Option<PublicKey> {
        let refusal = match member.key.as_ref()?.parse::<PublicKey>() {
            Err(error) => Refusal::Key(error),
            Ok(key) if key == mesh.key => Refusal::OwnKey,
            Ok(key) => match *self.keys.entry(key).or_insert(&member.name) {
                owner if owner == member.name => return Some(key),
                owner => Refusal::KeyTaken { owner: owner.to_owned() },
            },
        };
        refused.insert((member.name.clone(), refusal));
        None
    }
}

/// Where the member is.
fn address(mesh: Mesh<'_>, member: &Member, wanted: &mut Wanted) -> Option<IpAddr> {
    let refusal = match member.addresses.first().map(|text| (text, text.parse())) {
        None => Refusal::NoAddress,
        Some((text, Err(_))) => Refusal::Address(shown(text)),
        Some((_, Ok(address))) if !is_node(mesh, address) => Refusal::NoNode(address),
        Some((_, Ok(address))) => {
            if member.addresses.len() > 1 {
                wanted.several.insert((member.name.clone(), address));
            }
            return Some(address);
        }
    };
    wanted.refused.insert((member.name.clone(), refusal));
    None
}

/// Whether a node can have the address. One that only means something on one link cannot be an endpoint.
fn is_node(mesh: Mesh<'_>, address: IpAddr) -> bool {
    let nobody = match address {
        IpAddr::V4(address) => address.is_broadcast() || address.octets()[0] == 0,
        IpAddr::V6(address) => address.is_unicast_link_local() || address.to_ipv4_mapped().is_some(),
    };
    !nobody
        && !address.is_unspecified()
        && !address.is_loopback()
        && !address.is_multicast()
        && !mesh.networks.iter().any(|network| network.contains(address))
}

fn shown(text: &str) -> String {
    text.chars().take(SHOWN).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{ParseKeyError, Reason};

    fn key(number: u8) -> PublicKey {
        PublicKey::new([number; 32]).unwrap()
    }

    fn pods() -> PodNetwork {
        PodNetwork::new("10.244.0.0/16".parse().unwrap(), 24).unwrap()
    }

    /// The node `number`, made at that second, as the cluster makes it.
    fn member(number: u8) -> Member {
        Member {
            name: format!("node-{number:03}"),
            created: Some(Timestamp::from_second(i64::from(number)).unwrap()),
            key: Some(key(number).to_string()),
            addresses: vec![format!("192.0.2.{number}")],
            networks: vec![format!("10.244.{number}.0/24")],
        }
    }

    /// Seen from the node 1.
    fn seen(others: impl IntoIterator<Item = Member>) -> Wanted {
        let members: Vec<_> = [member(1)].into_iter().chain(others).collect();
        wanted(Mesh { node: "node-001", key: key(1), networks: &[pods()] }, &members)
    }

    #[track_caller]
    fn refuses(wanted: &Wanted, expected: &[(&str, Refusal)]) {
        let expected = expected.iter().map(|(node, refusal)| ((*node).to_owned(), refusal.clone())).collect();
        assert_eq!(wanted.refused, expected);
    }

    #[test]
    fn every_other_node_is_a_peer_and_the_own_is_none() {
        let found = seen([member(2), member(3)]);
        refuses(&found, &[]);
        let peer = |number: u8| Peer {
            endpoint: Some(format!("192.0.2.{number}:7838").parse().unwrap()),
            allowed: [format!("10.244.{number}.0/24").parse().unwrap()].into(),
        };
        assert_eq!(found.peers, [(key(2), peer(2)), (key(3), peer(3))].into());
        assert_eq!(found.nodes[&key(3)], "node-003");
        let own = Own { ranges: ["10.244.1.0/24".parse().unwrap()].into(), is_announced: true };
        assert_eq!(found.own, Some(own));
    }

    #[test]
    fn a_node_that_is_not_ready_yet_is_no_peer_and_not_refused() {
        let found = seen([Member { key: None, ..member(2) }, Member { networks: vec![], ..member(3) }]);
        refuses(&found, &[]);
        assert_eq!(found.peers, Peers::new());
    }

    #[test]
    fn the_own_node_is_told_apart_from_none() {
        let mesh = Mesh { node: "node-001", key: key(1), networks: &[pods()] };
        assert_eq!(wanted(mesh, &[member(2)]).own, None);
        let new = Member { key: Some(key(9).to_string()), networks: vec![], ..member(1) };
        let own = wanted(mesh, &[new]).own;
        assert_eq!(own, Some(Own { ranges: BTreeSet::new(), is_announced: false }));
    }

    #[test]
    fn a_bad_key_is_refused_and_the_others_are_peers() {
        let bad = |number, key: &str| Member { key: Some(key.to_owned()), ..member(number) };
        let found = seen([bad(2, "rubbish"), bad(3, &format!("{}=", "A".repeat(43))), member(4)]);
        refuses(
            &found,
            &[("node-002", Refusal::Key(ParseKeyError::Form)), ("node-003", Refusal::Key(ParseKeyError::Zero))],
        );
        assert_eq!(found.peers.keys().collect::<Vec<_>>(), [&key(4)]);
    }

    #[test]
    fn of_two_nodes_with_one_key_the_older_keeps_it() {
        let younger = Member { key: member(2).key, ..member(3) };
        let found = seen([younger.clone(), member(2)]);
        refuses(&found, &[("node-003", Refusal::KeyTaken { owner: "node-002".into() })]);
        assert_eq!(found.nodes[&key(2)], "node-002");
        // The younger one gets in when the older one is gone.
        assert_eq!(seen([younger]).nodes[&key(2)], "node-003");
    }

    #[test]
    fn of_two_nodes_of_one_second_the_first_name_keeps_it() {
        let twin = Member { created: member(3).created, key: member(3).key, ..member(2) };
        let found = seen([member(3), twin]);
        refuses(&found, &[("node-003", Refusal::KeyTaken { owner: "node-002".into() })]);
    }

    #[test]
    fn nobody_has_the_key_of_this_node_however_old() {
        let older = Member { created: Some(Timestamp::from_second(0).unwrap()), key: member(1).key, ..member(2) };
        let found = seen([older]);
        refuses(&found, &[("node-002", Refusal::OwnKey)]);
        assert_eq!(found.peers, Peers::new());
    }

    #[test]
    fn of_two_nodes_with_one_range_the_older_keeps_it() {
        let found = seen([Member { networks: member(2).networks, ..member(3) }, member(2)]);
        let range = "10.244.2.0/24".parse().unwrap();
        refuses(&found, &[("node-003", Refusal::RangeTaken { range, owner: "node-002".into() })]);
        assert_eq!(found.peers.keys().collect::<Vec<_>>(), [&key(2)]);
    }

    /// Also one that has no key yet, or cannot be reached: its pods may be there before.
    #[test]
    fn a_node_that_is_no_peer_keeps_its_range() {
        for silent in [Member { key: None, ..member(2) }, Member { addresses: vec![], ..member(2) }] {
            let found = seen([Member { networks: member(2).networks, ..member(3) }, silent]);
            assert_eq!(found.peers, Peers::new());
            assert!(found.refused.iter().any(|(_, refusal)| refusal.reason() == Reason::RangeTaken));
        }
    }

    #[test]
    fn the_range_of_this_node_is_nobody_elses() {
        let found = seen([Member { networks: member(1).networks, ..member(2) }]);
        let range = "10.244.1.0/24".parse().unwrap();
        refuses(&found, &[("node-002", Refusal::RangeTaken { range, owner: "node-001".into() })]);
    }

    #[test]
    fn a_range_that_no_allocator_gives_is_left_out_and_the_others_count() {
        let networks = ["10.244.0.0/16", "10.244.2.0/24", "0.0.0.0/0", "10.244.2.128/25", "10.96.0.0/24", "x"];
        let found = seen([Member { networks: networks.map(str::to_owned).into(), ..member(2) }]);
        let foreign = |text: &str| ("node-002", Refusal::Foreign(text.parse().unwrap()));
        refuses(
            &found,
            &[
                ("node-002", Refusal::Range("x".into())),
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
        refuses(&found, &[]);
    }

    #[test]
    fn a_node_that_cannot_be_reached_is_refused() {
        let at = |address: &str| seen([Member { addresses: vec![address.to_owned()], ..member(2) }]);
        for nobody in ["127.0.0.1", "0.0.0.0", "224.0.0.1", "255.255.255.255", "fe80::1", "::1", "10.244.3.4"] {
            let found = at(nobody);
            refuses(&found, &[("node-002", Refusal::NoNode(nobody.parse().unwrap()))]);
            assert_eq!(found.peers, Peers::new(), "{nobody}");
        }
        refuses(&at("one.example"), &[("node-002", Refusal::Address("one.example".into()))]);
        refuses(&at(&"x".repeat(9999)), &[("node-002", Refusal::Address("x".repeat(SHOWN)))]);
        refuses(&seen([Member { addresses: vec![], ..member(2) }]), &[("node-002", Refusal::NoAddress)]);
    }

    /// Any of them may claim what another has.
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
        fn no_address_has_two_owners_and_nobody_has_one_from_outside(members in any_members()) {
            let found = wanted(Mesh { node: "node-001", key: key(1), networks: &[pods()] }, &members);
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

        /// The API server lists them by name, a watch brings them as they change.
        #[test]
        fn the_order_of_the_nodes_means_nothing(
            (sorted, shuffled) in any_members().prop_flat_map(|all| (Just(all.clone()), Just(all).prop_shuffle())),
        ) {
            let mesh = Mesh { node: "node-001", key: key(1), networks: &[pods()] };
            prop_assert_eq!(wanted(mesh, &sorted), wanted(mesh, &shuffled));
        }

        /// A peer that one node has, every other node has with the same range. Of nodes whose own annotation is theirs.
        #[test]
        fn all_nodes_agree(members in any_members()) {
            let mut owners: BTreeMap<IpNet, String> = BTreeMap::new();
            for member in &members {
                let Some(Ok(key)) = member.key.as_ref().map(|key| key.parse()) else { continue };
                let found = wanted(Mesh { node: &member.name, key, networks: &[pods()] }, &members);
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
