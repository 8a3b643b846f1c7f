//! Metrics and notifications of the calls that change volumes.

use std::time::{Duration, Instant};

use dir::Ensured;
use prometheus::core::Collector;
use prometheus::{CounterVec, Histogram, HistogramOpts, HistogramVec, IntCounterVec, Opts};
use tokio::sync::{broadcast, watch};

use crate::{Error, VolumeId};

/// Buckets of durations, in seconds: from an operation on the log alone to the allocation of a large image, or the
/// removal of millions of files.
const SECONDS: [f64; 10] = [0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0];

/// Buckets of pauses, in seconds: from a few small files to the longest pause that a class may allow. 2 s is the
/// default of `maxPause`.
const PAUSES: [f64; 11] = [0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 60.0];

/// Maximum number of unpublished volumes that a subscriber has not received yet.
const UNPUBLISHED: usize = 64;

/// Duration of one pause of pods while volumes were cloned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodPause {
    /// From the request to freeze until no process ran.
    pub freeze: Duration,
    /// Time of the clones of images, and of the last pass over files.
    pub clone: Duration,
    /// From the request to thaw until processes could run again.
    pub thaw: Duration,
}

impl PodPause {
    const fn phases(self) -> [(&'static str, Duration); 3] {
        [("freeze", self.freeze), ("clone", self.clone), ("thaw", self.thaw)]
    }
}

macro_rules! operations {
    ($($variant:ident: $name:literal,)*) => {
        /// A call of [`Volumes`](crate::Volumes) that changes a volume.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Operation {
            $($variant,)*
        }

        impl Operation {
            const ALL: &[Self] = &[$(Self::$variant),*];

            const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }
    };
}

operations! {
    Provision: "provision",
    Announce: "announce",
    Expand: "expand",
    Retire: "retire",
    Restore: "restore",
    Discard: "discard",
    Undo: "undo",
    TakeSnapshot: "take_snapshot",
    TakeGroup: "take_group",
    RemoveSnapshot: "remove_snapshot",
    RollBack: "roll_back",
    LimitIo: "limit_io",
}

/// Counts and times each [`Operation`], and notifies subscribers of changes and of unpublished volumes.
#[derive(Debug)]
pub struct VolumeCalls {
    operations: IntCounterVec,
    durations: HistogramVec,
    pauses: Histogram,
    phases: CounterVec,
    changes: watch::Sender<()>,
    unpublished: broadcast::Sender<VolumeId>,
}

impl VolumeCalls {
    fn new() -> Result<Self, prometheus::Error> {
        let calls = Self {
            operations: IntCounterVec::new(
                Opts::new("granary_volume_operations_total", "Operations on the disk that change a volume."),
                &["operation", "result"],
            )?,
            durations: HistogramVec::new(
                HistogramOpts::new(
                    "granary_volume_operation_duration_seconds",
                    "Duration of these operations, including those that fail.",
                )
                .buckets(SECONDS.into()),
                &["operation"],
            )?,
            pauses: Histogram::with_opts(
                HistogramOpts::new(
                    "granary_pod_pause_duration_seconds",
                    "Duration of the freeze of pods for a snapshot, a group of snapshots or a clone.",
                )
                .buckets(PAUSES.into()),
            )?,
            phases: CounterVec::new(
                Opts::new("granary_pod_pause_phase_seconds_total", "Total duration of all freezes of pods, by phase."),
                &["phase"],
            )?,
            changes: watch::Sender::default(),
            unpublished: broadcast::Sender::new(UNPUBLISHED),
        };
        // Prometheus sees no increase if a series begins with its first event, so an alert on it would not fire.
        for operation in Operation::ALL {
            for result in ["changed", "look", "act"] {
                calls.operations.with_label_values(&[operation.name(), result]);
            }
            calls.durations.with_label_values(&[operation.name()]);
        }
        calls.count(PodPause { freeze: Duration::ZERO, clone: Duration::ZERO, thaw: Duration::ZERO });
        Ok(calls)
    }

    pub fn observe<T>(
        &self,
        operation: Operation,
        call: impl FnOnce() -> Result<Ensured<T>, Error>,
    ) -> Result<Ensured<T>, Error> {
        let start = Instant::now();
        let done = call();
        let result = match &done {
            Ok(Ensured::Created(_)) => "changed",
            Ok(Ensured::Unchanged(_)) => "unchanged",
            Err(error) => error.kind(),
        };
        self.operations.with_label_values(&[operation.name(), result]).inc();
        self.durations.with_label_values(&[operation.name()]).observe(start.elapsed().as_secs_f64());
        // A failed call may have changed the reserved space.
        if !matches!(done, Ok(Ensured::Unchanged(_))) {
            self.changes.send_replace(());
        }
        done
    }

    /// Records one pause of pods that has ended.
    pub fn observe_pause(&self, pause: PodPause) {
        self.count(pause);
        self.pauses.observe((pause.freeze + pause.clone + pause.thaw).as_secs_f64());
    }

    fn count(&self, pause: PodPause) {
        for (phase, time) in pause.phases() {
            self.phases.with_label_values(&[phase]).inc_by(time.as_secs_f64());
        }
    }

    /// Notified after each call that may have changed the reserved space.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// Notifies subscribers that a target of the volume was removed. The volume may have other targets.
    pub fn unpublished(&self, id: &VolumeId) {
        // `send` fails if nothing is subscribed.
        drop(self.unpublished.send(id.clone()));
    }

    /// Receives the volume of each [`VolumeCalls::unpublished`] from now on. A receiver that is 64 notifications behind
    /// loses the oldest ones, and then gets an error: each volume may be that of a lost notification.
    pub fn unpublishes(&self) -> broadcast::Receiver<VolumeId> {
        self.unpublished.subscribe()
    }

    pub fn collectors(&self) -> [Box<dyn Collector>; 4] {
        [
            Box::new(self.operations.clone()),
            Box::new(self.durations.clone()),
            Box::new(self.pauses.clone()),
            Box::new(self.phases.clone()),
        ]
    }
}

impl Default for VolumeCalls {
    fn default() -> Self {
        // An invalid name or label would fail every test.
        Self::new().expect("constant names and labels are well formed")
    }
}

#[cfg(test)]
mod tests {
    use prometheus::{Registry, TextEncoder};
    use units::Bytes;

    use super::*;

    fn text(calls: &VolumeCalls) -> String {
        let registry = Registry::new();
        for collector in calls.collectors() {
            registry.register(collector).unwrap();
        }
        TextEncoder::new().encode_to_string(&registry.gather()).unwrap()
    }

    #[test]
    fn calls_are_counted_by_operation_and_result() {
        let calls = VolumeCalls::default();
        let mut changes = calls.changes();
        calls.observe(Operation::Provision, || Ok(Ensured::Unchanged(()))).unwrap();
        assert!(!changes.has_changed().unwrap());
        calls.observe(Operation::Provision, || Ok(Ensured::Created(()))).unwrap();
        assert!(changes.has_changed().unwrap());
        changes.mark_unchanged();
        let id = "pvc-1".parse().unwrap();
        let full = || Err::<Ensured<()>, _>(Error::Full { id, wanted: Bytes::GIB, free: Bytes::ZERO });
        calls.observe(Operation::Provision, full).unwrap_err();
        assert!(changes.has_changed().unwrap(), "a failed call may have changed the reserved space");
        let text = text(&calls);
        for line in [
            r#"granary_volume_operations_total{operation="provision",result="changed"} 1"#,
            r#"granary_volume_operations_total{operation="provision",result="unchanged"} 1"#,
            r#"granary_volume_operations_total{operation="provision",result="full"} 1"#,
            r#"granary_volume_operations_total{operation="discard",result="changed"} 0"#,
            r#"granary_volume_operation_duration_seconds_bucket{operation="provision",le="60"} 3"#,
            r#"granary_volume_operation_duration_seconds_count{operation="provision"} 3"#,
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in:\n{text}");
        }
    }

    #[test]
    fn a_pause_is_counted_once_and_by_phase() {
        let calls = VolumeCalls::default();
        assert!(text(&calls).contains("granary_pod_pause_duration_seconds_count 0"), "the series begins with no pause");
        let [freeze, clone, thaw] = [250, 1000, 500].map(Duration::from_millis);
        calls.observe_pause(PodPause { freeze, clone, thaw });
        let text = text(&calls);
        for line in [
            "granary_pod_pause_duration_seconds_count 1",
            "granary_pod_pause_duration_seconds_sum 1.75",
            r#"granary_pod_pause_duration_seconds_bucket{le="1"} 0"#,
            r#"granary_pod_pause_duration_seconds_bucket{le="2"} 1"#,
            r#"granary_pod_pause_phase_seconds_total{phase="freeze"} 0.25"#,
            r#"granary_pod_pause_phase_seconds_total{phase="clone"} 1"#,
            r#"granary_pod_pause_phase_seconds_total{phase="thaw"} 0.5"#,
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in:\n{text}");
        }
    }
}
