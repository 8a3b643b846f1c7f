//! Metrics of the provisioner. docs/metrics.md describes each.

use std::sync::Arc;
use std::time::Duration;

use prometheus::core::Collector;
use prometheus::{HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry};
use volume::Error;

use crate::Volumes;
use crate::inventory::{Inventory, Snapshot, count};

/// From a write of the log to the allocation of a large image or the removal of millions of files.
const SECONDS: [f64; 10] = [0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0];

/// Methods of [`Volumes`] that change the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Provision,
    Announce,
    Expand,
    Retire,
    Restore,
    Discard,
    Undo,
}

impl Operation {
    const ALL: [Self; 7] =
        [Self::Provision, Self::Announce, Self::Expand, Self::Retire, Self::Restore, Self::Discard, Self::Undo];

    const fn name(self) -> &'static str {
        match self {
            Self::Provision => "provision",
            Self::Announce => "announce",
            Self::Expand => "expand",
            Self::Retire => "retire",
            Self::Restore => "restore",
            Self::Discard => "discard",
            Self::Undo => "undo",
        }
    }
}

/// With a change, without one, or an error of this kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Changed,
    Unchanged,
    Full,
    Refused,
    Closed,
    Look,
    Act,
    Unfinished,
    TooLarge,
    Unknown,
    Announced,
    InUse,
}

impl Outcome {
    /// Those with an alert, and the usual one.
    const INITIAL: [Self; 3] = [Self::Changed, Self::Look, Self::Act];

    const fn name(self) -> &'static str {
        match self {
            Self::Changed => "changed",
            Self::Unchanged => "unchanged",
            Self::Full => "full",
            Self::Refused => "refused",
            Self::Closed => "closed",
            Self::Look => "look",
            Self::Act => "act",
            Self::Unfinished => "unfinished",
            Self::TooLarge => "too_large",
            Self::Unknown => "unknown",
            Self::Announced => "announced",
            Self::InUse => "in_use",
        }
    }
}

impl From<&Error> for Outcome {
    fn from(error: &Error) -> Self {
        match error {
            in_use if in_use.is_in_use() => Self::InUse,
            Error::Full { .. } => Self::Full,
            Error::Refused { .. } => Self::Refused,
            Error::Closed { .. } => Self::Closed,
            Error::Look { .. } => Self::Look,
            Error::Act { .. } => Self::Act,
            Error::Unfinished { .. } => Self::Unfinished,
            Error::TooLarge { .. } => Self::TooLarge,
            Error::Unknown { .. } => Self::Unknown,
            Error::Announced { .. } => Self::Announced,
            Error::Published { .. } => Self::InUse,
        }
    }
}

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

/// Data or objects without their counterpart, which are never deleted automatically.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Orphan {
    /// An announced volume without a PV.
    Volume,
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

/// Shared by all clones, and by provisioners that are started again.
#[derive(Clone, Debug)]
pub struct Metrics {
    operations: IntCounterVec,
    durations: HistogramVec,
    failures: IntCounterVec,
    failing: IntGauge,
    orphans: IntGaugeVec,
    drifted: IntCounter,
    publications: IntCounterVec,
}

impl Metrics {
    /// Registers the metrics. Each scrape reads the quotas of all volumes from the disk.
    ///
    /// # Errors
    /// A metric with one of the names exists already.
    pub fn register(registry: &Registry, volumes: Arc<dyn Volumes>) -> Result<Self, prometheus::Error> {
        let metrics = Self::default();
        for collector in metrics.collectors() {
            registry.register(collector)?;
        }
        registry.register(Box::new(Inventory::new(move || Snapshot::of(&*volumes))?))?;
        Ok(metrics)
    }

    fn new() -> Result<Self, prometheus::Error> {
        let counter = |name: &str, help: &str, labels: &[&str]| IntCounterVec::new(Opts::new(name, help), labels);
        let metrics = Self {
            operations: counter(
                "granary_volume_operations_total",
                "Operations on the disk that change a volume.",
                &["operation", "result"],
            )?,
            durations: HistogramVec::new(
                HistogramOpts::new(
                    "granary_volume_operation_duration_seconds",
                    "Duration of these operations, including failed ones.",
                )
                .buckets(SECONDS.into()),
                &["operation"],
            )?,
            failures: counter(
                "granary_provisioner_failures_total",
                "Failed passes over a claim or a PV, by reason; each is retried.",
                &["object", "reason"],
            )?,
            failing: IntGauge::new(
                "granary_provisioner_failing",
                "Claims, PVs and deleted volumes whose last pass failed.",
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
        };
        // From the start: a series that begins with its first event has no increase for the alert.
        for operation in Operation::ALL {
            for outcome in Outcome::INITIAL {
                metrics.operations.with_label_values(&[operation.name(), outcome.name()]);
            }
            metrics.durations.with_label_values(&[operation.name()]);
        }
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
            Box::new(self.operations.clone()),
            Box::new(self.durations.clone()),
            Box::new(self.failures.clone()),
            Box::new(self.failing.clone()),
            Box::new(self.orphans.clone()),
            Box::new(self.drifted.clone()),
            Box::new(self.publications.clone()),
        ]
    }

    pub(crate) fn operated(&self, operation: Operation, outcome: Outcome, took: Duration) {
        self.operations.with_label_values(&[operation.name(), outcome.name()]).inc();
        self.durations.with_label_values(&[operation.name()]).observe(took.as_secs_f64());
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

    pub(crate) fn published(&self, publication: Publication) {
        self.publications.with_label_values(&[publication.name()]).inc();
    }
}

impl Default for Metrics {
    /// Unregistered.
    fn default() -> Self {
        Self::new().expect("constant names and labels are well formed")
    }
}

#[cfg(test)]
mod tests {
    use prometheus::TextEncoder;

    use super::*;
    use crate::inventory::example;

    #[test]
    fn metrics_and_descriptions_match() {
        let metrics = Metrics::default();
        metrics.failed(Object::Claim, "Full");
        let inventory: Box<dyn Collector> = Box::new(Inventory::new(|| Ok(example())).unwrap());
        metricsdocs::assert_described("Volumes and claims", metrics.collectors().into_iter().chain([inventory]));
    }

    #[test]
    fn metrics_of_alerts_exist_from_the_start() {
        let metrics = Metrics::default();
        metricsdocs::assert_counted_from_the_start(metrics.collectors());
    }

    #[test]
    fn operations_are_counted_by_kind_and_result() {
        let registry = Registry::new();
        let metrics = Metrics::default();
        for collector in metrics.collectors() {
            registry.register(collector).unwrap();
        }
        metrics.operated(Operation::Provision, Outcome::Changed, Duration::from_millis(3));
        metrics.operated(Operation::Provision, Outcome::Full, Duration::from_secs(2));
        metrics.failed(Object::Claim, "Full");
        metrics.failing(2);
        metrics.orphans(Orphan::Project, 1);
        metrics.drifted(3);
        metrics.published(Publication::Written);
        let text = TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
        for line in [
            r#"granary_volume_operations_total{operation="provision",result="changed"} 1"#,
            r#"granary_volume_operations_total{operation="provision",result="full"} 1"#,
            r#"granary_volume_operations_total{operation="discard",result="changed"} 0"#,
            r#"granary_volume_operation_duration_seconds_bucket{operation="provision",le="0.005"} 1"#,
            r#"granary_volume_operation_duration_seconds_count{operation="provision"} 2"#,
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
