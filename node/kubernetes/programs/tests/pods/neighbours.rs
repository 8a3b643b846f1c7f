//! Two pods of one node: neither can use the other's address, at any layer.

use std::fs;
use std::net::{Ipv4Addr, SocketAddrV4};

use ktest_support::{Namespace, eventually};

use crate::frame::{Frame, Mac, claim, mac};
use crate::node::{self, GATEWAY, LINKS, NODE, Node, OTHER, OUTSIDE, PODS, PORT, RANGE, addresses, reaches, receives};

const ABSENT: Mac = [2, 0, 0, 0, 0, 9];

fn neighbour(host: &Namespace, address: Ipv4Addr) -> Option<String> {
    // `/proc/net` is that of the process's first thread.
    let table = host.run(|| fs::read_to_string("/proc/thread-self/net/arp").unwrap());
    let line = table.lines().find(|line| line.split_whitespace().next() == Some(&address.to_string()))?;
    Some(line.split_whitespace().nth(3).unwrap().to_owned())
}

fn text(mac: Mac) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

#[test]
fn a_pod_cannot_send_from_the_address_of_another_pod() {
    let node = Node::bare();
    let (pod, outside) = (&node.pods[0], (&node.outside, OUTSIDE));
    addresses(pod, "end", &[(PODS[1], 32)]);
    let forged = || assert_eq!(node::socket(pod, PODS[1], 0).send_to(b"?", (OUTSIDE, PORT)).unwrap(), 1);
    assert_eq!(receives(outside, forged), PODS[1]);
    node.network(RANGE).unwrap();
    for to in [outside, (&node.other, OTHER), (&node.host, NODE)] {
        node.loses("another pod's address", (pod, PODS[1]), to);
    }
    let other = (&node.pods[1], PODS[1]);
    assert_eq!(reaches(other, outside), NODE);
    assert_eq!(reaches((&node.host, Ipv4Addr::UNSPECIFIED), other), GATEWAY);
}

/// After a deletion, the rules are missing for up to five minutes.
#[test]
fn without_rules_the_kernel_itself_drops_another_pods_address() {
    let node = Node::bare();
    // The value that the node sets for each new link.
    node.host.run(|| fs::write(format!("/proc/sys/net/ipv4/conf/{}/rp_filter", LINKS[0]), "1").unwrap());
    let dropped = || {
        let counters = node.host.run(|| fs::read_to_string("/proc/thread-self/net/netstat").unwrap());
        let mut lines = counters.lines().filter(|line| line.starts_with("TcpExt:"));
        let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
        let at = names.split(' ').position(|name| name == "IPReversePathFilter").unwrap();
        values.split(' ').nth(at).unwrap().parse::<u64>().unwrap()
    };
    let (before, to) = (dropped(), (&node.host, NODE));
    let there = node::socket(to.0, to.1, PORT);
    there.set_nonblocking(true).unwrap();
    let destination = SocketAddrV4::new(NODE, PORT);
    for source in [OTHER, PODS[1]] {
        Frame { tags: &[], source, destination }.send((&node.pods[0], "end"), (&node.host, LINKS[0]));
    }
    eventually("two packets to be dropped", || dropped() == before + 2);
    assert!(there.recv(&mut [0; 8]).is_err());
    drop(there);
    assert_eq!(reaches((&node.pods[0], PODS[0]), to), PODS[0]);
}

#[test]
fn a_pod_cannot_take_the_mac_address_of_another_pod() {
    let node = Node::new();
    let (host, other) = ((&node.host, Ipv4Addr::UNSPECIFIED), (&node.pods[1], PODS[1]));
    assert_eq!(reaches(host, other), GATEWAY);
    let stolen = mac(other.0, "end");
    let frame = Frame { tags: &[], source: PODS[0], destination: SocketAddrV4::new(NODE, PORT) };
    let send = || frame.send_as(stolen, (&node.pods[0], "end"), (&node.host, LINKS[0]));
    assert_eq!(receives((&node.host, NODE), send), PODS[0], "the frame arrives");
    assert_eq!(reaches(host, other), GATEWAY, "a bridge would send to the pod that used the address last");
}

#[test]
fn a_pod_cannot_answer_for_the_gateway_or_for_another_pod() {
    let node = Node::new();
    let [thief, victim] = [0, 1].map(|pod| (&node.pods[pod], PODS[pod]));
    for pod in [thief, victim] {
        assert_eq!(reaches(pod, (&node.host, NODE)), pod.1);
    }
    let [gateway, own] = [mac(&node.host, LINKS[1]), mac(victim.0, "end")].map(text);
    assert_eq!(neighbour(victim.0, GATEWAY).as_deref(), Some(&*gateway));
    assert_eq!(neighbour(&node.host, victim.1).as_deref(), Some(&*own));
    for address in [GATEWAY, victim.1] {
        claim(address, mac(thief.0, "end"), (thief.0, "end"));
    }
    // This claim is the last, and is accepted: a link delivers frames in order.
    claim(thief.1, ABSENT, (thief.0, "end"));
    eventually("the pod's own claim", || neighbour(&node.host, thief.1) == Some(text(ABSENT)));
    assert_eq!(neighbour(victim.0, GATEWAY), Some(gateway));
    assert_eq!(neighbour(&node.host, victim.1), Some(own));
    assert_eq!(reaches(victim, (&node.host, NODE)), victim.1);
    assert_eq!(reaches((&node.host, Ipv4Addr::UNSPECIFIED), victim), GATEWAY);
}
