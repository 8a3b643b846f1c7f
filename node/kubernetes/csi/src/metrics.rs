//! Calls by method and code, their duration, and loop devices. docs/metrics.md describes each metric.

use std::time::Duration;

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, Opts, Registry};
use proto::csi::{METHODS, identity_server, node_server};
use tonic::Code;

/// Histogram buckets in seconds. A mount takes microseconds; a call that waits for another call or for a busy device
/// takes longer.
const SECONDS: [f64; 10] = [0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0];

/// Codes whose series exist from the start: the usual code, and the one with an alert.
const COUNTED_FROM_THE_START: [Code; 2] = [Code::Ok, Code::Internal];

#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    calls: IntCounterVec,
    duration: HistogramVec,
    revoked: IntCounter,
}

impl Metrics {
    pub(crate) fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let metrics = Self::new()?;
        for collector in metrics.collectors() {
            registry.register(collector)?;
        }
        Ok(metrics)
    }

    fn new() -> Result<Self, prometheus::Error> {
        let calls = Opts::new("granary_csi_calls_total", "Calls of the CSI plugin by method and gRPC code.");
        let duration = HistogramOpts::new("granary_csi_call_duration_seconds", "Duration of calls of the CSI plugin.");
        let metrics = Self {
            calls: IntCounterVec::new(calls, &["method", "code"])?,
            duration: HistogramVec::new(duration.buckets(SECONDS.into()), &["method"])?,
            revoked: IntCounter::new(
                "granary_loop_detaches_revoked_total",
                "Detaches of published loop devices by other processes, such as pods, that the plugin revoked.",
            )?,
        };
        for service in [identity_server::SERVICE_NAME, node_server::SERVICE_NAME] {
            metrics.begin(service);
        }
        Ok(metrics)
    }

    /// Creates the series of a service before its first call. A series that begins with the first call shows no
    /// increase, so the alert would miss that call.
    pub(crate) fn begin(&self, service: &str) {
        for method in METHODS.iter().filter_map(|path| method_of(path, service)) {
            for code in COUNTED_FROM_THE_START {
                self.calls.with_label_values(&[method, code_name(code)]);
            }
            self.duration.with_label_values(&[method]);
        }
    }

    fn collectors(&self) -> [Box<dyn Collector>; 3] {
        [Box::new(self.calls.clone()), Box::new(self.duration.clone()), Box::new(self.revoked.clone())]
    }

    pub(crate) fn revoked(&self) {
        self.revoked.inc();
    }

    /// Counts a call of a method of `csi.proto`. Other paths are not labels: clients choose them.
    pub(crate) fn observe(&self, path: &str, method: &str, code: Code, duration: Duration) {
        if METHODS.contains(&path) {
            self.calls.with_label_values(&[method, code_name(code)]).inc();
            self.duration.with_label_values(&[method]).observe(duration.as_secs_f64());
        }
    }
}

/// Name of the method at `path` if it belongs to the service.
fn method_of(path: &'static str, service: &str) -> Option<&'static str> {
    path.strip_prefix('/')?.strip_prefix(service)?.strip_prefix('/')
}

/// The loop devices of the node's volumes, counted at each scrape.
pub(crate) struct LoopDevices<C> {
    /// Returns `None` if the devices cannot be listed.
    count: C,
    attached: IntGauge,
}

impl<C: Fn() -> Option<usize> + Send + Sync> LoopDevices<C> {
    pub(crate) fn new(count: C) -> Result<Self, prometheus::Error> {
        let attached = IntGauge::new(
            "granary_loop_devices",
            "Loop devices attached to images of volumes; 0 if no pod uses a block volume.",
        )?;
        Ok(Self { count, attached })
    }
}

impl<C: Fn() -> Option<usize> + Send + Sync> Collector for LoopDevices<C> {
    fn desc(&self) -> Vec<&Desc> {
        self.attached.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let Some(found) = (self.count)() else { return Vec::new() };
        self.attached.set(i64::try_from(found).unwrap_or(i64::MAX));
        self.attached.collect()
    }
}

pub(crate) const fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

#[cfg(test)]
mod tests {
    use prometheus::TextEncoder;

    use super::*;

    fn text(registry: &Registry) -> String {
        TextEncoder::new().encode_to_string(&registry.gather()).expect("text")
    }

    #[test]
    fn the_docs_describe_all_metrics() {
        let devices: Box<dyn Collector> = Box::new(LoopDevices::new(|| Some(0)).unwrap());
        docs::assert_described("CSI plugin", Metrics::new().unwrap().collectors().into_iter().chain([devices]));
    }

    #[test]
    fn series_of_alerts_exist_from_the_start() {
        docs::assert_counted_from_the_start(Metrics::new().unwrap().collectors());
    }

    #[test]
    fn loop_devices_are_counted_at_each_scrape() {
        for (found, line) in [(Some(2), "granary_loop_devices 2\n"), (None, "")] {
            let registry = Registry::new();
            registry.register(Box::new(LoopDevices::new(move || found).unwrap())).unwrap();
            assert!(text(&registry).ends_with(line));
            assert_eq!(text(&registry).is_empty(), found.is_none());
        }
    }
}
