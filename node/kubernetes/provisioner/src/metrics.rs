//! Metrics of the provisioner. docs/metrics.md describes each.

use std::sync::Arc;

use prometheus::core::Collector;
use prometheus::{IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry};
use volume::Volumes;

use crate::disk_faults::DiskFaults;
use crate::inventory::{Inventory, Snapshot, count};
use crate::snapshot::support::SnapshotSupport;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Object {
    Claim,
    Volume,
    Snapshot,
}

impl Object {
    const fn name(self) -> &'static str {
        match self {
            Self::Claim => "claim",
            Self::Volume => "volume",
            Self::Snapshot => "snapshot",
        }
    }
}

/// Data or objects without their counterpart, which are never deleted automatically.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Orphan {
    /// An announced volume without a PV.
    Volume,
    /// A snapshot that is ready, without a content.
    Snapshot,
    /// An unreadable record.
    Record,
    /// A directory without a record.
    Directory,
    /// A quota without a record.
    Project,
    /// A PV without a volume.
    Pv,
}

impl Orphan {
    const ALL: [Self; 6] = [Self::Volume, Self::Snapshot, Self::Record, Self::Directory, Self::Project, Self::Pv];

    const fn name(self) -> &'static str {
        match self {
            Self::Volume => "volume",
            Self::Snapshot => "snapshot",
            Self::Record => "record",
            Self::Directory => "directory",
            Self::Project => "project",
            Self::Pv => "pv",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Publication {
    Written,
    Deleted,
    Failed,
}

impl Publication {
    const ALL: [Self; 3] = [Self::Written, Self::Deleted, Self::Failed];

    const fn name(self) -> &'static str {
        match self {
            Self::Written => "written",
            Self::Deleted => "deleted",
            Self::Failed => "failed",
        }
    }
}

/// Metrics that all clones share. They stay when the provisioner is started again.
#[derive(Clone, Debug)]
pub struct Metrics {
    failures: IntCounterVec,
    failing: IntGauge,
    orphans: IntGaugeVec,
    drifted: IntCounter,
    publications: IntCounterVec,
    events_dropped: IntCounter,
    snapshot_support: SnapshotSupport,
}

impl Metrics {
    /// Registers the metrics. Each scrape reads the quotas of all volumes from the disk.
    ///
    /// # Errors
    /// A metric with one of the names exists already.
    pub fn register(registry: &Registry, volumes: Arc<dyn Volumes>) -> Result<Self, prometheus::Error> {
        let metrics = Self::default();
        for collector in metrics.collectors().into_iter().chain(volumes.calls().collectors()) {
            registry.register(collector)?;
        }
        let of_disk = Arc::clone(&volumes);
        registry.register(Box::new(DiskFaults::new(move || of_disk.faults())?))?;
        registry.register(Box::new(Inventory::new(move || Snapshot::of(&*volumes))?))?;
        Ok(metrics)
    }

    fn new() -> Result<Self, prometheus::Error> {
        let counter = |name: &str, help: &str, labels: &[&str]| IntCounterVec::new(Opts::new(name, help), labels);
        let metrics = Self {
            failures: counter(
                "granary_provisioner_failures_total",
                "Failed passes over a claim, a PV or the content of a snapshot, by reason; each is retried.",
                &["object", "reason"],
            )?,
            failing: IntGauge::new(
                "granary_provisioner_failing",
                "Objects retried after a failed pass, and rollbacks that wait; events and the log have the reasons.",
            )?,
            orphans: IntGaugeVec::new(
                Opts::new(
                    "granary_orphans",
                    "Data without its object, or objects without their data; never deleted automatically.",
                ),
                &["kind"],
            )?,
            drifted: IntCounter::new(
                "granary_volume_strays_total",
                "Inodes of volumes that do not count to the project of their volume.",
            )?,
            publications: counter(
                "granary_capacity_publications_total",
                "CSIStorageCapacity objects of this node written and deleted, and attempts that failed.",
                &["result"],
            )?,
            events_dropped: IntCounter::new(
                "granary_provisioner_events_dropped_total",
                "Events of the node that were not sent, because too many waited, or their namespace had too many.",
            )?,
            snapshot_support: SnapshotSupport::new()?,
        };
        // Create all series at the start: a series that begins with its first event has no increase for the alert.
        for orphan in Orphan::ALL {
            metrics.orphans.with_label_values(&[orphan.name()]);
        }
        for publication in Publication::ALL {
            metrics.publications.with_label_values(&[publication.name()]);
        }
        Ok(metrics)
    }

    fn collectors(&self) -> [Box<dyn Collector>; 7] {
        [
            Box::new(self.failures.clone()),
            Box::new(self.failing.clone()),
            Box::new(self.orphans.clone()),
            Box::new(self.drifted.clone()),
            Box::new(self.publications.clone()),
            Box::new(self.events_dropped.clone()),
            Box::new(self.snapshot_support.gauges()),
        ]
    }

    pub fn snapshot_support(&self) -> &SnapshotSupport {
        &self.snapshot_support
    }

    pub(crate) fn failed(&self, object: Object, reason: &'static str) {
        self.failures.with_label_values(&[object.name(), reason]).inc();
    }

    pub(crate) fn failing(&self, objects: usize) {
        self.failing.set(count(objects));
    }

    pub(crate) fn orphans(&self, kind: Orphan, found: usize) {
        self.orphans.with_label_values(&[kind.name()]).set(count(found));
    }

    pub(crate) fn drifted(&self, inodes: u64) {
        self.drifted.inc_by(inodes);
    }

    pub(crate) fn event_dropped(&self) {
        self.events_dropped.inc();
    }

    #[cfg(test)]
    pub(crate) fn events_dropped(&self) -> u64 {
        self.events_dropped.get()
    }

    pub(crate) fn published(&self, publication: Publication) {
        self.publications.with_label_values(&[publication.name()]).inc();
    }
}

impl Default for Metrics {
    /// Unregistered metrics.
    fn default() -> Self {
        Self::new().expect("constant names and labels are well formed")
    }
}

#[cfg(test)]
mod tests {
    use prometheus::TextEncoder;
    use volume::VolumeCalls;

    use super::*;
    use crate::inventory::example;

    #[test]
    fn metrics_and_descriptions_match() {
        let metrics = Metrics::default();
        metrics.failed(Object::Claim, "Full");
        let inventory: Box<dyn Collector> = Box::new(Inventory::new(|| Ok(example())).unwrap());
        let calls = VolumeCalls::default().collectors();
        let faults: Box<dyn Collector> = Box::new(DiskFaults::new(|| Ok(Vec::new())).unwrap());
        let collectors = metrics.collectors().into_iter().chain(calls).chain([faults, inventory]);
        docs::assert_described("Volumes and claims", collectors);
    }

    #[test]
    fn metrics_of_alerts_exist_from_the_start() {
        let calls = VolumeCalls::default().collectors();
        docs::assert_counted_from_the_start(Metrics::default().collectors().into_iter().chain(calls));
    }

    #[test]
    fn failures_and_findings_are_counted() {
        let registry = Registry::new();
        let metrics = Metrics::default();
        for collector in metrics.collectors() {
            registry.register(collector).unwrap();
        }
        metrics.failed(Object::Claim, "Full");
        metrics.failing(2);
        metrics.orphans(Orphan::Project, 1);
        metrics.drifted(3);
        metrics.published(Publication::Written);
        let text = TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
        for line in [
            r#"granary_provisioner_failures_total{object="claim",reason="Full"} 1"#,
            "granary_provisioner_failing 2",
            r#"granary_orphans{kind="project"} 1"#,
            r#"granary_orphans{kind="volume"} 0"#,
            "granary_volume_strays_total 3",
            r#"granary_capacity_publications_total{result="written"} 1"#,
            r#"granary_capacity_publications_total{result="failed"} 0"#,
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in:\n{text}");
        }
    }
}
