//! The kernel's nf_tables rules (nft(8)) for packets of pods.

use std::net::Ipv4Addr;

use cluster::{API_PORT, STATUS_PORT};
use ipnet::Ipv4Net;

use crate::cni::LINKS;
use crate::{Config, dns};

/// The name of our own table: kube-proxy and the CNI plugins have theirs.
const TABLE: &str = "granary";

/// The rules of a node whose pods have addresses of `pods`, as one transaction, however often it is loaded.
///
/// Each pod has a link of its own to the node, and the node a route to its address through that link. A packet whose source
/// has no such route did not come from the pod with this address (`fib`): the pod's link, not its MAC address, identifies it.
/// No frame passes from link to link, so that ARP and MAC addresses of a pod reach the node alone, which keeps neighbours for
/// each link separately.
///
/// A pod's address passes links of pods, the mesh and loopback, and no other interface. Nor does a Service's pass any other
/// into the node: kube-proxy forwards packets of any sender. Pods have IPv4 alone: their IPv6 packets, from addresses
/// that their interfaces give themselves, are dropped.
///
/// From another interface than `lo` the kernel takes nothing for a loopback address, until portmap has set the link's
/// `route_localnet` for a host port.
///
/// A Service's address that is still one when a packet leaves has not been translated: kube-proxy does not have the Service
/// yet, or any more. Its own rule against that may be an hour late: it reads the network of Services from the API server, and
/// writes the rule with the next full synchronization. The kernel does not track the dropped packets, so that the next
/// attempt is translated.
///
/// Packets of a pod to other machines have its node's address, from which other nodes accept requests at one port. The rule
/// is applied after the translation of Services' addresses, because users create Services.
///
/// A Service may claim any address (external IPs, the status of a load balancer). Requests to the API server, packets of the
/// mesh and the node's questions for the time are not tracked, so that no rule of kube-proxy applies to them: untracked
/// packets pass no chain of type `nat`, and kube-proxy's filters look at `ct state new` only. (`accept` would end this chain
/// alone.) The same holds for what the node's programs ask each other by loopback, which a pod's host port could take, and for
/// queries of pods to the node's CoreDNS: kube-proxy neither translates nor rejects them, and a host port 53 does not take
/// them. Answers of the API server are tracked, because those to a connection by its Service are translated back;
/// without `nf_conntrack_tcp_loose` the kernel takes none of them for a new connection.
///
/// Chains of one hook come after each other by priority, whosever they are: `raw` (-300) is before connections are looked
/// up (-200) and addresses translated (-100), when an answer from outside still has the node's address; `srcnat` is 100.
pub(crate) fn rules(config: &Config, pods: Ipv4Net) -> String {
    let (cluster, services, mesh) = (config.cluster_pods, config.services, config.mesh.interface);
    let (first, last) = addresses(pods);
    let (node, tunnel) = (config.address, config.mesh.port);
    let (api, api_port) = (config.api_server.ip(), config.api_server.port());
    let dns = config.dns_service();
    let mesh_packets = format!("        udp sport {tunnel} notrack comment \"mesh\"\n");
    let starting = starting(config, &mesh_packets);
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
{starting}    chain passing {{
        type filter hook forward priority filter; policy accept;
        iifname "{LINKS}" ip daddr != {cluster} meta l4proto {{ tcp, udp }} th dport {STATUS_PORT} counter drop comment "for nodes"
    }}
    chain masquerading {{
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

/// The rules of a node whose pods have the network of a CNI plugin: those that protect the node itself, whatever the plugin
/// does. The names of the pods' interfaces are unknown, so that the rules name the interface to other machines.
///
/// Only pods of this node reach its CoreDNS. Packets to a port [`STATUS_PORT`] of other nodes are those of pods: the node's own
/// are not forwarded.
pub(crate) fn node_rules(config: &Config) -> String {
    let (uplink, cluster, dns) = (&config.uplink, config.cluster_pods, config.dns_service());
    let (api, api_port) = (config.api_server.ip(), config.api_server.port());
    let starting = starting(config, "");
    table(&format!(
        r#"    chain arriving {{
        type filter hook prerouting priority raw; policy accept;
        iifname != "lo" ip daddr 127.0.0.0/8 counter drop comment "loopback"
        iifname "{uplink}" ip daddr {dns} counter drop comment "for pods of this node"
        iifname "{uplink}" ip daddr {api} tcp dport {api_port} notrack comment "API server"
        ip daddr {dns} meta l4proto {{ tcp, udp }} th dport {DNS_PORT} notrack comment "cluster DNS"
    }}
{starting}    chain passing {{
        type filter hook forward priority filter; policy accept;
        ip daddr != {cluster} meta l4proto {{ tcp, udp }} th dport {STATUS_PORT} counter drop comment "for nodes"
    }}
"#
    ))
}

/// The transaction that replaces the table by one with these chains.
fn table(chains: &str) -> String {
    // Declared first, so that there is one to delete.
    format!("table inet {TABLE}\ndelete table inet {TABLE}\ntable inet {TABLE} {{\n{chains}}}\n")
}

/// The chain for packets that the node sends, with more rules.
fn starting(config: &Config, more: &str) -> String {
    let (services, dns) = (config.services, config.dns_service());
    let (api, api_port) = (config.api_server.ip(), config.api_server.port());
    let own = OWN_PORTS.map(|port| port.to_string()).join(", ");
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

/// Where the node's programs listen on loopback: API server; etcd for clients, members and metrics; kubelet's health,
/// kube-proxy's metrics and health; CoreDNS' readiness and metrics. A pod's host port would take connections to any of them.
const OWN_PORTS: [u16; 9] = [API_PORT, 2379, 2380, 2381, 10248, 10249, 10256, dns::READINESS_PORT, dns::METRICS_PORT];

const NTP: u16 = 123;
const DNS_PORT: u16 = 53;

/// The first and the last address that a pod can have: the node has the first one of the range.
fn addresses(pods: Ipv4Net) -> (Ipv4Addr, Ipv4Addr) {
    (Ipv4Addr::from_bits(pods.network().to_bits() + 2), Ipv4Addr::from_bits(pods.broadcast().to_bits() - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The plugin decides about its pods' packets.
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
