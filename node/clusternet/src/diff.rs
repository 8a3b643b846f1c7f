//! Differences between actual and wanted peers. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use ipnet::IpNet;

use crate::PublicKey;

pub type Peers = BTreeMap<PublicKey, Peer>;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peer {
    /// Destination of packets. `None` if the kernel has no endpoint. The kernel updates the endpoint when the peer
    /// sends from another address.
    pub endpoint: Option<SocketAddr>,
    /// AllowedIPs: destinations that are routed to the peer, and the only source addresses that are accepted from it.
    pub allowed: BTreeSet<IpNet>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    Remove(PublicKey),
    /// Changes an existing peer. Has no effect if the peer does not exist.
    Update {
        key: PublicKey,
        endpoint: Option<SocketAddr>,
        allowed: Option<BTreeSet<IpNet>>,
    },
    Add(PublicKey, Peer),
}

impl Change {
    pub const fn key(&self) -> PublicKey {
        match self {
            Self::Remove(key) | Self::Update { key, .. } | Self::Add(key, _) => *key,
        }
    }

    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::Remove(_) => "removed",
            Self::Update { .. } => "updated",
            Self::Add(..) => "added",
        }
    }

    /// Applies the change like the kernel: a range that a peer gets is removed from its previous owner.
    pub fn apply(&self, peers: &mut Peers) {
        let (key, endpoint, allowed) = match self {
            Self::Remove(key) => {
                peers.remove(key);
                return;
            }
            Self::Update { key, .. } if !peers.contains_key(key) => return,
            Self::Update { key, endpoint, allowed } => (*key, *endpoint, allowed.as_ref()),
            Self::Add(key, peer) => (*key, peer.endpoint, Some(&peer.allowed)),
        };
        if let Some(allowed) = allowed {
            for (other, peer) in peers.iter_mut() {
                peer.allowed.retain(|range| *other != key && !allowed.contains(range));
            }
        }
        let peer = peers.entry(key).or_default();
        peer.endpoint = endpoint.or(peer.endpoint);
        peer.allowed.extend(allowed.into_iter().flatten());
    }
}

/// The changes that turn `have` into `want`, at most one per peer.
///
/// Removals come first, so that a removed node loses access before other changes. During the changes, a range whose
/// owner changes belongs to the old owner, to the new owner, or to no peer. This guarantee requires that different
/// ranges do not overlap, neither in the kernel nor in `want`. All ranges have one size unless another program has set
/// others; then only the final state is certain.
///
/// In `want`, each range must have one owner, and peers must have endpoints.
pub fn diff(have: &Peers, want: &Peers) -> Vec<Change> {
    let removed = have.keys().filter(|key| !want.contains_key(key)).map(|key| Change::Remove(*key));
    let updated = want.iter().filter_map(|(key, want)| {
        let have = have.get(key)?;
        let endpoint = want.endpoint.filter(|endpoint| have.endpoint != Some(*endpoint));
        let allowed = (have.allowed != want.allowed).then(|| want.allowed.clone());
        (endpoint.is_some() || allowed.is_some()).then_some(Change::Update { key: *key, endpoint, allowed })
    });
    let added = want.iter().filter(|(key, _)| !have.contains_key(key));
    removed.chain(updated).chain(added.map(|(key, peer)| Change::Add(*key, peer.clone()))).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    pub(crate) fn key(number: u8) -> PublicKey {
        PublicKey::new([number; 32]).unwrap()
    }

    pub(crate) fn range(number: u8) -> IpNet {
        format!("10.244.{number}.0/24").parse().unwrap()
    }

    pub(crate) fn peer(endpoint: u8, ranges: impl IntoIterator<Item = u8>) -> Peer {
        Peer {
            endpoint: Some(SocketAddr::from(([192, 0, 2, endpoint], 7838))),
            allowed: ranges.into_iter().map(range).collect(),
        }
    }

    /// Peers as the kernel may have them: a range has one owner, a peer may lack ranges and an endpoint.
    pub(crate) fn any_peers() -> impl Strategy<Value = Peers> {
        let endpoints = proptest::collection::btree_map(1_u8..9, proptest::option::weighted(0.9, 0_u8..4), 0..9);
        let owners = proptest::collection::vec(1_u8..14, 10);
        (endpoints, owners).prop_map(|(endpoints, owners)| {
            let mut peers = Peers::new();
            for (number, endpoint) in endpoints {
                let ranges = (0_u8..).zip(&owners).filter(|(_, owner)| **owner == number).map(|(range, _)| range);
                let endpoint = endpoint.and_then(|endpoint| peer(endpoint, []).endpoint);
                peers.insert(key(number), Peer { endpoint, ..peer(0, ranges) });
            }
            peers
        })
    }

    fn any_wanted() -> impl Strategy<Value = Peers> {
        any_peers().prop_map(|mut peers| {
            peers.retain(|_, peer| peer.endpoint.is_some() && !peer.allowed.is_empty());
            peers
        })
    }

    fn owners(peers: &Peers) -> BTreeMap<IpNet, PublicKey> {
        peers.iter().flat_map(|(key, peer)| peer.allowed.iter().map(|range| (*range, *key))).collect()
    }

    proptest! {
        #[test]
        fn only_peers_that_differ_are_changed_and_only_once(have in any_peers(), want in any_wanted()) {
            let changes = diff(&have, &want);
            let changed: BTreeSet<PublicKey> = changes.iter().map(Change::key).collect();
            prop_assert_eq!(changed.len(), changes.len());
            let all = have.keys().chain(want.keys());
            let differ: BTreeSet<PublicKey> = all.copied().filter(|key| have.get(key) != want.get(key)).collect();
            prop_assert_eq!(changed, differ);
        }

        /// At any time, a range belongs to its old owner, to its new owner, or to no peer.
        #[test]
        fn a_range_never_belongs_to_a_third_peer(have in any_peers(), want in any_wanted()) {
            let (before, after) = (owners(&have), owners(&want));
            let mut kernel = have.clone();
            for change in diff(&have, &want) {
                change.apply(&mut kernel);
                for (range, owner) in owners(&kernel) {
                    prop_assert!(before.get(&range) == Some(&owner) || after.get(&range) == Some(&owner));
                }
            }
        }

        #[test]
        fn removals_come_first(have in any_peers(), want in any_wanted()) {
            let changes = diff(&have, &want);
            let first_other = changes.iter().position(|change| !matches!(change, Change::Remove(_)));
            let rest = &changes[first_other.unwrap_or(changes.len())..];
            prop_assert!(!rest.iter().any(|change| matches!(change, Change::Remove(_))));
        }

        #[test]
        fn an_interrupted_run_is_completed_by_the_next(have in any_peers(), want in any_wanted(), done in 0_usize..20) {
            let mut kernel = have.clone();
            for change in diff(&have, &want).iter().take(done) {
                change.apply(&mut kernel);
            }
            for change in diff(&kernel.clone(), &want) {
                change.apply(&mut kernel);
            }
            prop_assert_eq!(kernel, want);
        }
    }
}
