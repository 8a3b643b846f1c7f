//! Metrics of the restrictions. docs/metrics.md describes them.

use std::sync::Arc;

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{IntCounterVec, IntGauge, Opts, Registry};

use crate::restrictions::{Enforcement, Restrictions};

/// A collector that reads the kernel's counters at each scrape.
#[derive(Debug)]
pub struct Metrics {
    restrictions: Arc<Restrictions>,
    enforced: IntGauge,
    denied: IntCounterVec,
}

impl Metrics {
    pub fn register(registry: &Registry, restrictions: Arc<Restrictions>) -> Result<(), prometheus::Error> {
        registry.register(Box::new(Self::new(restrictions)?))
    }

    fn new(restrictions: Arc<Restrictions>) -> Result<Self, prometheus::Error> {
        Ok(Self {
            restrictions,
            enforced: IntGauge::new(
                "granary_limits_enforced",
                "Whether pods are denied the calls that remove limits of volumes: 0 or 1. If 0, limits are advisory.",
            )?,
            denied: IntCounterVec::new(
                Opts::new(
                    "granary_denied_total",
                    "Calls of pods that would change limits or loop devices, and were denied.",
                ),
                &["operation"],
            )?,
        })
    }
}

impl Collector for Metrics {
    fn desc(&self) -> Vec<&Desc> {
        [self.enforced.desc(), self.denied.desc()].concat()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let is_enforced = *self.restrictions.enforcement().borrow() == Enforcement::Enforced;
        self.enforced.set(is_enforced.into());
        // The kernel counts the calls, so replace the values.
        self.denied.reset();
        for (operation, count) in self.restrictions.denied() {
            self.denied.with_label_values(&[operation.name()]).inc_by(count);
        }
        [self.enforced.collect(), self.denied.collect()].concat()
    }
}

#[cfg(test)]
mod tests {
    use prometheus::TextEncoder;

    use super::*;

    fn restrictions() -> Arc<Restrictions> {
        Arc::new(Restrictions::new("/nonexistent", provisioner::notices().0))
    }

    #[test]
    fn the_described_metrics_are_the_collected_ones() {
        let collector: Box<dyn Collector> = Box::new(Metrics::new(restrictions()).unwrap());
        docs::assert_described("Restrictions of pods", [collector]);
    }

    #[test]
    fn a_scrape_reports_the_present_enforcement() {
        let (registry, restrictions) = (Registry::new(), restrictions());
        Metrics::register(&registry, Arc::clone(&restrictions)).unwrap();
        let has = |line: &str| {
            let text = TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
            assert!(text.lines().any(|found| found == line), "{line} in:\n{text}");
        };
        has("granary_limits_enforced 0");
        has(r#"granary_denied_total{operation="quota"} 0"#);
        restrictions.set(Enforcement::Enforced);
        has("granary_limits_enforced 1");
        restrictions.set(Enforcement::Failed("no BPF".into()));
        has("granary_limits_enforced 0");
    }
}
