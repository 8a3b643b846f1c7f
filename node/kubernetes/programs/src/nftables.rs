//! nf_tables rules (nft(8)) for the packets of pods.

use std::net::Ipv4Addr;

use cluster::{API_PORT, STATUS_PORT};
use ipnet::Ipv4Net;

use crate::cni::LINKS;
use crate::{Config, dns, etcd};

/// Name of the node's own table. kube-proxy and CNI plugins have other tables.
const TABLE: &str = "granary";

/// The rules of a node whose pods have addresses of `pods`, as one transaction that can be loaded repeatedly.
///
/// Each pod has its own link to the node, and the node has a route to the pod's address through that link. The rules
/// drop a packet whose source address has no route through its input interface (`fib`): the pod's link, not its MAC
/// address, identifies the pod. Frames do not pass between links, so ARP and MAC addresses of a pod reach only the
/// node, which keeps neighbors per link.
///
/// Packets with a pod's address pass only links of pods, the mesh and loopback. Packets to a Service's address enter
/// the node only through these interfaces, because kube-proxy forwards packets of any sender. Pods have IPv4 only: the
/// rules drop their IPv6 packets, whose link-local addresses the interfaces assign themselves.
///
/// The kernel accepts packets to loopback addresses only from `lo`, until portmap sets `route_localnet` of a link for a
/// host port.
///
/// A packet that leaves the node with a Service's address as destination has not been translated: kube-proxy has not
/// programmed the Service yet, or has removed it. kube-proxy's own rule for such packets may be an hour late, because
/// kube-proxy reads the Service network from the API server and writes the rule at the next full synchronization. The
/// kernel does not track the dropped packets, so the next attempt is translated.
///
/// A Service may claim any address (external IPs, load balancer status). Requests to the API server, packets of the
/// mesh and NTP requests of the node are not tracked, so that no rule of kube-proxy applies to them: untracked packets
/// pass no chain of type `nat`, and kube-proxy's filters match `ct state new` only. (`accept` would end this chain
/// alone.) The same holds for loopback connections between the node's programs, which a pod's host port could take
/// over, and for queries of pods to the node's CoreDNS: kube-proxy neither translates nor rejects them, and a pod's
/// host port 53 does not receive them. Answers of the API server are tracked, because those to a connection through its
/// Service are translated back. Without `nf_conntrack_tcp_loose` the kernel does not treat any of them as a new
/// connection.
///
/// The kernel runs chains of a hook by priority, across all tables: `raw` (-300) is before the lookup of connections
/// (-200) and the translation of addresses (-100), when an answer from outside still has the node's address; `srcnat`
/// is 100.
pub(crate) fn rules(config: &Config, pods: Ipv4Net) -> String {
    let (cluster, services, mesh) = (config.cluster_pods, config.services, config.mesh.interface);
    let (first, last) = addresses(pods);
    let (node, tunnel) = (config.address, config.mesh.port);
    let (api, api_port) = (config.api_server.ip(), config.api_server.port());
    let dns = config.dns_service();
    let mesh_packets = format!("        udp sport {tunnel} notrack comment \"mesh\"\n");
    let (starting, passing) = (starting(config, &mesh_packets), passing(config));
    table(&format!(
        r#"    chain arriving {{
        type filter hook prerouting priority raw; policy accept;
        iifname "{LINKS}" meta nfproto ipv6 counter drop comment "pods have no IPv6"
        iifname "{LINKS}" ip saddr != {first}-{last} counter drop comment "no pod's address"
        iifname "{LINKS}" fib saddr . iif oif missing counter drop comment "another pod's address"
        iifname "{mesh}" ip daddr != {pods} counter drop comment "the node routes for pods only"
        iifname != "lo" ip daddr 127.0.0.0/8 counter drop comment "loopback"
        iifname != "{LINKS}" iifname != {{ "{mesh}", "lo" }} ip saddr {cluster} counter drop comment "past the mesh"
        iifname != "{LINKS}" iifname != {{ "{mesh}", "lo" }} ip daddr {cluster} counter drop comment "past the mesh"
        iifname != "{LINKS}" iifname != {{ "{mesh}", "lo" }} ip daddr {services} counter drop comment "past the mesh"
        iifname != "{LINKS}" ip daddr {api} tcp dport {api_port} notrack comment "API server"
        ip daddr {node} udp dport {tunnel} notrack comment "mesh"
        iifname "{LINKS}" ip daddr {dns} meta l4proto {{ tcp, udp }} th dport {DNS_PORT} notrack comment "cluster DNS"
    }}
{starting}{passing}    chain masquerading {{
        type nat hook postrouting priority srcnat; policy accept;
        ip saddr {pods} ip daddr != {cluster} oifname != "{LINKS}" counter masquerade comment "leaves the cluster"
    }}
    chain leaving {{
        type filter hook postrouting priority srcnat + 10; policy accept;
        oifname != "{LINKS}" oifname != {{ "{mesh}", "lo" }} ip saddr {cluster} counter drop comment "past the mesh"
        oifname != "{LINKS}" oifname != {{ "{mesh}", "lo" }} ip daddr {cluster} counter drop comment "past the mesh"
        oifname != "{LINKS}" oifname != {{ "{mesh}", "lo" }} ip daddr {services} counter drop comment "unknown Service"
    }}
"#
    ))
}

/// The rules of a node whose pod network belongs to a CNI plugin. They protect the node itself, independent of the
/// plugin. The names of the pods' interfaces are unknown, so the rules name the interface to other machines.
///
/// Only pods of this node reach its CoreDNS.
pub(crate) fn node_rules(config: &Config) -> String {
    let (uplink, dns) = (&config.uplink, config.dns_service());
    let (api, api_port) = (config.api_server.ip(), config.api_server.port());
    let (starting, passing) = (starting(config, ""), passing(config));
    table(&format!(
        r#"    chain arriving {{
        type filter hook prerouting priority raw; policy accept;
        iifname != "lo" ip daddr 127.0.0.0/8 counter drop comment "loopback"
        iifname "{uplink}" ip daddr {dns} counter drop comment "for pods of this node"
        iifname "{uplink}" ip daddr {api} tcp dport {api_port} notrack comment "API server"
        ip daddr {dns} meta l4proto {{ tcp, udp }} th dport {DNS_PORT} notrack comment "cluster DNS"
    }}
{starting}{passing}"#
    ))
}

/// The transaction that replaces the table with one that has these chains.
fn table(chains: &str) -> String {
    // The declaration creates a missing table, so that the deletion does not fail.
    format!("table inet {TABLE}\ndelete table inet {TABLE}\ntable inet {TABLE} {{\n{chains}}}\n")
}

/// The chain for packets that the node forwards. Other nodes accept requests from node addresses at [`STATUS_PORT`].
/// Packets of a pod to other machines get the node's address as source, and so do packets that arrive at a node port,
/// whose Service may have another node as its endpoint. The rule applies after the translation of Services' addresses,
/// because users create Services. The kernel does not forward the node's own packets.
fn passing(config: &Config) -> String {
    let cluster = config.cluster_pods;
    format!(
        r#"    chain passing {{
        type filter hook forward priority filter; policy accept;
        ip daddr != {cluster} meta l4proto {{ tcp, udp }} th dport {STATUS_PORT} counter drop comment "for nodes"
    }}
"#
    )
}

/// The chain for packets that the node sends, with the additional rules `more`.
fn starting(config: &Config, more: &str) -> String {
    let (services, dns) = (config.services, config.dns_service());
    let (api, api_port) = (config.api_server.ip(), config.api_server.port());
    let own = OWN_PORTS.iter().chain(&etcd::PORTS).map(ToString::to_string).collect::<Vec<_>>().join(", ");
    format!(
        r#"    chain starting {{
        type filter hook output priority raw; policy accept;
        ip daddr {api} tcp dport {api_port} notrack comment "API server"
        oifname "lo" ip daddr 127.0.0.1 tcp dport {{ {own} }} notrack comment "the node's programs"
{more}        oifname "lo" ip daddr {dns} meta l4proto {{ tcp, udp }} th dport {DNS_PORT} notrack comment "cluster DNS"
        ip saddr {dns} meta l4proto {{ tcp, udp }} th sport {DNS_PORT} notrack comment "cluster DNS"
        ip daddr != {services} udp dport {NTP} notrack comment "time"
    }}
"#
    )
}

/// Loopback ports of the node's programs except for etcd: API server; the kubelet's health; kube-proxy's metrics and
/// health; CoreDNS' readiness and metrics. A pod's host port would take over connections to any of them.
const OWN_PORTS: [u16; 6] = [API_PORT, 10248, 10249, 10256, dns::READINESS_PORT, dns::METRICS_PORT];

const NTP: u16 = 123;
const DNS_PORT: u16 = 53;

/// First and last address that a pod can have. The node has the first address of the range.
fn addresses(pods: Ipv4Net) -> (Ipv4Addr, Ipv4Addr) {
    (Ipv4Addr::from_bits(pods.network().to_bits() + 2), Ipv4Addr::from_bits(pods.broadcast().to_bits() - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With a CNI plugin, the node has no rules for packets of pods.
    #[test]
    fn beside_a_plugin_no_rule_is_about_links_of_pods() {
        let config = Config { uplink: "eth1".to_owned(), ..Config::default() };
        let text = node_rules(&config);
        for rule in [
            r#"iifname "eth1" ip daddr 10.96.0.10 counter drop"#,
            r#"ip daddr 10.96.0.10 meta l4proto { tcp, udp } th dport 53 notrack"#,
            r#"ip daddr 10.0.2.15 tcp dport 6443 notrack"#,
        ] {
            assert!(text.contains(rule), "{rule}: {text}");
        }
        for other in [LINKS, config.mesh.interface, "masquerade", "7838"] {
            assert!(!text.contains(other), "{other}: {text}");
        }
    }

    #[test]
    fn queries_to_the_nodes_dns_are_not_translated() {
        let config = Config { services: "10.97.0.0/24".parse().unwrap(), ..Config::default() };
        let text = rules(&config, "10.244.3.0/24".parse().unwrap());
        for rule in [
            r#"iifname "veth*" ip daddr 10.97.0.10 meta l4proto { tcp, udp } th dport 53 notrack"#,
            r#"oifname "lo" ip daddr 10.97.0.10 meta l4proto { tcp, udp } th dport 53 notrack"#,
            "ip saddr 10.97.0.10 meta l4proto { tcp, udp } th sport 53 notrack",
        ] {
            assert!(text.contains(rule), "{rule}: {text}");
        }
    }

    #[test]
    fn a_worker_does_not_track_requests_to_the_api_server() {
        let config = Config { api_server: "192.0.2.10:7443".parse().unwrap(), ..Config::default() };
        let text = rules(&config, "10.244.3.0/24".parse().unwrap());
        let found = text.lines().filter(|line| line.contains("ip daddr 192.0.2.10 tcp dport 7443 notrack")).count();
        assert_eq!(found, 2, "requests of this node, and those that arrive: {text}");
    }
}
