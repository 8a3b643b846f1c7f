//! Metrics of containerd's part of the data disk. docs/metrics.md describes each metric.

use fsquota::Quota;
use prometheus::core::Collector;
use prometheus::{IntCounter, IntGauge, Registry};
use units::Bytes;

#[derive(Clone, Debug)]
pub struct Metrics {
    limit: IntGauge,
    used: IntGauge,
    removed: IntCounter,
}

impl Metrics {
    pub fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let metrics = Self::new()?;
        metrics.collectors().into_iter().try_for_each(|collector| registry.register(collector))?;
        Ok(metrics)
    }

    pub(crate) fn new() -> Result<Self, prometheus::Error> {
        Ok(Self {
            limit: IntGauge::new(
                "granary_images_limit_bytes",
                "Size of the part of the data disk for images and the writable layers of containers.",
            )?,
            used: IntGauge::new("granary_images_used_bytes", "Used space of this part.")?,
            removed: IntCounter::new(
                "granary_images_removed_total",
                "Unused images that the node removed because this part was nearly full.",
            )?,
        })
    }

    fn collectors(&self) -> [Box<dyn Collector>; 3] {
        [Box::new(self.limit.clone()), Box::new(self.used.clone()), Box::new(self.removed.clone())]
    }

    pub(crate) fn set(&self, quota: &Quota) {
        let number = |bytes: Bytes| i64::try_from(bytes.get()).unwrap_or(i64::MAX);
        self.limit.set(quota.limits.bytes.map_or(0, number));
        self.used.set(number(quota.used.bytes));
    }

    pub(crate) fn removed(&self) {
        self.removed.inc();
    }

    #[cfg(test)]
    pub(crate) fn total(&self) -> u64 {
        self.removed.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_described_metrics_are_the_collected_ones() {
        docs::assert_described("Images", Metrics::new().unwrap().collectors());
    }
}
