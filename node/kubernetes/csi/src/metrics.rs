//! How many calls there were, how they ended, how long they took; how many loop devices there are. docs/metrics.md
//! describes each.

use std::time::Instant;

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, Opts, Registry};
use tonic::{Code, Response, Status};
use tracing::warn;

/// A mount takes microseconds; a call that waits for its turn, or for a device that is in use, takes longer.
const SECONDS: [f64; 10] = [0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0];

/// The calls that are counted, by their names in csi.proto.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    GetPluginInfo,
    GetPluginCapabilities,
    Probe,
    NodeGetInfo,
    NodeGetCapabilities,
    NodePublishVolume,
    NodeUnpublishVolume,
    NodeExpandVolume,
    NodeGetVolumeStats,
}

impl Method {
    const ALL: [Self; 9] = [
        Self::GetPluginInfo,
        Self::GetPluginCapabilities,
        Self::Probe,
        Self::NodeGetInfo,
        Self::NodeGetCapabilities,
        Self::NodePublishVolume,
        Self::NodeUnpublishVolume,
        Self::NodeExpandVolume,
        Self::NodeGetVolumeStats,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::GetPluginInfo => "GetPluginInfo",
            Self::GetPluginCapabilities => "GetPluginCapabilities",
            Self::Probe => "Probe",
            Self::NodeGetInfo => "NodeGetInfo",
            Self::NodeGetCapabilities => "NodeGetCapabilities",
            Self::NodePublishVolume => "NodePublishVolume",
            Self::NodeUnpublishVolume => "NodeUnpublishVolume",
            Self::NodeExpandVolume => "NodeExpandVolume",
            Self::NodeGetVolumeStats => "NodeGetVolumeStats",
        }
    }
}

/// What is ordinary, and what has an alert.
const COUNTED_FROM_THE_START: [Code; 2] = [Code::Ok, Code::Internal];

/// Shared by all clones.
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
        // Series that exist from the start: to Prometheus one that begins with its first call has not grown, and the
        // alert would miss that.
        for method in Method::ALL {
            for code in COUNTED_FROM_THE_START {
                metrics.calls.with_label_values(&[method.name(), name(code)]);
            }
            metrics.duration.with_label_values(&[method.name()]);
        }
        Ok(metrics)
    }

    fn collectors(&self) -> [Box<dyn Collector>; 3] {
        [Box::new(self.calls.clone()), Box::new(self.duration.clone()), Box::new(self.revoked.clone())]
    }

    /// Counts a detach that was revoked.
    pub(crate) fn revoked(&self) {
        self.revoked.inc();
    }

    /// Awaits a call, counts it, and gives its error the form that goes over the wire. A call that the client gave up
    /// is not counted.
    pub(crate) async fn observe<T, E: Into<Status>>(
        &self,
        method: Method,
        call: impl Future<Output = Result<T, E>>,
    ) -> Result<Response<T>, Status> {
        let begun = Instant::now();
        let answer = call.await.map_err(Into::into);
        let code = answer.as_ref().err().map_or(Code::Ok, Status::code);
        self.calls.with_label_values(&[method.name(), name(code)]).inc();
        self.duration.with_label_values(&[method.name()]).observe(begun.elapsed().as_secs_f64());
        if let Err(status) = &answer {
            // kubelet tries again.
            warn!(method = method.name(), code = name(code), reason = status.message(), "call refused");
        }
        answer.map(Response::new)
    }
}

/// The loop devices of the node's volumes, counted when somebody asks.
pub(crate) struct LoopDevices<C> {
    /// `None` if the kernel does not tell.
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

/// The label of a code.
const fn name(code: Code) -> &'static str {
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
    fn every_metric_is_described_and_every_description_has_its_metric() {
        let devices: Box<dyn Collector> = Box::new(LoopDevices::new(|| Some(0)).unwrap());
        docs::assert_described("CSI plugin", Metrics::new().unwrap().collectors().into_iter().chain([devices]));
    }

    #[test]
    fn what_an_alert_asks_for_is_counted_from_the_start() {
        docs::assert_counted_from_the_start(Metrics::new().unwrap().collectors());
    }

    #[tokio::test]
    async fn a_call_is_counted_by_its_code() {
        let registry = Registry::new();
        let metrics = Metrics::register(&registry).unwrap();
        let good = async { Ok::<_, Status>(()) };
        metrics.observe(Method::Probe, good).await.unwrap();
        let bad = async { Err::<(), _>(Status::not_found("no such volume")) };
        metrics.observe(Method::NodePublishVolume, bad).await.unwrap_err();
        let text = text(&registry);
        for line in [
            r#"granary_csi_calls_total{code="OK",method="Probe"} 1"#,
            r#"granary_csi_calls_total{code="NOT_FOUND",method="NodePublishVolume"} 1"#,
            r#"granary_csi_calls_total{code="OK",method="NodePublishVolume"} 0"#,
            r#"granary_csi_call_duration_seconds_count{method="NodePublishVolume"} 1"#,
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in:\n{text}");
        }
    }

    #[test]
    fn loop_devices_are_counted_at_every_scrape_and_left_out_if_nobody_can_tell() {
        for (found, line) in [(Some(2), "granary_loop_devices 2\n"), (None, "")] {
            let registry = Registry::new();
            registry.register(Box::new(LoopDevices::new(move || found).unwrap())).unwrap();
            assert!(text(&registry).ends_with(line));
            assert_eq!(text(&registry).is_empty(), found.is_none());
        }
    }
}
