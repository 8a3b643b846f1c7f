//! The peers as they are at the moment of a scrape.

use std::sync::{Mutex, PoisonError};
use std::time::UNIX_EPOCH;

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts};
use tracing::warn;

use crate::{LookError, Neighbour, Traffic};

/// The metrics of the kernel's peers, read at every scrape.
pub(crate) struct Scrape<L> {
    look: L,
    /// One scrape at a time looks and sets them.
    gauges: Mutex<Gauges>,
    descs: Vec<Desc>,
}

struct Gauges {
    peers: IntGauge,
    handshake: IntGaugeVec,
    received: IntCounterVec,
    sent: IntCounterVec,
    errors: IntCounter,
}

impl<L: Fn() -> Result<Vec<Neighbour>, LookError> + Send + Sync> Scrape<L> {
    /// Looks with `look` whenever somebody asks.
    pub(crate) fn new(look: L) -> Result<Self, prometheus::Error> {
        let gauges = Gauges::new()?;
        let descs = gauges.all().into_iter().flat_map(Collector::desc).cloned().collect();
        Ok(Self { look, gauges: Mutex::new(gauges), descs })
    }
}

impl<L: Fn() -> Result<Vec<Neighbour>, LookError> + Send + Sync> Collector for Scrape<L> {
    fn desc(&self) -> Vec<&Desc> {
        self.descs.iter().collect()
    }

    /// Without what could not be looked at: an old number would look like a new one.
    fn collect(&self) -> Vec<MetricFamily> {
        let gauges = self.gauges.lock().unwrap_or_else(PoisonError::into_inner);
        match (self.look)() {
            Ok(found) => {
                gauges.set(&found);
                gauges.all().into_iter().flat_map(Collector::collect).collect()
            }
            Err(error) => {
                gauges.errors.inc();
                let error: &dyn std::error::Error = &error;
                warn!(error, "the mesh's peers cannot be read, their metrics are left out");
                gauges.errors.collect()
            }
        }
    }
}

impl Gauges {
    fn new() -> Result<Self, prometheus::Error> {
        let counter = |name: &str, help: &str| IntCounterVec::new(Opts::new(name, help), &["node"]);
        Ok(Self {
            peers: IntGauge::new("granary_mesh_peers", "Nodes that this node exchanges pod traffic with.")?,
            handshake: IntGaugeVec::new(
                Opts::new(
                    "granary_mesh_handshake_timestamp_seconds",
                    "When this node and the other agreed on keys the last time; 0 if they never did.",
                ),
                &["node"],
            )?,
            received: counter("granary_mesh_received_bytes_total", "Bytes received from a node through the mesh.")?,
            sent: counter("granary_mesh_sent_bytes_total", "Bytes sent to a node through the mesh.")?,
            errors: IntCounter::new(
                "granary_mesh_scrape_errors_total",
                "Scrapes that could not read the peers: their metrics are missing.",
            )?,
        })
    }

    fn all(&self) -> [&dyn Collector; 5] {
        let Self { peers, handshake, received, sent, errors } = self;
        [peers, handshake, received, sent, errors]
    }

    fn set(&self, found: &[Neighbour]) {
        self.peers.set(i64::try_from(found.len()).unwrap_or(i64::MAX));
        self.handshake.reset();
        self.received.reset();
        self.sent.reset();
        for Neighbour { node, key, seen } in found {
            let node = node.clone().unwrap_or_else(|| key.to_string());
            let Traffic { handshake, received, sent } = seen.traffic;
            let since = handshake.and_then(|at| at.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
            let seconds = i64::try_from(since.as_secs()).unwrap_or(i64::MAX);
            self.handshake.with_label_values(&[&node]).set(seconds);
            self.received.with_label_values(&[&node]).inc_by(received);
            self.sent.with_label_values(&[&node]).inc_by(sent);
        }
    }
}

/// A peer that has spoken.
#[cfg(test)]
pub(crate) fn example() -> Vec<Neighbour> {
    use std::time::Duration;

    use crate::Seen;
    use crate::diff::tests::{key, peer};

    let handshake = Some(UNIX_EPOCH + Duration::from_millis(1500));
    let seen = Seen { peer: peer(1, [1]), traffic: Traffic { handshake, received: 3, sent: 4 } };
    vec![Neighbour { node: Some("one".into()), key: key(1), seen }]
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use prometheus::{Registry, TextEncoder};

    use super::*;
    use crate::RequestError;
    use crate::diff::tests::key;

    fn values(registry: &Registry) -> Vec<String> {
        let text = TextEncoder::new().encode_to_string(&registry.gather()).expect("text");
        text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
    }

    #[test]
    fn the_text_tells_every_peer_by_its_nodes_name() {
        let registry = Registry::new();
        registry.register(Box::new(Scrape::new(|| Ok(example())).unwrap())).unwrap();
        let expected = [
            r#"granary_mesh_handshake_timestamp_seconds{node="one"} 1"#,
            "granary_mesh_peers 1",
            r#"granary_mesh_received_bytes_total{node="one"} 3"#,
            "granary_mesh_scrape_errors_total 0",
            r#"granary_mesh_sent_bytes_total{node="one"} 4"#,
        ];
        assert_eq!(values(&registry), expected);
        assert_eq!(values(&registry), expected, "the kernel counts, not we");
    }

    #[test]
    fn a_peer_whose_node_is_not_known_is_told_by_its_key() {
        let registry = Registry::new();
        let look = || Ok(example().into_iter().map(|peer| Neighbour { node: None, ..peer }).collect());
        registry.register(Box::new(Scrape::new(look).unwrap())).unwrap();
        let sent = format!(r#"granary_mesh_sent_bytes_total{{node="{}"}} 4"#, key(1));
        assert!(values(&registry).contains(&sent));
    }

    #[test]
    fn a_peer_that_is_gone_has_no_series_and_an_error_leaves_all_out() {
        let registry = Registry::new();
        let turn = AtomicU32::new(0);
        let look = move || match turn.fetch_add(1, Ordering::Relaxed) {
            0 => Ok(Vec::new()),
            _ => Err(LookError { interface: "clusternet".into(), source: RequestError::TooLong }),
        };
        registry.register(Box::new(Scrape::new(look).unwrap())).unwrap();
        assert_eq!(values(&registry), ["granary_mesh_peers 0", "granary_mesh_scrape_errors_total 0"]);
        assert_eq!(values(&registry), ["granary_mesh_scrape_errors_total 1"]);
    }
}
