//! A Service that claims addresses of nodes or time servers, by external IPs or load balancer status.

use std::fs;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream, UdpSocket};

use cluster::API_PORT;
use ktest_support::{Namespace, eventually};

use crate::frame::Frame;
use crate::node::{self, GATEWAY, LIMIT, LINKS, NODE, Node, OTHER, OUTSIDE, PODS, PORT, RANGE, TUNNEL};

const NTP: u16 = 123;

/// kube-proxy's rules for the Service, reduced to their effect on packets.
const CLAIMS: [&str; 2] = [
    "ip daddr 192.0.2.1 tcp dport 6443 dnat to 10.244.1.5:7000",
    "ip daddr { 192.0.2.1, 192.0.2.9 } udp dport { 123, 7838 } dnat to 10.244.1.5:7000",
];

/// A table that translates addresses by these rules, as kube-proxy and portmap do, for arriving packets and for those
/// that the node sends.
fn translation(table: &str, rules: &[&str]) -> String {
    format!(
        "
table ip {table} {{
    chain translate {{
        {}
    }}
    chain to {{
        type nat hook prerouting priority dstnat;
        jump translate
    }}
    chain from_host {{
        type nat hook output priority -100;
        jump translate
    }}
}}
",
        rules.join("\n        ")
    )
}

const NO_ENDPOINTS: &str = "
table ip no_endpoints {
    chain reject_claimed {
        ct state new ip daddr { 192.0.2.1, 192.0.2.9 } tcp dport 6443 drop
        ct state new ip daddr { 192.0.2.1, 192.0.2.9 } udp dport { 123, 7838 } drop
    }
    chain arriving {
        type filter hook input priority filter;
        jump reject_claimed
    }
    chain starting {
        type filter hook output priority filter;
        jump reject_claimed
    }
}
";

/// portmap's rules for a pod with the host port of the API server, reduced to their effect on loopback packets.
const HOST_PORT: &str = "
table ip host_port {
    chain from_host {
        type nat hook output priority -100;
        ip daddr 127.0.0.1 tcp dport 6443 dnat to 10.244.1.5:7000
    }
    chain to_pod {
        type nat hook postrouting priority srcnat;
        ip saddr 127.0.0.1 ip daddr 10.244.1.5 masquerade
    }
}
";

/// A Service with a cluster address may have the port of time servers.
const CLUSTER_SERVICE: &str = "
table ip cluster_service {
    chain from_host {
        type nat hook output priority -100;
        ip daddr 10.96.0.3 udp dport 123 dnat to 10.244.1.5:7000
    }
}
";

/// kube-proxy's rules for the DNS Service with a pod as its endpoint. portmap has the same rules for a host port 53.
const DNS_CLAIM: &str = "ip daddr 10.96.0.10 udp dport 53 dnat to 10.244.1.5:7000";

const DNS: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 10);
const DNS_PORT: u16 = 53;

#[derive(Debug, PartialEq, Eq)]
enum End {
    Destination,
    Service,
}

/// Waits until one of the two receives something.
fn first(mut destination: impl FnMut() -> bool, mut service: impl FnMut() -> bool) -> End {
    let mut end = None;
    let look = || {
        end = destination().then_some(End::Destination).or_else(|| service().then_some(End::Service));
        end.is_some()
    };
    eventually("something to arrive", look);
    end.unwrap()
}

/// Retries the bind: a child process of another test has a copy of an earlier listener from its fork to its exec.
fn listen(on: &Namespace, address: (Ipv4Addr, u16)) -> TcpListener {
    let mut listener = None;
    let bind = || {
        listener = on.run(move || match TcpListener::bind(address) {
            Err(error) if error.kind() == ErrorKind::AddrInUse => None,
            bound => Some(bound.unwrap()),
        });
        listener.is_some()
    };
    eventually("a free port", bind);
    listener.unwrap()
}

impl Node {
    /// A node with a Service that claims addresses, without the node's rules.
    fn claimed() -> Self {
        let node = Self::bare();
        node.route_loopback();
        // The value that the node sets.
        node.host.run(|| fs::write("/proc/sys/net/netfilter/nf_conntrack_tcp_loose", "0").unwrap());
        node.load(&translation("claims", &CLAIMS));
        node
    }

    /// Loads the node's rules, and one more Service that claims the same addresses.
    fn protect(&self) {
        self.network(RANGE).unwrap();
        self.load(NO_ENDPOINTS);
    }

    /// Receiver of a datagram from `source` to `to`.
    fn datagram(&self, from: &Namespace, source: (Ipv4Addr, u16), to: (&Namespace, Ipv4Addr, u16)) -> End {
        let ends = [node::socket(to.0, to.1, to.2), node::socket(&self.pods[0], PODS[0], PORT)];
        ends.iter().for_each(|end| end.set_nonblocking(true).unwrap());
        let here = node::socket(from, source.0, source.1);
        assert_eq!(here.send_to(b"?", (to.1, to.2)).unwrap(), 1);
        let received = |end: &UdpSocket| end.recv(&mut [0; 8]).is_ok();
        first(|| received(&ends[0]), || received(&ends[1]))
    }

    /// Receiver of a connection to the API server at this address of the node. The server sends an answer.
    fn connection(&self, from: &Namespace, address: Ipv4Addr) -> End {
        let server = listen(&self.host, (address, API_PORT));
        let service = listen(&self.pods[0], (PODS[0], PORT));
        for listener in [&server, &service] {
            listener.set_nonblocking(true).unwrap();
        }
        let mut here = from.run(move || TcpStream::connect_timeout(&(address, API_PORT).into(), LIMIT).unwrap());
        here.set_read_timeout(Some(LIMIT)).unwrap();
        let answers =
            |listener: &TcpListener| listener.accept().is_ok_and(|(mut there, _)| there.write_all(b"!").is_ok());
        let end = first(|| answers(&server), || answers(&service));
        here.read_exact(&mut [0]).unwrap();
        end
    }
}

#[test]
fn a_service_cannot_claim_the_api_server() {
    let node = Node::claimed();
    // From another node, and from this one.
    for from in [&node.outside, &node.host] {
        assert_eq!(node.connection(from, NODE), End::Service);
    }
    node.protect();
    for from in [&node.outside, &node.host] {
        assert_eq!(node.connection(from, NODE), End::Destination);
    }
}

#[test]
fn a_host_port_does_not_take_connections_by_loopback() {
    let node = Node::claimed();
    node.load(HOST_PORT);
    assert_eq!(node.connection(&node.host, Ipv4Addr::LOCALHOST), End::Service);
    node.protect();
    assert_eq!(node.connection(&node.host, Ipv4Addr::LOCALHOST), End::Destination);
}

#[test]
fn a_service_cannot_claim_the_mesh() {
    let node = Node::claimed();
    let (host, outside) = (&node.host, &node.outside);
    let from_outside = || node.datagram(outside, (OUTSIDE, TUNNEL), (host, NODE, TUNNEL));
    let from_host = || node.datagram(host, (NODE, TUNNEL), (outside, OUTSIDE, TUNNEL));
    assert_eq!((from_outside(), from_host()), (End::Service, End::Service));
    node.protect();
    assert_eq!((from_outside(), from_host()), (End::Destination, End::Destination));
}

#[test]
fn a_service_cannot_claim_a_time_server() {
    let node = Node::claimed();
    let ask = || node.datagram(&node.host, (NODE, 0), (&node.outside, OUTSIDE, NTP));
    assert_eq!(ask(), End::Service);
    node.protect();
    assert_eq!(ask(), End::Destination);
    node.load(CLUSTER_SERVICE);
    let by = (Ipv4Addr::new(10, 96, 0, 3), NTP);
    let sent = || assert_eq!(node::socket(&node.host, GATEWAY, 0).send_to(b"?", by).unwrap(), 1);
    assert_eq!(node::receives((&node.pods[0], PODS[0]), sent), GATEWAY);
}

#[test]
fn queries_reach_the_nodes_own_dns() {
    let node = Node::claimed();
    node::addresses(&node.host, "lo", &[(DNS, 32)]);
    node.load(&translation("dns_claim", &[DNS_CLAIM]));
    let by_pod = || node.datagram(&node.pods[1], (PODS[1], 0), (&node.host, DNS, DNS_PORT));
    let by_host = || node.datagram(&node.host, (Ipv4Addr::UNSPECIFIED, 0), (&node.host, DNS, DNS_PORT));
    assert_eq!((by_pod(), by_host()), (End::Service, End::Service));
    node.network(RANGE).unwrap();
    assert_eq!((by_pod(), by_host()), (End::Destination, End::Destination));
    let server = node::socket(&node.host, DNS, DNS_PORT);
    for (from, source) in [(&node.pods[1], PODS[1]), (&node.host, Ipv4Addr::UNSPECIFIED)] {
        let client = node::socket(from, source, 0);
        client.connect((DNS, DNS_PORT)).unwrap();
        client.send(b"?").unwrap();
        let (_, sender) = server.recv_from(&mut [0; 8]).unwrap();
        server.send_to(b"!", sender).unwrap();
        assert_eq!(client.recv(&mut [0; 8]).unwrap(), 1, "{source}");
    }
}

#[test]
fn no_other_machine_reaches_the_nodes_dns() {
    let node = Node::new();
    node.route_loopback();
    node::addresses(&node.host, "lo", &[(DNS, 32)]);
    node.loses("past the mesh", (&node.outside, OUTSIDE), (&node.host, DNS));
    node.loses("the node routes for pods only", (&node.other, OTHER), (&node.host, DNS));
}

/// With a CNI plugin, the names of the pods' interfaces are unknown.
#[test]
fn a_node_with_a_cni_plugin_protects_itself() {
    let node = Node::claimed();
    node::addresses(&node.host, "lo", &[(DNS, 32)]);
    node.load(&translation("dns_claim", &[DNS_CLAIM]));
    let by_pod = || node.datagram(&node.pods[1], (PODS[1], 0), (&node.host, DNS, DNS_PORT));
    let ask_time = || node.datagram(&node.host, (NODE, 0), (&node.outside, OUTSIDE, NTP));
    let connect = || [&node.outside, &node.host].map(|from| node.connection(from, NODE));
    let loopback = (&node.host, Ipv4Addr::LOCALHOST);
    let frame = Frame { tags: &[], source: PODS[0], destination: SocketAddrV4::new(Ipv4Addr::LOCALHOST, PORT) };
    let to_loopback = || frame.send((&node.pods[0], "end"), (&node.host, LINKS[0]));
    assert_eq!(node::receives(loopback, to_loopback), PODS[0]);
    assert_eq!((by_pod(), ask_time()), (End::Service, End::Service));
    assert_eq!(connect(), [End::Service, End::Service]);
    node.protect_itself();
    assert_eq!((by_pod(), ask_time()), (End::Destination, End::Destination));
    assert_eq!(connect(), [End::Destination, End::Destination]);

    let (pod, outside) = ((&node.pods[1], PODS[1]), (&node.outside, OUTSIDE));
    // portmap of the CNI plugin has set `route_localnet`.
    node.loses_what("loopback", loopback, to_loopback);
    node.loses("for pods of this node", outside, (&node.host, DNS));
    node.loses_by("for nodes", pod, (OUTSIDE, 7839).into(), outside);
    // The plugin filters other packets.
    assert_eq!(node::reaches(outside, pod), OUTSIDE);
    assert_eq!(node::reaches(pod, outside), PODS[1]);
}
