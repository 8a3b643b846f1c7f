//! The metrics of the node's program. docs/metrics.md describes each.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use clock::ClockState;
use programs::Expiry;
use prometheus::core::Collector;
use prometheus::proto::MetricFamily;
use prometheus::{Gauge, GaugeVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry};
use status::Service;

use crate::kernel::Kernel;
use crate::system;

/// The node's own metrics, which are set at every scrape.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    gauges: Mutex<Gauges>,
}

#[derive(Debug)]
struct Gauges {
    kernel_built: IntGauge,
    memory: IntGauge,
    clock_synchronized: IntGauge,
    clock_offset: Gauge,
    clock_jumps: IntCounter,
    certificates: GaugeVec,
    ready: IntGaugeVec,
    restarts: IntGaugeVec,
    out_of_memory: IntCounterVec,
}

impl Metrics {
    pub fn register(registry: Registry) -> Result<Self, prometheus::Error> {
        let gauges = Gauges::new()?;
        for collector in gauges.collectors() {
            registry.register(collector)?;
        }
        if let Some(built) = Kernel::running().ok().and_then(|kernel| kernel.built()) {
            gauges.kernel_built.set(built.unix_timestamp());
        }
        Ok(Self { registry, gauges: Mutex::new(gauges) })
    }

    /// All metrics of the registry, with these values of the node's own.
    pub fn gather(
        &self,
        services: &[Service],
        clock: &ClockState,
        certificates: &[Expiry],
        out_of_memory: &[(&str, u64)],
    ) -> Vec<MetricFamily> {
        let gauges = self.gauges.lock().unwrap_or_else(PoisonError::into_inner);
        gauges.set(services, clock, certificates, out_of_memory);
        self.registry.gather()
    }
}

impl Gauges {
    fn new() -> Result<Self, prometheus::Error> {
        let services = |name: &str, help: &str| IntGaugeVec::new(Opts::new(name, help), &["service"]);
        Ok(Self {
            kernel_built: IntGauge::new(
                "granary_kernel_built_timestamp_seconds",
                "Build date of the running kernel; 0 if unknown.",
            )?,
            memory: IntGauge::new(
                "granary_memory_pss_bytes",
                "Memory of the node's own program, with its share of shared pages (PSS); 0 if unknown.",
            )?,
            clock_synchronized: IntGauge::new(
                "granary_clock_synchronized",
                "Whether the last attempt to compare the clock with a time server succeeded: 0 or 1.",
            )?,
            clock_offset: Gauge::new(
                "granary_clock_offset_seconds",
                "What the clock lacked at its last comparison with a time server, before it was corrected.",
            )?,
            clock_jumps: IntCounter::new(
                "granary_clock_jumps_total",
                "How often time passed unseen by the clock or by timers: the machine was restored, migrated, paused or suspended.",
            )?,
            certificates: GaugeVec::new(
                Opts::new("granary_certificate_expiry_timestamp_seconds", "When a certificate of the node expires."),
                &["certificate"],
            )?,
            ready: services("granary_service_ready", "Whether a service does its work, or has done it: 0 or 1.")?,
            restarts: services(
                "granary_service_restarts",
                "How often a service was started again since the service that it belongs to was started.",
            )?,
            out_of_memory: IntCounterVec::new(
                Opts::new(
                    "granary_program_oom_kills_total",
                    "How often a program of the node was killed since it took more memory than it may.",
                ),
                &["program"],
            )?,
        })
    }

    fn collectors(&self) -> [Box<dyn Collector>; 9] {
        [
            Box::new(self.kernel_built.clone()),
            Box::new(self.memory.clone()),
            Box::new(self.clock_synchronized.clone()),
            Box::new(self.clock_offset.clone()),
            Box::new(self.clock_jumps.clone()),
            Box::new(self.certificates.clone()),
            Box::new(self.ready.clone()),
            Box::new(self.restarts.clone()),
            Box::new(self.out_of_memory.clone()),
        ]
    }

    fn set(&self, services: &[Service], clock: &ClockState, certificates: &[Expiry], out_of_memory: &[(&str, u64)]) {
        self.memory.set(system::own_memory().and_then(|bytes| bytes.get().try_into().ok()).unwrap_or_default());
        self.ready.reset();
        self.restarts.reset();
        self.out_of_memory.reset();
        for &(program, count) in out_of_memory {
            self.out_of_memory.with_label_values(&[program]).inc_by(count);
        }
        for service in services {
            self.ready.with_label_values(&[&service.path]).set(service.is_ready().into());
            self.restarts.with_label_values(&[&service.path]).set(service.restarts.into());
        }
        self.clock_synchronized.set((clock.last.is_some() && clock.problem.is_none()).into());
        if let Some(last) = clock.last {
            let size = Duration::from_nanos(last.sample.offset.unsigned_abs()).as_secs_f64();
            self.clock_offset.set(if last.sample.offset < 0 { -size } else { size });
        }
        self.clock_jumps.reset();
        self.clock_jumps.inc_by(clock.jumps.into());
        for expiry in certificates {
            self.certificates.with_label_values(&[expiry.name]).set(expiry.at.unix_timestamp() as f64);
        }
    }
}

#[cfg(test)]
mod tests {
    use prometheus::TextEncoder;
    use supervisor::State as Life;

    use super::*;

    fn services() -> Vec<Service> {
        let service = |path: &str, state, restarts| Service {
            path: path.to_owned(),
            name: path.to_owned(),
            depth: 0,
            state,
            since: Duration::ZERO,
            restarts,
            last_failure: None,
        };
        vec![service("granary", Life::Healthy, 0), service("granary.etcd", Life::Failed, 3)]
    }

    const EXPIRY: Expiry = Expiry { name: "admin", at: time::OffsetDateTime::UNIX_EPOCH };

    #[test]
    fn every_metric_is_described_and_every_description_has_its_metric() {
        let gauges = Gauges::new().unwrap();
        gauges.set(&services(), &ClockState::default(), &[EXPIRY], &[("etcd", 1)]);
        docs::assert_described("Node", gauges.collectors());
    }

    #[test]
    fn a_scrape_shows_the_current_state() {
        let metrics = Metrics::register(Registry::new()).unwrap();
        let text = |services: &[Service]| {
            let clock = ClockState { jumps: 1, ..ClockState::default() };
            let families = metrics.gather(services, &clock, &[EXPIRY], &[("etcd", 2)]);
            TextEncoder::new().encode_to_string(&families).unwrap()
        };
        // Counted by the kernel, and not once more with each scrape.
        text(&services());
        let found = text(&services());
        for line in [
            r#"granary_service_ready{service="granary"} 1"#,
            r#"granary_service_ready{service="granary.etcd"} 0"#,
            r#"granary_service_restarts{service="granary.etcd"} 3"#,
            r#"granary_certificate_expiry_timestamp_seconds{certificate="admin"} 0"#,
            "granary_clock_synchronized 0",
            "granary_clock_jumps_total 1",
            r#"granary_program_oom_kills_total{program="etcd"} 2"#,
        ] {
            assert!(found.lines().any(|found| found == line), "{line} in:\n{found}");
        }
        assert!(!text(&services()[..1]).contains("granary.etcd"), "a service that is gone has no series");
    }
}
