//! Ports on which programs of the node listen.

use crate::dns::CLUSTER_DNS;
use e2e::{Case, Failure, PATIENCE, Seen, eventually};
use k8s_openapi::api::core::v1::Node;
use std::collections::BTreeSet;
use std::net::IpAddr;
use workload::{Check, Listeners};

const PAGE: &str = include_str!("../../../../docs/operations/security.md");
/// First cell of a row in which the kernel chooses the port.
const CHOSEN: &str = "chosen by the kernel";
/// First port of `net.ipv4.ip_local_port_range`, whose default the node keeps.
const FIRST_CHOSEN: u16 = 32768;
/// Socket of the pod that lists the sockets.
const OBSERVER: &str = "TCP 8080, all addresses";

/// Compares the TCP and UDP sockets of the node's network with the table. A client's socket that is not connected yet
/// briefly looks like a listener.
pub async fn are_described(case: &Case) -> Result<(), Failure> {
    let own = own_address(case).await?;
    let mut wanted = described();
    wanted.push(OBSERVER.to_owned());
    wanted.sort();
    eventually(PATIENCE, "the ports of the table", async || {
        let Listeners { listeners } = case.observer().ask(&Check::Listeners).await?;
        // A port can have two sockets, one for IPv4 and one for IPv6.
        let sockets: BTreeSet<_> =
            listeners.into_iter().map(|one| (one.port, one.protocol, place(one.address, own))).collect();
        let line = |(port, protocol, place): (u16, String, String)| {
            let port = if port < FIRST_CHOSEN { port.to_string() } else { CHOSEN.to_owned() };
            format!("{protocol} {port}, {place}")
        };
        let mut found: Vec<String> = sockets.into_iter().map(line).collect();
        found.sort();
        Ok(if found == wanted { Seen::Done(()) } else { Seen::NotYet(format!("{found:?} instead of {wanted:?}")) })
    })
    .await
}

async fn own_address(case: &Case) -> Result<IpAddr, Failure> {
    let node = case.cluster::<Node>().get("granary").await.map_err(Failure::api("read a node"))?;
    let mut addresses = node.status.and_then(|status| status.addresses).into_iter().flatten();
    let own = addresses.find(|address| address.type_ == "InternalIP").and_then(|own| own.address.parse().ok());
    Ok(own.expect("the node has an address"))
}

/// Name of the address in the table.
fn place(address: IpAddr, own: IpAddr) -> String {
    if address.is_unspecified() {
        "all addresses".to_owned()
    } else if address.is_loopback() {
        "loopback".to_owned()
    } else if address == own {
        "the node's address".to_owned()
    } else if address.to_string() == CLUSTER_DNS {
        "the tenth address of the Services".to_owned()
    } else {
        address.to_string()
    }
}

/// `PROTOCOL PORT, PLACE` of each socket in the table. Services and host ports are packet rules, not sockets.
fn described() -> Vec<String> {
    let (_, section) = PAGE.split_once("\n## Open ports\n").expect("the section");
    let table = section.lines().take_while(|line| !line.starts_with("## ")).filter(|line| line.starts_with('|'));
    let mut all = Vec::new();
    for row in table.skip(2) {
        let mut cells = row.trim_matches('|').split('|').map(str::trim);
        let (Some(ports), Some(place)) = (cells.next(), cells.next()) else { panic!("{row}") };
        let (ports, protocols) = ports.split_once(" (").unwrap_or((ports, "TCP"));
        for port in ports.split(", ").filter(|port| *port == CHOSEN || port.parse::<u16>().is_ok()) {
            let named = ["TCP", "UDP"].into_iter().filter(|protocol| protocols.contains(*protocol));
            all.extend(named.map(|protocol| format!("{protocol} {port}, {place}")));
        }
    }
    assert!(all.len() > 10, "the table is read: {all:?}");
    all
}
