//! Metrics of the log; docs/metrics.md describes them.

use prometheus::core::Collector;
use prometheus::{IntCounter, IntCounterVec, Opts, Registry};

/// Counters of a [`Stream`](crate::Stream). Clones share them.
#[derive(Clone, Debug)]
pub struct Metrics {
    pub(crate) records: IntCounterVec,
    pub(crate) dropped: IntCounterVec,
    pub(crate) suppressed: IntCounterVec,
    pub(crate) written: IntCounter,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Reason {
    Disk,
    /// The kernel overwrote the record before it was read.
    Kernel,
    /// The queue of the console was full. The record is in the log on the disk.
    Console,
}

impl Reason {
    const ALL: [Self; 3] = [Self::Disk, Self::Kernel, Self::Console];

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Disk => "disk",
            Self::Kernel => "kernel",
            Self::Console => "console",
        }
    }
}

impl Metrics {
    pub(crate) fn new() -> Result<Self, prometheus::Error> {
        let counters = |name: &str, help: &str, label: &str| IntCounterVec::new(Opts::new(name, help), &[label]);
        let metrics = Self {
            records: counters("granary_log_records_total", "Records of the node's log.", "level")?,
            dropped: counters(
                "granary_log_dropped_records_total",
                "Records dropped because a buffer was full: they are missing on the console or in the log on the disk.",
                "reason",
            )?,
            suppressed: counters(
                "granary_log_suppressed_records_total",
                "Records that were not logged because their source exceeded its rate.",
                "source",
            )?,
            written: IntCounter::new(
                "granary_log_written_bytes_total",
                "Bytes that the node's log wrote to the data disk.",
            )?,
        };
        // Create the series at the start: Prometheus does not see an increase of a series that appears with the first
        // loss.
        for reason in Reason::ALL {
            metrics.dropped.with_label_values(&[reason.as_str()]);
        }
        Ok(metrics)
    }

    pub fn register(&self, registry: &Registry) -> Result<(), prometheus::Error> {
        self.collectors().into_iter().try_for_each(|collector| registry.register(collector))
    }

    fn collectors(&self) -> [Box<dyn Collector>; 4] {
        [
            Box::new(self.records.clone()),
            Box::new(self.dropped.clone()),
            Box::new(self.suppressed.clone()),
            Box::new(self.written.clone()),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_and_their_documentation_match() {
        let metrics = Metrics::new().unwrap();
        metrics.records.with_label_values(&["info"]).inc();
        metrics.suppressed.with_label_values(&["kubelet"]).inc();
        docs::assert_described("Log", metrics.collectors());
    }

    #[test]
    fn drop_counters_start_at_zero() {
        let metrics = Metrics::new().unwrap();
        let families = metrics.dropped.collect();
        let counts: Vec<_> = families.iter().flat_map(|family| family.get_metric()).collect();
        assert_eq!(counts.len(), Reason::ALL.len());
        assert!(counts.iter().all(|count| count.get_counter().get_value() == 0.0));
    }
}
