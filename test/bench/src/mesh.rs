//! [`MeshReport`]: netlink messages that a mesh node sends to its kernel when other nodes join, change and leave.

use std::fmt;
use std::net::SocketAddr;

use cluster::MESH_PORT;
use clusternet::{Cost, Peer, Peers, PublicKey, cost, diff};
use ipnet::{IpNet, Ipv4Net};
use serde::Serialize;

use crate::table::{Table, verdict};

const SIZES: [u32; 3] = [10, 100, 1000];

/// Figures of all cluster sizes. They are computed from the messages and contain no times.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MeshReport {
    pub figures: Vec<MeshFigure>,
    /// Figures that exceed a limit.
    pub violations: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MeshFigure {
    pub change: &'static str,
    pub nodes: u32,
    pub messages: usize,
    pub bytes: usize,
    pub largest: usize,
    /// Bytes if the node sent all peers to the kernel again.
    pub again: usize,
}

const START: &str = "start: all are added";
const NOTHING: &str = "nothing changes";

impl Default for MeshReport {
    /// Report for clusters of 10, 100 and 1,000 other nodes.
    fn default() -> Self {
        let figures: Vec<_> = SIZES.into_iter().flat_map(figures).collect();
        let violations =
            figures.iter().filter(|figure| !figure.is_within_limits(&figures)).map(MeshFigure::named).collect();
        Self { figures, violations }
    }
}

impl MeshFigure {
    /// A change of one node takes one message of constant size, no change takes none, and all nodes take a few
    /// messages.
    fn is_within_limits(&self, all: &[Self]) -> bool {
        match self.change {
            START => self.messages <= 4,
            NOTHING => self.messages == 0,
            change => self.messages == 1 && all.iter().all(|other| other.change != change || other.bytes == self.bytes),
        }
    }

    fn named(&self) -> String {
        let Self { change, nodes, messages, bytes, .. } = self;
        format!("{change}, {nodes} nodes: {messages} messages of {bytes} bytes exceed the limit")
    }
}

fn figures(nodes: u32) -> Vec<MeshFigure> {
    let all: Peers = (1..=nodes).map(|number| (key(number), peer(number))).collect();
    let mut less = all.clone();
    less.remove(&key(1));
    let mut moved = all.clone();
    moved.insert(key(1), Peer { endpoint: Some(SocketAddr::from(([198, 51, 100, 1], MESH_PORT))), ..peer(1) });
    let mut rotated = less.clone();
    rotated.insert(key(nodes + 1), peer(1));
    let again = cost(&diff(&Peers::new(), &all)).bytes;
    let figure = |change, have: &Peers, want: &Peers| {
        let Cost { messages, bytes, largest } = cost(&diff(have, want));
        MeshFigure { change, nodes, messages, bytes, largest, again }
    };
    vec![
        figure(START, &Peers::new(), &all),
        figure("a node comes", &less, &all),
        figure("a node has another address", &all, &moved),
        figure("a node has another key", &all, &rotated),
        figure("a node goes", &all, &less),
        figure(NOTHING, &all, &all),
    ]
}

fn key(number: u32) -> PublicKey {
    let mut bytes = [7; 32];
    bytes[..4].copy_from_slice(&number.to_be_bytes());
    PublicKey::new(bytes).unwrap_or_else(|error| unreachable!("not zero: {error}"))
}

fn peer(number: u32) -> Peer {
    let [.., high, low] = number.to_be_bytes();
    let range = Ipv4Net::new_assert([10, 64 + high, low, 0].into(), 24);
    Peer { endpoint: Some(SocketAddr::from(([192, 0, high, low], MESH_PORT))), allowed: [IpNet::V4(range)].into() }
}

impl fmt::Display for MeshReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "Netlink messages of one node's mesh, and their bytes\n")?;
        let heads = ["change", "other nodes", "messages", "bytes", "largest", "bytes of all again"].map(String::from);
        let rows = self.figures.iter().map(|figure| {
            let numbers =
                [figure.messages, figure.bytes, figure.largest, figure.again].map(|number| number.to_string());
            [figure.change.to_owned(), figure.nodes.to_string()].into_iter().chain(numbers).collect()
        });
        writeln!(f, "{}", Table::new(heads.into(), rows.collect()))?;
        verdict(f, "limits", self.violations.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_of_one_node_costs_the_same_however_many_there_are() {
        let report = MeshReport::default();
        assert_eq!(report.violations, Vec::<String>::new());
        assert_eq!(report.figures.len(), 18);
        let shown = report.to_string();
        assert!(shown.ends_with("All limits hold: all as promised.\n"), "{shown}");
    }

    #[test]
    fn a_figure_that_exceeds_a_limit_is_named() {
        let figure = MeshFigure { change: "a node goes", nodes: 10, messages: 2, bytes: 9, largest: 5, again: 9 };
        assert!(!figure.is_within_limits(std::slice::from_ref(&figure)));
        assert_eq!(figure.named(), "a node goes, 10 nodes: 2 messages of 9 bytes exceed the limit");
        let larger = MeshFigure { messages: 1, nodes: 100, ..figure.clone() };
        let smaller = MeshFigure { messages: 1, bytes: 8, ..figure };
        assert!(!larger.is_within_limits(&[larger.clone(), smaller]));
    }
}
