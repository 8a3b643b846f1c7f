//! Metrics and notifications of the calls that change volumes.

use std::time::Instant;

use dir::Ensured;
use prometheus::core::Collector;
use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, Opts};
use tokio::sync::watch;

use crate::Error;

/// From an operation on the log alone to the allocation of a large image, or the removal of millions of files.
const SECONDS: [f64; 10] = [0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0];

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

/// Counts and times these calls, and notifies subscribers of changes.
#[derive(Debug)]
pub struct VolumeCalls {
    operations: IntCounterVec,
    durations: HistogramVec,
    changes: watch::Sender<()>,
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
                    "How long these operations take, also those that fail.",
                )
                .buckets(SECONDS.into()),
                &["operation"],
            )?,
            changes: watch::Sender::default(),
        };
        // A series that begins with its first event has not grown for Prometheus, and an alert on it would not fire.
        for operation in Operation::ALL {
            for result in ["changed", "look", "act"] {
                calls.operations.with_label_values(&[operation.name(), result]);
            }
            calls.durations.with_label_values(&[operation.name()]);
        }
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

    /// Notified after each call that may have changed the reserved space.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    pub fn collectors(&self) -> [Box<dyn Collector>; 2] {
        [Box::new(self.operations.clone()), Box::new(self.durations.clone())]
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

    #[test]
    fn calls_are_counted_by_operation_and_result() {
        let (calls, registry) = (VolumeCalls::default(), Registry::new());
        for collector in calls.collectors() {
            registry.register(collector).unwrap();
        }
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
        let text = TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
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
}
