//! Requirements of snapshots that the cluster lacks. A cluster of Granary nodes has them, another one may not.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use k8s_openapi::jiff::Timestamp;
use prometheus::{IntGaugeVec, Opts};

/// A requirement of snapshots. The text is for operators of a cluster that lacks it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapshotRequirement {
    Crds,
    /// The snapshot controller names the node of each content.
    Distribution,
}

impl SnapshotRequirement {
    const ALL: [Self; 2] = [Self::Crds, Self::Distribution];

    const fn name(self) -> &'static str {
        match self {
            Self::Crds => "crds",
            Self::Distribution => "distribution",
        }
    }
}

impl fmt::Display for SnapshotRequirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Crds => "snapshots are unavailable: the cluster does not have the CRDs of snapshot.storage.k8s.io/v1",
            Self::Distribution => {
                "snapshots are not distributed: the snapshot controller runs without --enable-distributed-snapshotting"
            }
        })
    }
}

/// Requirements that the cluster has, as far as the node has found. All clones share this state, which stays when the
/// provisioner is started again.
#[derive(Clone, Debug)]
pub struct SnapshotSupport {
    found: Arc<Mutex<Found>>,
    gauges: IntGaugeVec,
}

#[derive(Debug, Default)]
struct Found {
    are_crds_missing: bool,
    /// Creation time of the newest content without its node.
    unlabelled: Option<Timestamp>,
}

impl Found {
    const fn lacks(&self, requirement: SnapshotRequirement) -> bool {
        match requirement {
            SnapshotRequirement::Crds => self.are_crds_missing,
            SnapshotRequirement::Distribution => self.unlabelled.is_some(),
        }
    }
}

impl SnapshotSupport {
    pub(crate) fn new() -> Result<Self, prometheus::Error> {
        let help = "Requirements of snapshots that the cluster lacks, as far as the node has found: 0 or 1.";
        let gauges = IntGaugeVec::new(Opts::new("granary_snapshot_requirements_missing", help), &["requirement"])?;
        let support = Self { found: Arc::default(), gauges };
        support.change(|_| ());
        Ok(support)
    }

    pub(crate) fn gauges(&self) -> IntGaugeVec {
        self.gauges.clone()
    }

    /// The requirements that the cluster lacks.
    pub fn missing(&self) -> Vec<SnapshotRequirement> {
        let found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        SnapshotRequirement::ALL.into_iter().filter(|requirement| found.lacks(*requirement)).collect()
    }

    /// Sets whether the CRDs have been missing for long.
    pub fn set_crds_missing(&self, are_missing: bool) {
        self.change(|found| found.are_crds_missing = are_missing);
    }

    /// Records that the snapshot controller created a content at this time without its node. Returns whether this
    /// content is the first one, or the first one after others that had their node.
    pub(crate) fn unlabelled(&self, created: Timestamp) -> bool {
        self.change(|found| {
            let is_first = found.unlabelled.is_none();
            found.unlabelled = found.unlabelled.max(Some(created));
            is_first
        })
    }

    /// Records that a content that the snapshot controller created at this time has its node. An older content does not
    /// count, because the node itself may have set its label.
    pub(crate) fn labelled(&self, created: Timestamp) {
        self.change(|found| found.unlabelled = found.unlabelled.filter(|newest| created <= *newest));
    }

    fn change<T>(&self, change: impl FnOnce(&mut Found) -> T) -> T {
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = change(&mut found);
        for requirement in SnapshotRequirement::ALL {
            self.gauges.with_label_values(&[requirement.name()]).set(found.lacks(requirement).into());
        }
        changed
    }
}

#[cfg(test)]
mod tests {
    use prometheus::{Registry, TextEncoder};

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a time")
    }

    fn support() -> SnapshotSupport {
        SnapshotSupport::new().expect("a metric")
    }

    #[test]
    fn a_content_without_its_node_is_reported_once() {
        let support = support();
        assert!(support.missing().is_empty());
        assert_eq!([1, 3, 2].map(|created| support.unlabelled(at(created))), [true, false, false]);
        assert_eq!(support.missing(), [SnapshotRequirement::Distribution]);
    }

    #[test]
    fn only_a_newer_content_with_its_node_ends_the_condition() {
        let support = support();
        support.unlabelled(at(3));
        // The node has set the label of the first two.
        for created in [2, 3] {
            support.labelled(at(created));
            assert_eq!(support.missing(), [SnapshotRequirement::Distribution]);
        }
        support.labelled(at(4));
        assert!(support.missing().is_empty());
        assert!(support.unlabelled(at(5)), "reported again");
    }

    #[test]
    fn each_requirement_has_a_series() {
        let (support, registry) = (support(), Registry::new());
        registry.register(Box::new(support.gauges())).unwrap();
        let has = |crds: u8, distribution: u8| {
            let text = TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
            for (requirement, value) in [("crds", crds), ("distribution", distribution)] {
                let line = format!(r#"granary_snapshot_requirements_missing{{requirement="{requirement}"}} {value}"#);
                assert!(text.lines().any(|found| found == line), "{line} in:\n{text}");
            }
        };
        has(0, 0);
        support.set_crds_missing(true);
        has(1, 0);
        support.unlabelled(at(1));
        has(1, 1);
        assert_eq!(support.missing(), SnapshotRequirement::ALL);
        support.set_crds_missing(false);
        has(0, 1);
    }
}
