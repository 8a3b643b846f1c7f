//! Metrics of the peers, read at each scrape.

use std::sync::{Mutex, PoisonError};
use std::time::UNIX_EPOCH;

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts};
use tracing::warn;

use crate::{DeviceError, Neighbour, Traffic};

pub(crate) struct Scrape<L> {
    look: L,
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

impl<L: Fn() -> Result<Vec<Neighbour>, DeviceError> + Send + Sync> Scrape<L> {
    pub(crate) fn new(look: L) -> Result<Self, prometheus::Error> {
        let gauges = Gauges::new()?;
        let descs = gauges.all().into_iter().flat_map(Collector::desc).cloned().collect();
        Ok(Self { look, gauges: Mutex::new(gauges), descs })
    }
}

impl<L: Fn() -> Result<Vec<Neighbour>, DeviceError> + Send + Sync> Collector for Scrape<L> {
    fn desc(&self) -> Vec<&Desc> {
        self.descs.iter().collect()
    }

    /// Omits the metrics of the peers after an error, because old values would look current.
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
                warn!(error, "cannot read the peers of the mesh, omitting their metrics");
                gauges.errors.collect()
            }
        }
    }
}

impl Gauges {
    fn new() -> Result<Self, prometheus::Error> {
        let counter = |name: &str, help: &str| IntCounterVec::new(Opts::new(name, help), &["node"]);
        Ok(Self {
            peers: IntGauge::new("granary_mesh_peers", "Peers in the mesh.")?,
            handshake: IntGaugeVec::new(
                Opts::new(
                    "granary_mesh_handshake_timestamp_seconds",
                    "Time of the last WireGuard handshake with the peer; 0 if there was none.",
                ),
                &["node"],
            )?,
            received: counter("granary_mesh_received_bytes_total", "Bytes received from the peer through the mesh.")?,
            sent: counter("granary_mesh_sent_bytes_total", "Bytes sent to the peer through the mesh.")?,
            errors: IntCounter::new(
                "granary_mesh_scrape_errors_total",
                "Scrapes that could not read the peers, whose metrics are missing then.",
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
        for Neighbour { node, key, state } in found {
            let node = node.clone().unwrap_or_else(|| key.to_string());
            let Traffic { handshake, received, sent } = state.traffic;
            let since = handshake.and_then(|at| at.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
            let seconds = i64::try_from(since.as_secs()).unwrap_or(i64::MAX);
            self.handshake.with_label_values(&[&node]).set(seconds);
            self.received.with_label_values(&[&node]).inc_by(received);
            self.sent.with_label_values(&[&node]).inc_by(sent);
        }
    }
}

#[cfg(test)]
pub(crate) fn example() -> Vec<Neighbour> {
    use std::time::Duration;

    use crate::PeerState;
    use crate::diff::tests::{key, peer};

    let handshake = Some(UNIX_EPOCH + Duration::from_millis(1500));
    let state = PeerState { peer: peer(1, [1]), traffic: Traffic { handshake, received: 3, sent: 4 } };
    vec![Neighbour { node: Some("one".into()), key: key(1), state }]
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
    fn peers_are_labelled_with_their_node_names() {
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
        assert_eq!(values(&registry), expected, "the counters are those of the kernel");
    }

    #[test]
    fn a_peer_without_a_node_is_labelled_with_its_key() {
        let registry = Registry::new();
        let look = || Ok(example().into_iter().map(|peer| Neighbour { node: None, ..peer }).collect());
        registry.register(Box::new(Scrape::new(look).unwrap())).unwrap();
        let sent = format!(r#"granary_mesh_sent_bytes_total{{node="{}"}} 4"#, key(1));
        assert!(values(&registry).contains(&sent));
    }

    #[test]
    fn removed_peers_and_errors_leave_no_series() {
        let registry = Registry::new();
        let turn = AtomicU32::new(0);
        let look = move || match turn.fetch_add(1, Ordering::Relaxed) {
            0 => Ok(Vec::new()),
            _ => Err(DeviceError::Unsupported(RequestError::TooLong)),
        };
        registry.register(Box::new(Scrape::new(look).unwrap())).unwrap();
        assert_eq!(values(&registry), ["granary_mesh_peers 0", "granary_mesh_scrape_errors_total 0"]);
        assert_eq!(values(&registry), ["granary_mesh_scrape_errors_total 1"]);
    }
}
