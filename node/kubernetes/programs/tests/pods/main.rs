//! Tests the rules for packets of pods with packets. Senders and receivers are network namespaces of one kernel.

mod api;
mod claims;
mod frame;
mod neighbours;
mod node;

use std::net::{Ipv4Addr, SocketAddrV4, SocketAddrV6, UdpSocket};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use ktest_support::eventually;
use nix::net::if_::if_nametoindex;
use serde_json::Value;
use tokio::time;

use crate::frame::{Frame, PROVIDERS_TAG, TAG};
use crate::node::{
    GATEWAY, LINKS, NODE, Node, OTHER, OUTSIDE, PODS, PORT, RANGE, addresses, reaches, reaches_by, receives, remove,
};

#[test]
fn what_leaves_the_cluster_has_the_nodes_address() {
    let node = Node::new();
    let outside = (&node.outside, OUTSIDE);
    assert_eq!(reaches((&node.pods[0], PODS[0]), outside), NODE);
    // Packets of the host itself, from each of its addresses.
    assert_eq!(reaches((&node.host, NODE), outside), NODE);
    assert_eq!(reaches((&node.host, GATEWAY), outside), NODE);
}

#[test]
fn a_pod_keeps_its_address_on_the_way_to_another_pod() {
    let node = Node::new();
    let [one, two] = [(&node.pods[0], PODS[0]), (&node.pods[1], PODS[1])];
    let other = (&node.other, OTHER);
    assert_eq!(reaches(one, other), PODS[0]);
    assert_eq!(reaches(other, one), OTHER);
    assert_eq!(reaches(one, two), PODS[0]);
}

#[test]
fn the_host_reaches_pods_from_its_address_among_them() {
    let node = Node::new();
    let any = (&node.host, Ipv4Addr::UNSPECIFIED);
    assert_eq!(reaches(any, (&node.other, OTHER)), GATEWAY);
    assert_eq!(reaches(any, (&node.pods[0], PODS[0])), GATEWAY);
    assert_eq!(reaches((&node.other, OTHER), (&node.host, GATEWAY)), OTHER);
    assert_eq!(reaches((&node.pods[0], PODS[0]), (&node.host, NODE)), PODS[0]);
}

#[test]
fn a_pod_cannot_send_from_an_unused_address() {
    let node = Node::new();
    let foreign = Ipv4Addr::new(10, 244, 2, 77);
    let forged = [foreign, OUTSIDE, GATEWAY];
    addresses(&node.pods[0], "end", &forged.map(|address| (address, 32)));
    for forged in forged {
        node.loses("no pod's address", (&node.pods[0], forged), (&node.pods[1], PODS[1]));
    }
    for to in [(&node.other, OTHER), (&node.host, NODE)] {
        node.loses("no pod's address", (&node.pods[0], foreign), to);
    }
    addresses(&node.pods[1], "end", &[(foreign, 32)]);
    node.loses("no pod's address", (&node.pods[1], foreign), (&node.outside, OUTSIDE));
}

#[test]
fn other_machines_neither_use_pods_addresses_nor_reach_pods() {
    let node = Node::new();
    for to in [(&node.pods[0], PODS[0]), (&node.host, GATEWAY), (&node.other, OTHER)] {
        node.loses("past the mesh", (&node.outside, OUTSIDE), to);
    }
    addresses(&node.outside, "end", &[(OTHER, 32), (PODS[1], 32)]);
    for forged in [OTHER, PODS[1]] {
        node.loses("past the mesh", (&node.outside, forged), (&node.host, NODE));
    }
    assert_eq!(reaches((&node.outside, OUTSIDE), (&node.host, NODE)), OUTSIDE);
}

#[test]
fn without_the_mesh_nothing_for_pods_goes_out_in_the_clear() {
    let node = Node::new();
    remove(&node.host, "clusternet");
    addresses(&node.outside, "end", &[(OTHER, 32)]);
    node.loses("past the mesh", (&node.pods[0], PODS[0]), (&node.outside, OTHER));
    let host = node::socket(&node.host, NODE, 0);
    let sent = host.send_to(b"?", (OTHER, PORT));
    assert_eq!(sent.unwrap_err().raw_os_error(), Some(nix::libc::EPERM));
}

#[test]
fn a_pod_does_not_reach_the_loopback_addresses_of_its_node() {
    let node = Node::bare();
    node.route_loopback();
    let host = (&node.host, Ipv4Addr::LOCALHOST);
    let destination = SocketAddrV4::new(Ipv4Addr::LOCALHOST, PORT);
    let frame = Frame { tags: &[], source: PODS[0], destination };
    let send = || frame.send((&node.pods[0], "end"), (&node.host, LINKS[0]));
    assert_eq!(receives(host, send), PODS[0]);
    node.network(RANGE).unwrap();
    node.loses_what("loopback", host, send);
}

#[test]
fn no_packet_passes_the_rules_behind_tags() {
    let node = Node::bare();
    let to = (&node.pods[1], PODS[1]);
    let destination = SocketAddrV4::new(PODS[1], PORT);
    let send = |tags: &[_]| {
        Frame { tags, source: OUTSIDE, destination }.send((&node.pods[0], "end"), (&node.host, LINKS[0]));
    };
    let all: [&[_]; 4] = [&[], &[TAG], &[PROVIDERS_TAG], &[TAG, TAG]];
    for tags in all {
        assert_eq!(receives(to, || send(tags)), OUTSIDE);
    }
    node.network(RANGE).unwrap();
    for tags in all {
        node.loses_what("no pod's address", to, || send(tags));
    }
}

/// Rules that make packets of a pod untracked: the kernel translates no address in them.
const UNTRACKED: &str = "
table ip untracked {
    chain from {
        type filter hook prerouting priority raw;
        ip saddr 10.244.1.5 notrack
    }
}
";

#[test]
fn no_pods_address_goes_out() {
    let node = Node::new();
    node.load(UNTRACKED);
    node.loses("past the mesh", (&node.pods[0], PODS[0]), (&node.outside, OUTSIDE));
    assert_eq!(reaches((&node.pods[1], PODS[1]), (&node.outside, OUTSIDE)), NODE);
}

#[test]
fn another_node_cannot_use_this_one_as_its_router() {
    let node = Node::new();
    for to in [(&node.outside, OUTSIDE), (&node.host, NODE)] {
        node.loses("the node routes for pods only", (&node.other, OTHER), to);
    }
}

#[test]
fn pods_have_no_ipv6() {
    let node = Node::bare();
    let [pod, host] = [&node.pods[0], &node.host].map(|end| end.run(|| UdpSocket::bind(("::", PORT)).unwrap()));
    let number = node.pods[0].run(|| if_nametoindex("end").unwrap());
    let all = SocketAddrV6::new("ff02::1".parse().unwrap(), PORT, 0, number);
    // IPv6 duplicate address detection precedes the use of the link-local address.
    eventually("an address of IPv6", || pod.send_to(b"test", all).is_ok());
    host.set_read_timeout(Some(node::LIMIT)).unwrap();
    assert_eq!(host.recv(&mut [0; 8]).unwrap(), b"test".len());

    node.network(RANGE).unwrap();
    host.set_nonblocking(true).unwrap();
    let before = node.dropped("pods have no IPv6");
    pod.send_to(b"lost", all).unwrap();
    eventually("a packet to be dropped", || node.dropped("pods have no IPv6") > before);
    assert!(host.recv(&mut [0; 8]).is_err());
}

/// Rules of kube-proxy and the portmap plugin, reduced to their effect on packets.
const TRANSLATION: &str = "
table ip services {
    chain translate {
        ip daddr 10.96.0.1 dnat to 10.244.1.6
        ip daddr 10.96.0.2 dnat to 10.244.2.5
        ip daddr { 127.0.0.1, 192.0.2.1 } udp dport 8080 dnat to 10.244.1.5:7000
    }
    chain to {
        type nat hook prerouting priority dstnat;
        jump translate
    }
    chain from_host {
        type nat hook output priority -100;
        jump translate
    }
    chain hide {
        type nat hook postrouting priority srcnat;
        ip saddr 10.244.1.6 ip daddr 10.244.1.6 masquerade
        ip saddr { 127.0.0.1, 192.0.2.1 } oifname { veth0, veth1, clusternet } masquerade
    }
}
";

#[test]
fn services_and_host_ports_work_beside_these_rules() {
    let node = Node::new();
    node.load(TRANSLATION);
    let [one, two] = [(&node.pods[0], PODS[0]), (&node.pods[1], PODS[1])];
    let [here, there] = [1, 2].map(|service| (Ipv4Addr::new(10, 96, 0, service), PORT).into());
    assert_eq!(reaches_by(one, here, two), PODS[0]);
    assert_eq!(reaches_by(one, there, (&node.other, OTHER)), PODS[0]);
    assert_eq!(reaches_by(two, here, two), GATEWAY, "a pod that reaches itself by a Service sees another's address");
    assert_eq!(reaches_by((&node.outside, OUTSIDE), (NODE, 8080).into(), one), OUTSIDE);
    node.route_loopback();
    let host = (&node.host, Ipv4Addr::UNSPECIFIED);
    assert_eq!(reaches_by(host, here, two), GATEWAY);
    assert_eq!(reaches_by(host, there, (&node.other, OTHER)), GATEWAY);
    for address in [Ipv4Addr::LOCALHOST, NODE] {
        assert_eq!(reaches_by(host, (address, 8080).into(), one), GATEWAY, "a host port of {address}");
    }
}

/// A tenant may redirect a Service to any address.
const A_TENANTS_SERVICE: &str = "
table ip tenant {
    chain to {
        type nat hook prerouting priority dstnat;
        ip protocol udp ip daddr 10.96.0.9 dnat to 192.0.2.9:7839
        ip daddr 192.0.2.1 udp dport 30000 dnat to 192.0.2.9:7839
    }
}
";

#[test]
fn a_pod_does_not_reach_what_trusts_its_nodes_address() {
    let node = Node::new();
    node.load(A_TENANTS_SERVICE);
    let (pod, outside) = ((&node.pods[0], PODS[0]), (&node.outside, OUTSIDE));
    for by in [(OUTSIDE, 7839), (Ipv4Addr::new(10, 96, 0, 9), PORT)] {
        node.loses_by("for nodes", pod, by.into(), outside);
    }
    assert_eq!(reaches(pod, outside), NODE);
}

/// Regression: kube-proxy gives these packets the node's address as source, so that the control plane's node ports led
/// to the status of workers.
#[test]
fn a_node_port_does_not_lead_to_the_status_of_a_node() {
    let node = Node::new();
    node.load(A_TENANTS_SERVICE);
    let outside = (&node.outside, OUTSIDE);
    node.loses_by("for nodes", outside, (NODE, 30_000).into(), outside);
}

#[test]
fn other_machines_do_not_reach_services() {
    let node = Node::bare();
    node.load(TRANSLATION);
    let outside = (&node.outside, OUTSIDE);
    let services = [(1, (&node.pods[1], PODS[1])), (2, (&node.other, OTHER))]
        .map(|(service, to)| ((Ipv4Addr::new(10, 96, 0, service), PORT).into(), to));
    for (service, to) in services {
        assert_eq!(reaches_by(outside, service, to), OUTSIDE);
    }
    node.network(RANGE).unwrap();
    for (service, to) in services {
        node.loses_by("past the mesh", outside, service, to);
    }
}

/// kube-proxy has not programmed the Service yet, or has deleted it.
#[test]
fn packets_to_an_unknown_service_stay_on_the_node() {
    let node = Node::bare();
    let service = Ipv4Addr::new(10, 96, 0, 7);
    let (pod, outside) = ((&node.pods[0], PODS[0]), (&node.outside, service));
    addresses(outside.0, "end", &[(service, 32)]);
    assert_eq!(reaches(pod, outside), PODS[0]);
    node.network(RANGE).unwrap();
    node.loses("unknown Service", pod, outside);
    let sent = node::socket(&node.host, NODE, 0).send_to(b"?", (service, PORT));
    assert_eq!(sent.unwrap_err().raw_os_error(), Some(nix::libc::EPERM));
}

#[test]
fn rules_are_there_once_however_often_they_are_loaded() {
    let node = Node::new();
    let (rules, conflist) = (node.rules(), node.conflist());
    node.network(RANGE).unwrap();
    assert_eq!(node.rules().len(), rules.len());
    assert_eq!(node.conflist(), conflist);
    // The Node was deleted and created again.
    node.network("10.244.9.0/24").unwrap();
    assert_eq!(node.rules().len(), rules.len());
    let text = node.rules().join("\n");
    assert!(text.contains("10.244.9.0/24") && !text.contains("10.244.1."), "{text}");
    let conflist: Value = serde_json::from_str(&node.conflist().unwrap()).unwrap();
    assert_eq!(conflist["plugins"][0]["ipam"]["ranges"][0][0]["subnet"], "10.244.9.0/24");
}

#[test]
fn deleted_rules_are_restored() {
    let node = Node::bare();
    let meanwhile = async || {
        let count = || node::rules().map(|rules| rules.len());
        let before = count();
        let status = Command::new("/usr/bin/nft").args(["flush", "ruleset"]).status();
        assert!(status.unwrap().success() && before.is_ok() && count().is_err());
        time::pause();
        time::advance(Duration::from_mins(5)).await;
        time::resume();
        let restored = async {
            while count() != before {
                time::sleep(Duration::from_millis(20)).await;
            }
        };
        time::timeout(node::LIMIT, restored).await.unwrap();
    };
    node.network_while(RANGE, "/usr/bin".into(), meanwhile).unwrap();
}

#[test]
fn without_rules_pods_have_no_network() {
    let node = Node::bare();
    let error = node.network_with(RANGE, PathBuf::from("/nowhere")).unwrap_err();
    assert!(error.starts_with("cannot load the rules for packets of pods"), "{error}");
    let error = node.network("10.245.1.0/24").unwrap_err();
    assert!(error.starts_with("the cluster gives this node's pods the addresses 10.245.1.0/24"), "{error}");
    assert_eq!(node.conflist(), None);
}
