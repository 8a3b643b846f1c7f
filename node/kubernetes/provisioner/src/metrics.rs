//! What the provisioner does, in numbers for Prometheus. docs/metrics.md describes each.

use std::sync::Arc;

use prometheus::core::Collector;
use prometheus::{IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry};
use volume::Volumes;

use crate::inventory::{Inventory, Snapshot};

/// What a pass was about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Object {
    Claim,
    Volume,
}

impl Object {
    const fn name(self) -> &'static str {
        match self {
            Self::Claim => "claim",
            Self::Volume => "volume",
        }
    }
}

/// What lacks its other half, and is never deleted on a guess.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Orphan {
    /// A volume that was announced and has no PV.
    Volume,
    /// A record that cannot be read.
    Record,
    /// Something below the volumes directory that has no record.
    Directory,
    /// A quota that has no record.
    Project,
    /// A PV that has no volume.
    Pv,
}

impl Orphan {
    const ALL: [Self; 5] = [Self::Volume, Self::Record, Self::Directory, Self::Project, Self::Pv];

    const fn name(self) -> &'static str {
        match self {
            Self::Volume => "volume",
            Self::Record => "record",
            Self::Directory => "directory",
            Self::Project => "project",
            Self::Pv => "pv",
        }
    }
}

/// What became of a capacity object.
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

/// The metrics of a node's volumes and of its provisioner; all clones count together. They outlive a provisioner that
/// is started again.
#[derive(Clone, Debug)]
pub struct Metrics {
    failures: IntCounterVec,
    failing: IntGauge,
    orphans: IntGaugeVec,
    drifted: IntCounter,
    publications: IntCounterVec,
}

impl Metrics {
    /// Registers them. Whoever gathers from the registry waits for the disk: each time, one sweep over the quotas of
    /// `volumes` tells what they use.
    ///
    /// # Errors
    /// A metric of these names exists already.
    pub fn register(registry: &Registry, volumes: Arc<dyn Volumes>) -> Result<Self, prometheus::Error> {
        let metrics = Self::default();
        for collector in metrics.collectors().into_iter().chain(volumes.calls().collectors()) {
            registry.register(collector)?;
        }
        registry.register(Box::new(Inventory::new(move || Snapshot::of(&*volumes))?))?;
        Ok(metrics)
    }

    fn new() -> Result<Self, prometheus::Error> {
        let counter = |name: &str, help: &str, labels: &[&str]| IntCounterVec::new(Opts::new(name, help), labels);
        let metrics = Self {
            failures: counter(
                "granary_provisioner_failures_total",
                "Passes over a claim or a PV that failed, by reason; the next one comes after a while.",
                &["object", "reason"],
            )?,
            failing: IntGauge::new(
                "granary_provisioner_failing",
                "Claims, PVs and deleted volumes whose last attempt failed; they wait for the next.",
            )?,
            orphans: IntGaugeVec::new(
                Opts::new(
                    "granary_orphans",
                    "What lacks its other half, on the disk or in the cluster; it is never deleted on a guess.",
                ),
                &["kind"],
            )?,
            drifted: IntCounter::new(
                "granary_volume_strays_total",
                "Inodes of volumes that were found not to count to the project of their volume.",
            )?,
            publications: counter(
                "granary_capacity_publications_total",
                "CSIStorageCapacity objects of this node written and deleted, and attempts that failed.",
                &["result"],
            )?,
        };
        // Series that exist from the start: to Prometheus one that begins with its first event has not grown, and the
        // alert would miss that.
        for orphan in Orphan::ALL {
            metrics.orphans.with_label_values(&[orphan.name()]);
        }
        for publication in Publication::ALL {
            metrics.publications.with_label_values(&[publication.name()]);
        }
        Ok(metrics)
    }

    fn collectors(&self) -> [Box<dyn Collector>; 5] {
        [
            Box::new(self.failures.clone()),
            Box::new(self.failing.clone()),
            Box::new(self.orphans.clone()),
            Box::new(self.drifted.clone()),
            Box::new(self.publications.clone()),
        ]
    }

    /// A pass failed for this reason, one of few.
    pub(crate) fn failed(&self, object: Object, reason: &'static str) {
        self.failures.with_label_values(&[object.name(), reason]).inc();
    }

    /// The last attempts of so many objects failed.
    pub(crate) fn failing(&self, objects: usize) {
        self.failing.set(count(objects));
    }

    /// So many orphans were found.
    pub(crate) fn orphans(&self, kind: Orphan, found: usize) {
        self.orphans.with_label_values(&[kind.name()]).set(count(found));
    }

    /// So many inodes more than before do not count to the project of their volume.
    pub(crate) fn drifted(&self, inodes: u64) {
        self.drifted.inc_by(inodes);
    }

    pub(crate) fn published(&self, publication: Publication) {
        self.publications.with_label_values(&[publication.name()]).inc();
    }
}

impl Default for Metrics {
    /// Those that nobody reads.
    fn default() -> Self {
        // A name or a label that is none would be found by every test.
        Self::new().expect("constant names and labels are well formed")
    }
}

/// A number of things, for a gauge.
pub(crate) fn count(things: usize) -> i64 {
    i64::try_from(things).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use prometheus::TextEncoder;
    use volume::VolumeCalls;

    use super::*;
    use crate::inventory::example;

    #[test]
    fn every_metric_is_described_and_every_description_has_its_metric() {
        let metrics = Metrics::default();
        metrics.failed(Object::Claim, "Full");
        let inventory: Box<dyn Collector> = Box::new(Inventory::new(|| Ok(example())).unwrap());
        let calls = VolumeCalls::default().collectors();
        let collectors = metrics.collectors().into_iter().chain(calls).chain([inventory]);
        docs::assert_described("Volumes and claims", collectors);
    }

    #[test]
    fn what_an_alert_asks_for_is_counted_from_the_start() {
        let calls = VolumeCalls::default().collectors();
        docs::assert_counted_from_the_start(Metrics::default().collectors().into_iter().chain(calls));
    }

    #[test]
    fn what_happens_is_counted_by_what_it_was_and_how_it_ended() {
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
