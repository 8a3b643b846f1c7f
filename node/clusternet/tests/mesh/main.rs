//! The mesh of two hosts in one kernel, with real packets and interfaces.

mod node;
mod wg;

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::UNIX_EPOCH;

use clusternet::{
    Change, Device as _, INTERFACE, Link, Member, Mesh, Metrics, Neighbour, Peer, PeerState, Peers, PodNetwork,
    PrivateKey, PublicKey, Traffic, Wireguard, diff, plan,
};
use dir::Dir;
use futures::TryStreamExt as _;
use ipnet::IpNet;
use ktest_support::{Namespace, eventually, process};
use nix::libc::SYS_sendto;
use rtnetlink::packet_route::link::LinkAttribute;
use rtnetlink::packet_route::route::{RouteAddress, RouteAttribute};
use rtnetlink::{LinkDummy, LinkUnspec, RouteMessageBuilder};

use crate::node::{LIMIT, index, mesh, range, two};

#[test]
fn pods_of_two_nodes_reach_each_other() {
    let (one, two) = mesh();
    // Packets without an explicit source get a source address that the other node accepts.
    assert_eq!(one.reaches(&two, "from one"), one.address());
    assert_eq!(two.reaches(&one, "from two"), two.address());

    let address = SocketAddr::new(two.address(), 7000);
    let listener = two.host.run(move || TcpListener::bind(address)).unwrap();
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut all = vec![];
        stream.read_to_end(&mut all).unwrap();
        stream.write_all(&all).unwrap();
    });
    let sent: Vec<u8> = (0..200_000_u32).map(|number| number.to_le_bytes()[0]).collect();
    let mut stream = one.host.run(move || TcpStream::connect_timeout(&address, LIMIT)).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.write_all(&sent).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut received = vec![];
    stream.read_to_end(&mut received).unwrap();
    server.join().unwrap();
    assert!(received == sent, "{} of {} bytes", received.len(), sent.len());

    let traffic = one.seen()[&two.key].traffic;
    assert!(traffic.handshake.is_some_and(|at| at > UNIX_EPOCH));
    assert!(traffic.received > 200_000 && traffic.sent > 200_000, "{traffic:?}");
}

#[test]
fn neighbours_are_listed_with_their_traffic() {
    let (one, two) = mesh();
    let neighbours = || {
        let device = std::sync::Arc::clone(&one.device);
        one.host.run(move || Metrics::default().neighbours(&*device).unwrap())
    };
    let (key, peer) = two.peer("192.0.2.");
    let silent = PeerState { peer, traffic: Traffic::default() };
    assert_eq!(neighbours(), [Neighbour { node: None, key, state: silent }], "the Nodes were not listed");
    one.reaches(&two, "word");
    let traffic = neighbours()[0].state.traffic;
    assert!(traffic.handshake.is_some_and(|at| at.elapsed().is_ok_and(|ago| ago < LIMIT)), "{traffic:?}");
    // The two messages of a handshake, drivers/net/wireguard/messages.h.
    assert!(traffic.sent >= 148 && traffic.received >= 92, "{traffic:?}");

    // From here on, only the kernel sends packets.
    eventually("wg to show the same", || {
        let traffic = one.seen()[&two.key].traffic;
        let seconds = traffic.handshake.and_then(|at| at.duration_since(UNIX_EPOCH).ok()).map_or(0, |at| at.as_secs());
        wg::traffic(&one.host, INTERFACE) == [(two.key.to_string(), [seconds, traffic.received, traffic.sent])]
    });
}

#[test]
fn an_existing_interface_is_adopted_with_its_peers() {
    let (mut one, two) = mesh();
    one.reaches(&two, "before");
    let (before, key, number) = (one.seen(), one.key, index(&one));
    one.restart();
    one.place([one.range()]);
    assert_eq!((one.key, index(&one)), (key, number));
    assert_eq!(one.seen(), before, "no new keys were negotiated");
    assert_eq!(one.peers(Peers::from([two.peer("192.0.2.")])), []);
    one.reaches(&two, "after");
}

/// Regression test: packets of nodes with a session that the rebooted node had lost did not arrive for 15 s.
#[test]
fn a_node_that_boots_again_begins_a_session() {
    let (one, mut two) = mesh();
    let key = two.key;
    let handshake = || one.seen()[&key].traffic.handshake;
    one.reaches(&two, "before");
    // After packets in both directions, the other kernel waits for no response and begins no session itself.
    two.reaches(&one, "before");
    let before = handshake();
    let number = index(&two);
    two.host.netlink(async move |netlink| netlink.link().del(number).execute().await);
    two.restart();
    two.place([two.range()]);
    two.peers(Peers::from([one.peer("192.0.2.")]));
    let peer = one.key;
    two.with(move |device| device.begin_sessions(&[peer]).unwrap());
    eventually("another session", || handshake() > before);
    one.reaches(&two, "after");
    assert_eq!(wg::keepalives(&two.host, INTERFACE), ["off"], "a repair would begin a session");
}

#[test]
fn a_correct_interface_is_not_changed() {
    let (one, _two) = mesh();
    let device = std::sync::Arc::clone(&one.device);
    let calls = one.host.run(move || {
        let again = || {
            device.ensure().unwrap();
            device.change(&[]).unwrap();
        };
        process::calls(again).into_iter().filter(|call| *call == SYS_sendto).count()
    });
    // One call reads the link, the other one the key.
    assert_eq!(calls, 2);
}

#[test]
fn a_modified_interface_is_repaired_and_keeps_its_peers() {
    let (one, two) = mesh();
    one.host.netlink(async |netlink| {
        netlink.link().set(LinkUnspec::new_with_name(INTERFACE).mtu(1280).down().build()).execute().await
    });
    let disk = tempfile::tempdir().unwrap();
    let (there, other_port) = (Dir::open(disk.path()).unwrap(), Link { port: 1234, ..Link::default() });
    let other = one.host.run(move || {
        let key = PrivateKey::ensure(&there).unwrap().into_inner();
        Wireguard::new(key, other_port).ensure().unwrap()
    });
    assert_ne!(other, one.key);
    let key = one.with(|device| device.ensure().unwrap());
    assert_eq!(key, one.key);
    assert_eq!(wg::peers(&one.host, INTERFACE).len(), 1);
    assert_eq!(mtu(&one.host), 1420);
    two.reaches(&one, "it listens on its port");
}

#[test]
fn an_interface_of_another_kind_is_rejected() {
    let host = Namespace::new();
    host.netlink(async |netlink| netlink.link().add(LinkDummy::new(INTERFACE).build()).execute().await);
    let disk = tempfile::tempdir().unwrap();
    let dir = Dir::open(disk.path()).unwrap();
    let error = host.run(move || {
        let key = PrivateKey::ensure(&dir).unwrap().into_inner();
        Wireguard::new(key, Link::default()).ensure().unwrap_err()
    });
    assert_eq!(
        error.to_string(),
        "network interface clusternet exists and is not a WireGuard interface; remove or rename it"
    );
}

#[test]
fn a_node_with_a_new_key_is_reached_only_by_it() {
    let (one, mut two) = mesh();
    two.reaches(&one, "by the old key");
    let old = two.key;
    std::fs::remove_file(two.disk.path().join("clusternet.key")).unwrap();
    two.restart();
    assert_ne!(two.key, old);
    let changes = one.peers(Peers::from([two.peer("192.0.2.")]));
    assert_eq!(changes, [Change::Remove(old), Change::Add(two.key, two.peer("192.0.2.").1)]);
    assert_eq!(wg::peers(&one.host, INTERFACE), [format!("{} 192.0.2.2:7838 10.244.2.0/24", two.key)]);
    one.reaches(&two, "by the new key");
}

#[test]
fn a_node_that_was_removed_meanwhile_loses_access() {
    let (mut one, two) = mesh();
    one.reaches(&two, "a member");
    // A restarted node has no state of the earlier run.
    one.restart();
    assert_eq!(one.peers(Peers::new()), [Change::Remove(two.key)]);
    assert_eq!(wg::peers(&one.host, INTERFACE), [""; 0]);
    assert!(one.is_cut_off_from(&two));

    // Send packets in the other direction, with the session that the other node still has.
    let (here, there) = (two.socket(two.address()), one.socket(one.address()));
    let to = there.local_addr().unwrap();
    let sent = || two.seen()[&one.key].traffic.sent;
    let before = sent();
    here.send_to(b"removed", to).unwrap();
    eventually("it to be sent", || sent() > before);
    // The node is a peer again before the next packet.
    one.peers(Peers::from([two.peer("192.0.2.")]));
    one.reaches(&two, "by another session");
    here.send_to(b"a member again", to).unwrap();
    let mut bytes = [0; 64];
    let (length, _) = there.recv_from(&mut bytes).unwrap();
    assert_eq!(&bytes[..length], b"a member again");
}

#[test]
fn nodes_reach_each_other_by_ipv6() {
    let (one, two) = two();
    one.peers(Peers::from([two.peer("2001:db8::")]));
    two.peers(Peers::from([one.peer("2001:db8::")]));
    assert_eq!(one.reaches(&two, "by IPv6"), one.address());
    assert_eq!(wg::peers(&one.host, INTERFACE), [format!("{} [2001:db8::2]:7838 10.244.2.0/24", two.key)]);
    // Both endpoints are equal for the diff, so nothing changes.
    assert_eq!(one.peers(Peers::from([two.peer("2001:db8::")])), []);
}

#[test]
fn an_invalid_key_does_not_affect_other_peers() {
    let (one, two) = two();
    let member = |number: u8, key: String| Member {
        name: format!("node-{number}"),
        key: Some(key),
        addresses: vec![format!("192.0.2.{number}")],
        networks: vec![range(number).to_string()],
        ..Member::default()
    };
    let good = PublicKey::new([9; 32]).unwrap();
    let members = [
        member(1, one.key.to_string()),
        member(2, two.key.to_string()),
        member(3, "rubbish".into()),
        member(4, one.key.to_string()),
        member(5, good.to_string()),
    ];
    let network = PodNetwork { network: "10.244.0.0/16".parse().unwrap(), node_prefix: 24 };
    let found = plan(Mesh { node: "node-1", key: one.key, networks: &[network] }, &members);
    assert_eq!(found.rejected.len(), 2);
    one.peers(found.peers.clone());
    let mut expected =
        [format!("{} 192.0.2.2:7838 10.244.2.0/24", two.key), format!("{good} 192.0.2.5:7838 10.244.5.0/24")];
    expected.sort();
    assert_eq!(wg::peers(&one.host, INTERFACE), expected);
    assert_eq!(one.peers(found.peers), []);
}

/// An attacker who controls a node has its key and can send any packets.
#[test]
fn a_node_cannot_send_from_addresses_of_another() {
    let (one, two) = mesh();
    let foreign = IpAddr::from([10, 244, 3, 9]);
    let number = index(&two);
    two.host.netlink(async move |netlink| netlink.address().add(number, foreign, 32).execute().await);
    let there = one.socket(one.address());
    let to = there.local_addr().unwrap();
    two.socket(foreign).send_to(b"from a pod of a third", to).unwrap();
    two.socket(two.address()).send_to(b"from its own", to).unwrap();
    let mut bytes = [0; 64];
    // Packets of a tunnel stay in order, so the first one is dropped before the second one arrives.
    let (length, from) = there.recv_from(&mut bytes).unwrap();
    assert_eq!((&bytes[..length], from.ip()), (&b"from its own"[..], two.address()));
    there.set_nonblocking(true).unwrap();
    assert!(there.recv_from(&mut bytes).is_err());
}

/// A route without a source would use the address of the cable, from which other nodes drop packets.
#[test]
fn the_host_sends_to_pods_from_its_mesh_address() {
    let (one, _two) = two();
    assert_eq!(sources(&one.host), [one.address()]);
    // A Node that was created again has another range.
    one.place([one.range()]);
    one.place([range(7)]);
    assert_eq!(sources(&one.host), [IpAddr::from([10, 244, 7, 1])]);
    assert_eq!(addresses(&one.host), [IpAddr::from([10, 244, 7, 1])]);
}

#[test]
fn a_route_without_source_is_repaired_and_foreign_ones_kept() {
    let (one, _two) = two();
    let number = index(&one);
    route_pods(&one.host, number);
    assert_eq!(sources(&one.host), [IpAddr::from([0; 4])]);
    one.place([one.range()]);
    assert_eq!(sources(&one.host), [one.address()]);

    let cable = one.host.run(|| nix::net::if_::if_nametoindex("cable1").unwrap());
    route_pods(&one.host, cable);
    one.place([one.range()]);
    assert_eq!(sources(&one.host), [IpAddr::from([0; 4])]);
}

#[test]
fn a_range_of_ipv6_pods_has_its_address_and_route() {
    let (one, two) = two();
    let network: IpNet = "fd00::/48".parse().unwrap();
    for node in [&one, &two] {
        let address: IpAddr = format!("fd00:0:0:{}::1", node.number).parse().unwrap();
        let place = clusternet::Place { address, network };
        for _ in 0..2 {
            node.with(move |device| device.place(&[place].into()).unwrap());
        }
    }
    let with_range = |node: &node::Node| {
        let allowed = [format!("fd00:0:0:{}::/64", node.number).parse().unwrap()].into();
        (node.key, Peer { allowed, ..node.peer("192.0.2.").1 })
    };
    one.peers(Peers::from([with_range(&two)]));
    two.peers(Peers::from([with_range(&one)]));
    let there = two.socket("fd00:0:0:2::1".parse().unwrap());
    let from = one.socket("::".parse().unwrap());
    from.send_to(b"word", there.local_addr().unwrap()).unwrap();
    let (_, from) = there.recv_from(&mut [0; 8]).unwrap();
    assert_eq!(from.ip(), "fd00:0:0:1::1".parse::<IpAddr>().unwrap());
}

#[test]
fn a_thousand_nodes_need_few_messages() {
    let (one, _two) = two();
    let all: Peers = (1..=1000_u32).map(peer).collect();
    assert_eq!(sends(&one, &diff(&Peers::new(), &all)), 4);
    let shown = wg::peers(&one.host, INTERFACE);
    assert_eq!(shown.len(), 1000);
    let mut lines: Vec<String> = all.iter().map(line).collect();
    lines.sort();
    assert_eq!(shown, lines);
    // The dump consists of many messages.
    let seen: Peers = one.seen().into_iter().map(|(key, seen)| (key, seen.peer)).collect();
    assert_eq!(seen, all);

    let more: Peers = all.clone().into_iter().chain([peer(1001)]).collect();
    assert_eq!(sends(&one, &diff(&all, &more)), 1);
    let mut less = more.clone();
    less.remove(&peer(7).0);
    assert_eq!(sends(&one, &diff(&more, &less)), 1);
    assert_eq!(wg::peers(&one.host, INTERFACE).len(), 1000);
}

/// Number of netlink messages of the changes, counted by a tracer.
fn sends(node: &node::Node, changes: &[Change]) -> usize {
    let (device, changes) = (std::sync::Arc::clone(&node.device), changes.to_vec());
    node.host.run(move || {
        let calls = process::calls(|| device.change(&changes).unwrap());
        calls.into_iter().filter(|call| *call == SYS_sendto).count()
    })
}

fn peer(number: u32) -> (PublicKey, Peer) {
    let mut bytes = [7; 32];
    bytes[..4].copy_from_slice(&number.to_be_bytes());
    let [.., high, low] = number.to_be_bytes();
    let endpoint = Some(SocketAddr::from(([192, 0, 2, low], 7838)));
    let range = IpNet::new(IpAddr::from([10, 64 + high, low, 0]), 24).unwrap();
    (PublicKey::new(bytes).unwrap(), Peer { endpoint, allowed: [range].into() })
}

fn line((key, peer): (&PublicKey, &Peer)) -> String {
    let ranges: Vec<String> = peer.allowed.iter().map(ToString::to_string).collect();
    format!("{key} {} {}", peer.endpoint.unwrap(), ranges.join(","))
}

/// Routes the pod network through this interface, without a source.
fn route_pods(host: &Namespace, interface: u32) {
    host.netlink(async move |netlink| {
        let route = RouteMessageBuilder::<std::net::Ipv4Addr>::new().destination_prefix([10, 244, 0, 0].into(), 16);
        netlink.route().add(route.output_interface(interface).build()).replace().execute().await
    });
}

/// Preferred sources of the routes to the pod network; 0.0.0.0 for a route without a source.
fn sources(host: &Namespace) -> Vec<IpAddr> {
    host.netlink(async |netlink| {
        let question = RouteMessageBuilder::<std::net::Ipv4Addr>::new().build();
        let all: Vec<_> = netlink.route().get(question).execute().try_collect().await?;
        let to = RouteAttribute::Destination(RouteAddress::Inet([10, 244, 0, 0].into()));
        let routes = all.iter().filter(|route| route.attributes.contains(&to));
        let source = |attribute: &RouteAttribute| match attribute {
            RouteAttribute::PrefSource(RouteAddress::Inet(address)) => Some(IpAddr::V4(*address)),
            _ => None,
        };
        Ok(routes.map(|route| route.attributes.iter().find_map(source).unwrap_or(IpAddr::from([0; 4]))).collect())
    })
}

fn addresses(host: &Namespace) -> Vec<IpAddr> {
    host.netlink(async |netlink| {
        use rtnetlink::packet_route::address::AddressAttribute;

        let number = nix::net::if_::if_nametoindex(INTERFACE).unwrap();
        let all = netlink.address().get().set_link_index_filter(number).execute();
        let all: Vec<_> = all.try_collect().await?;
        let local = |attribute: &AddressAttribute| match attribute {
            AddressAttribute::Local(address) => Some(*address),
            _ => None,
        };
        Ok(all.iter().filter_map(|message| message.attributes.iter().find_map(local)).collect())
    })
}

fn mtu(host: &Namespace) -> u32 {
    host.netlink(async |netlink| {
        let all: Vec<_> = netlink.link().get().match_name(INTERFACE.to_owned()).execute().try_collect().await?;
        let mtu = |attribute: &LinkAttribute| match attribute {
            LinkAttribute::Mtu(mtu) => Some(*mtu),
            _ => None,
        };
        Ok(all[0].attributes.iter().find_map(mtu).unwrap())
    })
}
