//! What packets of pods may pass, as rules of the kernel's nf_tables (nft(8)).

use std::net::Ipv4Addr;

use crate::cni::BRIDGE;
use crate::{Config, Network};

/// The name of our own tables: kube-proxy and the CNI plugins have theirs.
const TABLE: &str = "granary";

/// The rules of a node whose pods have addresses of `pods`, as one transaction, however often it is loaded.
///
/// A pod's address passes the pods' bridge, the mesh and loopback, and no other interface. Nor does a Service's pass any other
/// into the node: kube-proxy forwards what anybody sends there. Pods have IPv4 alone: what they say in IPv6, by addresses that
/// their interfaces give themselves, nobody hears.
///
/// From another interface than `lo` the kernel takes nothing for a loopback address, until portmap has set the bridge's
/// `route_localnet` for a host port. It never takes that back.
///
/// Frames from pod to pod pass these hooks too (`net.bridge.bridge-nf-call-iptables`), with the bridge as their interface. Not
/// those with a tag of VLAN 0, which their receiver takes off like an envelope: `net.bridge.bridge-nf-filter-vlan-tagged` would
/// open one, and they may have two. So the bridge, which has a table of its own, passes only what needs no opening.
///
/// A Service's address that is still one when a packet leaves has not been translated: kube-proxy has not heard of the Service
/// yet, or no more. Its own rule against that may be an hour late: it knows the network of Services from the API server, and
/// writes the rule with the next full synchronization. What is dropped here is no connection that the kernel knows, so that
/// the next attempt is translated.
///
/// What a pod sends out of the cluster has its node's address, which other nodes trust at one port. That is looked at
/// when a Service's address has become another one, whoever made the Service.
///
/// Chains of one hook come after each other by priority, whosever they are: `raw` (-300) is before connections are looked
/// up (-200) and addresses translated (-100), when an answer from outside still has the node's address; `srcnat` is 100.
pub(crate) fn rules(config: &Config, pods: Network) -> String {
    let (cluster, services, mesh) = (config.cluster_pods, config.services, config.mesh.interface);
    let (first, last) = addresses(pods);
    let private = config.private_port;
    format!(
        r#"# Declared first, so that there is one to delete.
table bridge {TABLE}
delete table bridge {TABLE}
table bridge {TABLE} {{
    chain arriving {{
        type filter hook prerouting priority filter; policy accept;
        ether type != {{ arp, ip, ip6 }} counter drop comment "neither IP nor ARP"
    }}
}}
table inet {TABLE}
delete table inet {TABLE}
table inet {TABLE} {{
    chain arriving {{
        type filter hook prerouting priority raw; policy accept;
        iifname "{BRIDGE}" meta nfproto ipv6 counter drop comment "pods have no IPv6"
        iifname "{BRIDGE}" ip saddr != {first}-{last} counter drop comment "no pod's address"
        iifname "{mesh}" ip daddr != {pods} counter drop comment "the node is nobody's router"
        iifname != "lo" ip daddr 127.0.0.0/8 counter drop comment "loopback"
        iifname != {{ "{BRIDGE}", "{mesh}", "lo" }} ip saddr {cluster} counter drop comment "past the mesh"
        iifname != {{ "{BRIDGE}", "{mesh}", "lo" }} ip daddr {cluster} counter drop comment "past the mesh"
        iifname != {{ "{BRIDGE}", "{mesh}", "lo" }} ip daddr {services} counter drop comment "past the mesh"
    }}
    chain passing {{
        type filter hook forward priority filter; policy accept;
        iifname "{BRIDGE}" ip daddr != {cluster} meta l4proto {{ tcp, udp }} th dport {private} counter drop comment "for nodes"
    }}
    chain masquerading {{
        type nat hook postrouting priority srcnat; policy accept;
        ip saddr {pods} ip daddr != {cluster} oifname != "{BRIDGE}" counter masquerade comment "leaves the cluster"
    }}
    chain leaving {{
        type filter hook postrouting priority srcnat + 10; policy accept;
        oifname != {{ "{BRIDGE}", "{mesh}", "lo" }} ip saddr {cluster} counter drop comment "past the mesh"
        oifname != {{ "{BRIDGE}", "{mesh}", "lo" }} ip daddr {cluster} counter drop comment "past the mesh"
        oifname != {{ "{BRIDGE}", "{mesh}", "lo" }} ip daddr {services} counter drop comment "nobody's Service"
    }}
}}
"#
    )
}

/// The first and the last address that a pod can have: the bridge has one of the range.
fn addresses(pods: Network) -> (Ipv4Addr, Ipv4Addr) {
    let (bridge, last) = pods.hosts();
    (Ipv4Addr::from_bits(bridge.to_bits() + 1), last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::example;

    /// Those rules of a chain that are about `subject`.
    fn about(subject: &str) -> Vec<String> {
        let text = rules(&example(), "10.244.3.0/24".parse().unwrap());
        text.lines().map(str::trim).filter(|line| line.contains(subject)).map(str::to_owned).collect()
    }

    #[test]
    fn the_tables_are_replaced_in_one_transaction() {
        for family in ["bridge", "inet"] {
            let table = format!("table {family} granary");
            assert_eq!(about(&table), [&*table, &*format!("delete {table}"), &*format!("{table} {{")]);
        }
    }

    #[test]
    fn a_services_address_stays_in_the_cluster() {
        let found = about("10.96.0.0/16");
        let past = ["iifname", "oifname"]
            .map(|name| format!(r#"{name} != {{ "cni0", "clusternet", "lo" }} ip daddr 10.96.0.0/16 counter drop"#));
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found.iter().zip(&past).all(|(found, past)| found.starts_with(past)), "{found:?}");
    }

    #[test]
    fn only_what_leaves_the_cluster_loses_the_pods_address() {
        let masquerade = "ip saddr 10.244.3.0/24 ip daddr != 10.244.0.0/16 oifname != \"cni0\" counter masquerade";
        let found = about("masquerade comment");
        assert!(found.len() == 1 && found[0].starts_with(masquerade), "{found:?}");
    }

    #[test]
    fn the_port_at_which_nodes_trust_each_other_is_not_for_pods() {
        let found = about("for nodes");
        let rule = r#"iifname "cni0" ip daddr != 10.244.0.0/16 meta l4proto { tcp, udp } th dport 7839 counter drop"#;
        assert!(found.len() == 1 && found[0].starts_with(rule), "{found:?}");
    }

    #[test]
    fn a_pod_sends_from_an_address_of_a_pod_of_its_node() {
        let found = about("no pod's address");
        let forged = "iifname \"cni0\" ip saddr != 10.244.3.2-10.244.3.254 counter drop";
        assert!(found.len() == 1 && found[0].starts_with(forged), "{found:?}");
    }
}
