//! What the log tells Prometheus of itself. docs/metrics.md describes each.

use prometheus::core::Collector;
use prometheus::{IntCounter, IntCounterVec, Opts, Registry};

/// Counters of a [`Stream`](crate::Stream). All clones are the same.
#[derive(Clone, Debug)]
pub struct Metrics {
    pub(crate) records: IntCounterVec,
    pub(crate) dropped: IntCounterVec,
    pub(crate) suppressed: IntCounterVec,
    pub(crate) written: IntCounter,
}

/// Why a record is not where it should be.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reason {
    /// Too many wait for the disk.
    Disk,
    /// The kernel needed the room for later ones.
    Kernel,
    /// Too many wait for the console. On the disk it is.
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
                "Records for which there was no room: they are not on the console, or else not in the log on the disk.",
                "reason",
            )?,
            suppressed: counters(
                "granary_log_suppressed_records_total",
                "Records that were not logged, since their source said too much.",
                "source",
            )?,
            written: IntCounter::new(
                "granary_log_written_bytes_total",
                "Bytes that the node's log wrote to the data disk.",
            )?,
        };
        // Series that exist from the start: an increase from nothing to the first loss is none to Prometheus.
        for reason in Reason::ALL {
            metrics.dropped.with_label_values(&[reason.as_str()]);
        }
        Ok(metrics)
    }

    /// Adds them to those of a registry.
    ///
    /// # Errors
    /// A metric of these names exists already.
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
    fn every_metric_is_described_and_every_description_has_its_metric() {
        let metrics = Metrics::new().unwrap();
        metrics.records.with_label_values(&["info"]).inc();
        metrics.suppressed.with_label_values(&["kubelet"]).inc();
        metricsdocs::assert_described("Log", metrics.collectors());
    }

    #[test]
    fn what_was_never_lost_is_counted_as_none() {
        let metrics = Metrics::new().unwrap();
        let families = metrics.dropped.collect();
        let counts: Vec<_> = families.iter().flat_map(|family| family.get_metric()).collect();
        assert_eq!(counts.len(), Reason::ALL.len());
        assert!(counts.iter().all(|count| count.get_counter().get_value() == 0.0));
    }
}
