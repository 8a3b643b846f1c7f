//! WireGuard netlink messages, include/uapi/linux/wireguard.h.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, UNIX_EPOCH};

use ipnet::IpNet;
use netlink_packet_core::Emitable as _;
use netlink_packet_generic::GenlMessage;
use netlink_packet_wireguard::{
    WireguardAddressFamily, WireguardAllowedIp, WireguardAllowedIpAttr, WireguardAttribute, WireguardCmd,
    WireguardMessage, WireguardPeer, WireguardPeerAttribute, WireguardPeerFlags,
};

use crate::device::PeerState;
use crate::{Change, PrivateKey, PublicKey};

/// Maximum size of the peers in a message, in bytes. An attribute has at most 64 KiB (`nla_len`), and a message must
/// fit into the socket buffer, by default 208 KiB (`net.core.wmem_default`).
const MOST: usize = 32 << 10;

/// Maximum number of ranges of a peer in a message: 10 KiB.
const MOST_RANGES: usize = 256;

pub(crate) type Message = GenlMessage<WireguardMessage>;

/// Returns a message. The kernel assigns the family number at run time.
pub(crate) fn message(family: u16, cmd: WireguardCmd, attributes: Vec<WireguardAttribute>) -> Message {
    let mut message = GenlMessage::from_payload(WireguardMessage { cmd, attributes });
    message.set_resolved_family_id(family);
    message
}

pub(crate) fn get(family: u16, interface: &str) -> Message {
    message(family, WireguardCmd::GetDevice, vec![WireguardAttribute::IfName(interface.to_owned())])
}

/// Sets the values that are not `None`.
pub(crate) fn set(family: u16, interface: &str, key: Option<&PrivateKey>, port: Option<u16>) -> Message {
    let mut attributes = vec![WireguardAttribute::IfName(interface.to_owned())];
    attributes.extend(key.map(|key| WireguardAttribute::PrivateKey(*key.bytes())));
    attributes.extend(port.map(WireguardAttribute::ListenPort));
    message(family, WireguardCmd::SetDevice, attributes)
}

pub(crate) fn changes(family: u16, interface: &str, changes: &[Change]) -> Vec<Message> {
    messages(family, interface, changes.iter().flat_map(parts))
}

/// Begins a session with each of these peers. The kernel sends a keepalive, and thus a handshake, when the interval of
/// keepalives changes from 0 and the link is up (`set_peer`, drivers/net/wireguard/netlink.c). The second part sets the
/// interval back to 0: otherwise, the kernel would also begin sessions when the link is set up again (`wg_open`,
/// device.c). The first part has the longest interval, 18 hours, in case only this part arrives.
pub(crate) fn sessions(family: u16, interface: &str, peers: &[PublicKey]) -> Vec<Message> {
    let part = |key: PublicKey, interval: u16| {
        WireguardPeer(vec![
            WireguardPeerAttribute::PublicKey(key.bytes()),
            WireguardPeerAttribute::Flags(WireguardPeerFlags::UpdateOnly),
            WireguardPeerAttribute::PersistentKeepalive(interval),
        ])
    };
    messages(family, interface, peers.iter().flat_map(|key| [part(*key, u16::MAX), part(*key, 0)]))
}

/// Combines the parts in as few messages as possible. The kernel processes the peers of a message in order.
fn messages(family: u16, interface: &str, parts: impl Iterator<Item = WireguardPeer>) -> Vec<Message> {
    let mut messages: Vec<Vec<WireguardPeer>> = Vec::new();
    let mut size = MOST;
    for part in parts {
        let length = std::slice::from_ref(&part).buffer_len();
        if size + length > MOST {
            messages.push(Vec::new());
            size = 0;
        }
        size += length;
        messages.last_mut().expect("the first part begins a message").push(part);
    }
    let with = |peers| vec![WireguardAttribute::IfName(interface.to_owned()), WireguardAttribute::Peers(peers)];
    messages.into_iter().map(|peers| message(family, WireguardCmd::SetDevice, with(peers))).collect()
}

/// Parts of a change: one, or several for a peer with very many ranges.
fn parts(change: &Change) -> Vec<WireguardPeer> {
    let (flags, endpoint, allowed) = match change {
        Change::Remove(_) => (WireguardPeerFlags::RemoveMe, None, None),
        Change::Update { endpoint, allowed, .. } => (WireguardPeerFlags::UpdateOnly, *endpoint, allowed.as_ref()),
        Change::Add(_, peer) => (WireguardPeerFlags::empty(), peer.endpoint, Some(&peer.allowed)),
    };
    let part = |flags, endpoint: Option<SocketAddr>, ranges: &[IpNet]| {
        let key = WireguardPeerAttribute::PublicKey(change.key().bytes());
        let mut attributes = vec![key, WireguardPeerAttribute::Flags(flags)];
        attributes.extend(endpoint.map(WireguardPeerAttribute::Endpoint));
        if !ranges.is_empty() {
            attributes.push(WireguardPeerAttribute::AllowedIps(ranges.iter().copied().map(allowed_ip).collect()));
        }
        WireguardPeer(attributes)
    };
    let Some(allowed) = allowed else { return vec![part(flags, endpoint, &[])] };
    let ranges: Vec<IpNet> = allowed.iter().copied().collect();
    let (first, rest) = ranges.split_at(ranges.len().min(MOST_RANGES));
    let first = part(flags | WireguardPeerFlags::ReplaceAllowedIps, endpoint, first);
    let rest = rest.chunks(MOST_RANGES).map(|ranges| part(WireguardPeerFlags::UpdateOnly, None, ranges));
    [first].into_iter().chain(rest).collect()
}

fn allowed_ip(range: IpNet) -> WireguardAllowedIp {
    let family = match range {
        IpNet::V4(_) => WireguardAddressFamily::Ipv4,
        IpNet::V6(_) => WireguardAddressFamily::Ipv6,
    };
    WireguardAllowedIp(vec![
        WireguardAllowedIpAttr::Family(family),
        WireguardAllowedIpAttr::IpAddr(range.addr()),
        WireguardAllowedIpAttr::Cidr(range.prefix_len()),
    ])
}

#[derive(Default)]
pub(crate) struct InterfaceState {
    pub(crate) private: Option<[u8; 32]>,
    pub(crate) public: Option<PublicKey>,
    pub(crate) port: u16,
    pub(crate) peers: BTreeMap<PublicKey, PeerState>,
}

/// Combines the messages of a dump: a peer with many ranges continues in the next message, which repeats its key.
pub(crate) fn found(messages: Vec<Message>) -> InterfaceState {
    let mut found = InterfaceState::default();
    for attribute in messages.into_iter().flat_map(|message| message.payload.attributes) {
        match attribute {
            WireguardAttribute::PrivateKey(key) => found.private = Some(key),
            WireguardAttribute::PublicKey(key) => found.public = PublicKey::new(key).ok(),
            WireguardAttribute::ListenPort(port) => found.port = port,
            WireguardAttribute::Peers(peers) => peers.into_iter().for_each(|peer| found.add(peer)),
            _ => {}
        }
    }
    found
}

impl InterfaceState {
    fn add(&mut self, WireguardPeer(attributes): WireguardPeer) {
        let key = attributes.iter().find_map(|attribute| match attribute {
            WireguardPeerAttribute::PublicKey(key) => PublicKey::new(*key).ok(),
            _ => None,
        });
        let Some(key) = key else { return };
        let PeerState { peer, traffic } = self.peers.entry(key).or_default();
        for attribute in attributes {
            match attribute {
                // Omit flow label and scope of IPv6.
                WireguardPeerAttribute::Endpoint(at) => peer.endpoint = Some(SocketAddr::new(at.ip(), at.port())),
                WireguardPeerAttribute::AllowedIps(ranges) => peer.allowed.extend(ranges.iter().filter_map(range)),
                WireguardPeerAttribute::LastHandshake(at) => {
                    let since = Duration::new(
                        at.seconds.try_into().unwrap_or_default(),
                        at.nano_seconds.try_into().unwrap_or_default(),
                    );
                    traffic.handshake = (!since.is_zero()).then(|| UNIX_EPOCH + since);
                }
                WireguardPeerAttribute::RxBytes(bytes) => traffic.received = bytes,
                WireguardPeerAttribute::TxBytes(bytes) => traffic.sent = bytes,
                _ => {}
            }
        }
    }
}

fn range(WireguardAllowedIp(attributes): &WireguardAllowedIp) -> Option<IpNet> {
    let mut address: Option<IpAddr> = None;
    let mut prefix = None;
    for attribute in attributes {
        match attribute {
            WireguardAllowedIpAttr::IpAddr(found) => address = Some(*found),
            WireguardAllowedIpAttr::Cidr(found) => prefix = Some(*found),
            _ => {}
        }
    }
    IpNet::new(address?, prefix?).ok()
}

#[cfg(test)]
mod tests {
    use netlink_packet_core::{NLM_F_ACK, NetlinkMessage};
    use proptest::prelude::*;

    use super::*;
    use crate::device::Traffic;
    use crate::diff::tests::{any_peers, key, peer, range as part};
    use crate::netlink::frame;
    use crate::{INTERFACE, Peer, Peers, diff};

    /// Netlink messages of changes. The kernel acknowledges each message.
    #[derive(Debug, Default, PartialEq, Eq)]
    struct Cost {
        messages: usize,
        bytes: usize,
        largest: usize,
    }

    fn cost(plan: &[Change]) -> Cost {
        // The size does not depend on the value of the family number.
        total(changes(0, INTERFACE, plan))
    }

    fn total(messages: Vec<Message>) -> Cost {
        let frames = messages.into_iter().map(|message| frame(message, NLM_F_ACK, 0).len());
        frames.fold(Cost::default(), |cost, bytes| Cost {
            messages: cost.messages + 1,
            bytes: cost.bytes + bytes,
            largest: cost.largest.max(bytes),
        })
    }

    /// Applies the encoded messages like the kernel: `set_peer` in drivers/net/wireguard/netlink.c.
    fn receive(peers: &mut Peers, messages: &[Message]) {
        for sent in messages {
            let bytes = frame(sent.clone(), NLM_F_ACK, 1);
            assert!(bytes.len() < 64 << 10);
            let read = NetlinkMessage::<Message>::deserialize(&bytes).unwrap();
            let netlink_packet_core::NetlinkPayload::InnerMessage(message) = read.payload else { panic!("{read:?}") };
            for WireguardPeer(attributes) in
                message.payload.attributes.into_iter().flat_map(|attribute| match attribute {
                    WireguardAttribute::Peers(peers) => peers,
                    _ => vec![],
                })
            {
                receive_peer(peers, attributes);
            }
        }
    }

    fn receive_peer(peers: &mut Peers, attributes: Vec<WireguardPeerAttribute>) {
        let mut flags = WireguardPeerFlags::empty();
        let (mut key, mut endpoint, mut ranges) = (None, None, vec![]);
        for attribute in attributes {
            match attribute {
                WireguardPeerAttribute::PublicKey(bytes) => key = PublicKey::new(bytes).ok(),
                WireguardPeerAttribute::Flags(found) => flags = found,
                WireguardPeerAttribute::Endpoint(found) => endpoint = Some(found),
                WireguardPeerAttribute::AllowedIps(all) => ranges.extend(all.iter().filter_map(range)),
                other => panic!("{other:?}"),
            }
        }
        let key = key.expect("a peer has a key");
        if flags.contains(WireguardPeerFlags::RemoveMe) {
            peers.remove(&key);
            return;
        }
        if flags.contains(WireguardPeerFlags::UpdateOnly) && !peers.contains_key(&key) {
            return;
        }
        let peer = peers.entry(key).or_default();
        peer.endpoint = endpoint.or(peer.endpoint);
        if flags.contains(WireguardPeerFlags::ReplaceAllowedIps) {
            peer.allowed.clear();
        }
        for range in ranges {
            for other in peers.values_mut() {
                other.allowed.remove(&range);
            }
            peers.entry(key).or_default().allowed.insert(range);
        }
    }

    proptest! {
        #[test]
        fn encoded_messages_have_the_effect_of_the_changes(have in any_peers(), want in any_peers()) {
            let plan = diff(&have, &want);
            let (mut kernel, mut model) = (have.clone(), have);
            receive(&mut kernel, &changes(7, INTERFACE, &plan));
            plan.iter().for_each(|change| change.apply(&mut model));
            prop_assert_eq!(kernel, model);
            prop_assert!(cost(&plan).messages <= plan.len());
        }
    }

    fn cluster(count: u32) -> Peers {
        let peer = |number: u32| {
            let mut bytes = [7; 32];
            bytes[..4].copy_from_slice(&number.to_be_bytes());
            let [.., high, low] = number.to_be_bytes();
            let endpoint = Some(SocketAddr::from(([192, 0, high, low], cluster::MESH_PORT)));
            let range = IpNet::new(IpAddr::from([10, 64 + high, low, 0]), 24).unwrap();
            (PublicKey::new(bytes).unwrap(), Peer { endpoint, allowed: [range].into() })
        };
        (1..=count).map(peer).collect()
    }

    #[test]
    fn a_change_of_one_node_is_one_message() {
        for count in [10, 100, 1000] {
            let all = cluster(count);
            let (first, peer) = all.first_key_value().unwrap();
            let mut less = all.clone();
            less.remove(first);
            let mut moved = all.clone();
            moved.get_mut(first).unwrap().endpoint = Some("192.0.2.9:7838".parse().unwrap());
            let mut rotated = less.clone();
            rotated.insert(key(255), peer.clone());
            for (want, bytes) in [(&less, 88), (&moved, 108), (&rotated, 188)] {
                let cost = cost(&diff(&all, want));
                assert_eq!((cost.messages, cost.bytes), (1, bytes), "{count}");
            }
            assert_eq!(cost(&diff(&less, &all)), Cost { messages: 1, bytes: 140, largest: 140 });
            assert_eq!(cost(&diff(&all, &all)), Cost::default());
        }
    }

    #[test]
    fn all_nodes_fit_into_a_few_messages_of_limited_size() {
        for (count, messages, bytes) in [(10, 1, 1040), (100, 1, 10_040), (1000, 4, 100_160)] {
            let cost = cost(&diff(&Peers::new(), &cluster(count)));
            assert_eq!((cost.messages, cost.bytes), (messages, bytes));
            assert!(cost.largest <= MOST + 64, "{cost:?}");
        }
    }

    #[test]
    fn sessions_with_all_nodes_fit_into_a_few_messages_of_limited_size() {
        for (count, messages, bytes) in [(10, 1, 1160), (100, 1, 11_240), (1000, 4, 112_160)] {
            let keys: Vec<PublicKey> = cluster(count).into_keys().collect();
            let cost = total(sessions(0, INTERFACE, &keys));
            assert_eq!((cost.messages, cost.bytes), (messages, bytes));
            assert!(cost.largest <= MOST + 64, "{cost:?}");
        }
    }

    #[test]
    fn a_peer_with_very_many_ranges_is_split() {
        let ranges = (0_u32..9999).map(|number| IpNet::new(IpAddr::from((number << 12).to_be_bytes()), 24).unwrap());
        let many = Peer { allowed: ranges.collect(), ..peer(1, []) };
        let have = Peers::from([(key(1), peer(1, [3])), (key(2), peer(2, [2]))]);
        let want = Peers::from([(key(1), many), (key(2), peer(2, [2]))]);
        let plan = diff(&have, &want);
        assert!(cost(&plan).largest < 48 << 10, "{:?}", cost(&plan));
        let mut kernel = have;
        receive(&mut kernel, &changes(7, INTERFACE, &plan));
        assert_eq!(kernel, want);
    }

    #[test]
    fn the_parts_of_a_dump_are_combined() {
        let attributes = |ranges: &[IpNet], more: Vec<WireguardPeerAttribute>| {
            let mut all = vec![WireguardPeerAttribute::PublicKey(key(1).bytes())];
            all.extend(more);
            all.push(WireguardPeerAttribute::AllowedIps(ranges.iter().copied().map(allowed_ip).collect()));
            WireguardAttribute::Peers(vec![WireguardPeer(all)])
        };
        let at = netlink_packet_wireguard::WireguardTimeSpec { seconds: 5, nano_seconds: 0 };
        let more = vec![
            WireguardPeerAttribute::Endpoint("192.0.2.1:7838".parse().unwrap()),
            WireguardPeerAttribute::LastHandshake(at),
            WireguardPeerAttribute::RxBytes(3),
            WireguardPeerAttribute::TxBytes(4),
        ];
        let part_of = |attribute| message(7, WireguardCmd::GetDevice, vec![attribute]);
        let first = vec![WireguardAttribute::ListenPort(7838), attributes(&[part(1)], more)];
        let first = message(7, WireguardCmd::GetDevice, first);
        let found = found(vec![first, part_of(attributes(&[part(2)], vec![]))]);
        let traffic = Traffic { handshake: Some(UNIX_EPOCH + Duration::from_secs(5)), received: 3, sent: 4 };
        assert_eq!(found.peers, [(key(1), PeerState { peer: peer(1, [1, 2]), traffic })].into());
        assert_eq!(found.port, 7838);
    }
}
