//! [`MeshReport`]: what a node of the mesh sends to its kernel when other nodes come, change and go.

use std::fmt;
use std::net::SocketAddr;

use cluster::MESH_PORT;
use clusternet::{Cost, Peer, Peers, PublicKey, cost, diff};
use ipnet::{IpNet, Ipv4Net};
use serde::Serialize;

use crate::table::Table;

/// How many other nodes there are.
const SIZES: [u32; 3] = [10, 100, 1000];

/// Figures of all sizes. They are computed from the messages as they are sent: no kernel and no time is in them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MeshReport {
    /// For each change, in each size.
    pub figures: Vec<MeshFigure>,
    /// Those that are not as promised.
    pub violations: Vec<String>,
}

/// What one change costs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MeshFigure {
    /// What changes.
    pub change: &'static str,
    /// How many other nodes there are.
    pub nodes: u32,
    /// Netlink messages, each acknowledged by one.
    pub messages: usize,
    /// Their bytes.
    pub bytes: usize,
    /// Of the largest of them.
    pub largest: usize,
    /// What it would cost to give the kernel all peers anew.
    pub anew: usize,
}

const START: &str = "start: all are added";
const NOTHING: &str = "nothing changes";

impl MeshReport {
    /// Of clusters of 10, 100 and 1,000 other nodes.
    pub fn new() -> Self {
        let figures: Vec<_> = SIZES.into_iter().flat_map(figures).collect();
        let violations =
            figures.iter().filter(|figure| !figure.is_as_promised(&figures)).map(MeshFigure::named).collect();
        Self { figures, violations }
    }
}

impl Default for MeshReport {
    fn default() -> Self {
        Self::new()
    }
}

impl MeshFigure {
    /// A change of one node costs one message of the same size however many nodes there are, none costs none, and all
    /// nodes are a few messages.
    fn is_as_promised(&self, all: &[Self]) -> bool {
        match self.change {
            START => self.messages <= 4,
            NOTHING => self.messages == 0,
            change => self.messages == 1 && all.iter().all(|other| other.change != change || other.bytes == self.bytes),
        }
    }

    fn named(&self) -> String {
        let Self { change, nodes, messages, bytes, .. } = self;
        format!("{change}, {nodes} nodes: {messages} messages of {bytes} bytes are not as promised")
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
    let anew = cost(&diff(&Peers::new(), &all)).bytes;
    let figure = |change, have: &Peers, want: &Peers| {
        let Cost { messages, bytes, largest } = cost(&diff(have, want));
        MeshFigure { change, nodes, messages, bytes, largest, anew }
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
        let heads = ["change", "other nodes", "messages", "bytes", "largest", "bytes of all anew"].map(String::from);
        let rows = self.figures.iter().map(|figure| {
            let numbers = [figure.messages, figure.bytes, figure.largest, figure.anew].map(|number| number.to_string());
            [figure.change.to_owned(), figure.nodes.to_string()].into_iter().chain(numbers).collect()
        });
        writeln!(f, "{}", Table::new(heads.into(), rows.collect()))?;
        match self.violations.len() {
            0 => writeln!(f, "\nAll are as promised."),
            broken => writeln!(f, "\nNOT as promised: {broken} of them."),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_of_one_node_costs_the_same_however_many_there_are() {
        let report = MeshReport::new();
        assert_eq!(report.violations, Vec::<String>::new());
        assert_eq!(report.figures.len(), 18);
        let shown = report.to_string();
        assert!(shown.ends_with("All are as promised.\n"), "{shown}");
    }

    #[test]
    fn what_is_not_as_promised_is_named() {
        let figure = MeshFigure { change: "a node goes", nodes: 10, messages: 2, bytes: 9, largest: 5, anew: 9 };
        assert!(!figure.is_as_promised(std::slice::from_ref(&figure)));
        assert_eq!(figure.named(), "a node goes, 10 nodes: 2 messages of 9 bytes are not as promised");
        let larger = MeshFigure { messages: 1, nodes: 100, ..figure.clone() };
        let smaller = MeshFigure { messages: 1, bytes: 8, ..figure };
        assert!(!larger.is_as_promised(&[larger.clone(), smaller]));
    }
}
