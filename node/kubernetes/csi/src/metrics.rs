//! How many calls there were, how they ended, how long they took.

use std::time::Instant;

use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry};
use tonic::{Code, Response, Status};
use tracing::warn;

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

/// Shared by all clones.
#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    calls: IntCounterVec,
    duration: HistogramVec,
}

impl Metrics {
    pub(crate) fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let calls = Opts::new("granary_csi_calls_total", "Calls of the CSI plugin by method and gRPC code.");
        let duration = HistogramOpts::new("granary_csi_call_duration_seconds", "Duration of calls of the CSI plugin.");
        let metrics = Self {
            calls: IntCounterVec::new(calls, &["method", "code"])?,
            duration: HistogramVec::new(duration, &["method"])?,
        };
        registry.register(Box::new(metrics.calls.clone()))?;
        registry.register(Box::new(metrics.duration.clone()))?;
        Ok(metrics)
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
