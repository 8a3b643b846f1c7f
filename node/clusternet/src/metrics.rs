//! Metrics of the mesh; docs/metrics.md describes them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use prometheus::core::Collector;
use prometheus::{IntCounterVec, IntGaugeVec, Opts, Registry};

use crate::member_error::MemberError;
use crate::traffic::Scrape;
use crate::{Change, Device, DeviceError, PeerState, PublicKey};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// Node name. `None` for a peer of an earlier run until the Nodes are listed.
    pub node: Option<String>,
    pub key: PublicKey,
    pub state: PeerState,
}

/// Metrics of a node's mesh. Clones share the metrics, which outlive a restart of the controller.
#[derive(Clone, Debug)]
pub struct Metrics {
    rejected: IntGaugeVec,
    changes: IntCounterVec,
    /// Node names of the peers at the last pass.
    names: Arc<Mutex<BTreeMap<PublicKey, String>>>,
}

impl Metrics {
    /// Registers the metrics. A scrape blocks on the kernel's list of peers. Fails if a metric with one of these names
    /// exists.
    pub fn register(registry: &Registry, device: Arc<dyn Device>) -> Result<Self, prometheus::Error> {
        let metrics = Self::default();
        for collector in metrics.collectors() {
            registry.register(collector)?;
        }
        let shared = metrics.clone();
        registry.register(Box::new(Scrape::new(move || shared.neighbours(&*device))?))?;
        Ok(metrics)
    }

    fn new() -> Result<Self, prometheus::Error> {
        let metrics = Self {
            rejected: IntGaugeVec::new(
                Opts::new(
                    "granary_mesh_refused",
                    "Nodes that are rejected as peers, completely or in part, by reason; the log contains their names.",
                ),
                &["reason"],
            )?,
            changes: IntCounterVec::new(
                Opts::new("granary_mesh_changes_total", "Peers added, updated and removed."),
                &["change"],
            )?,
            names: Arc::default(),
        };
        // Create the series at the start, so that rates are correct from the first event on.
        for reason in MemberError::REASONS {
            metrics.rejected.with_label_values(&[reason]);
        }
        for change in ["added", "updated", "removed"] {
            metrics.changes.with_label_values(&[change]);
        }
        Ok(metrics)
    }

    fn collectors(&self) -> [Box<dyn Collector>; 2] {
        [Box::new(self.rejected.clone()), Box::new(self.changes.clone())]
    }

    pub(crate) fn changed(&self, change: &Change) {
        self.changes.with_label_values(&[change.name()]).inc();
    }

    pub(crate) fn rejected(&self, rejected: &BTreeSet<(String, MemberError)>) {
        for reason in MemberError::REASONS {
            let count = rejected.iter().filter(|(_, refusal)| refusal.reason() == reason).count();
            self.rejected.with_label_values(&[reason]).set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }

    /// Reads all peers, sorted by key. Blocks on the kernel.
    pub fn neighbours(&self, device: &dyn Device) -> Result<Vec<Neighbour>, DeviceError> {
        let found = device.look()?;
        let names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        let neighbour = |(key, state)| Neighbour { node: names.get(&key).cloned(), key, state };
        Ok(found.into_iter().map(neighbour).collect())
    }

    pub(crate) fn named(&self, nodes: &BTreeMap<PublicKey, String>) {
        self.names.lock().unwrap_or_else(PoisonError::into_inner).clone_from(nodes);
    }
}

impl Default for Metrics {
    fn default() -> Self {
        // All tests would detect an invalid name or label.
        Self::new().expect("valid names and labels")
    }
}

#[cfg(test)]
mod tests {
    use prometheus::TextEncoder;

    use super::*;
    use crate::diff::tests::key;
    use crate::traffic::example;

    #[test]
    fn metrics_and_their_documentation_match() {
        let metrics = Metrics::default();
        let scrape: Box<dyn Collector> = Box::new(Scrape::new(|| Ok(example())).unwrap());
        docs::assert_described("Mesh", metrics.collectors().into_iter().chain([scrape]));
    }

    #[test]
    fn rejections_are_counted_by_reason_and_changes_by_kind() {
        let registry = Registry::new();
        let metrics = Metrics::default();
        for collector in metrics.collectors() {
            registry.register(collector).unwrap();
        }
        let taken = MemberError::KeyTaken { owner: "one".into() };
        metrics.rejected(&[("two".into(), taken.clone()), ("three".into(), taken)].into());
        metrics.rejected(&[("two".into(), MemberError::OwnKey), ("two".into(), MemberError::NoAddress)].into());
        metrics.changed(&Change::Remove(key(1)));
        let text = TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
        for line in [
            r#"granary_mesh_refused{reason="key_taken"} 1"#,
            r#"granary_mesh_refused{reason="address"} 1"#,
            r#"granary_mesh_refused{reason="range_taken"} 0"#,
            r#"granary_mesh_changes_total{change="removed"} 1"#,
            r#"granary_mesh_changes_total{change="added"} 0"#,
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in:\n{text}");
        }
    }
}
