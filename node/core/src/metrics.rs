//! The metrics of the node's program. docs/metrics.md describes each metric.

use std::time::Duration;

use clock::ClockState;
use programs::Expiry;
use prometheus::core::Collector;
use prometheus::{Gauge, GaugeVec, IntCounter, IntCounterVec, IntGauge, Opts};

use crate::kernel::Kernel;
use crate::system;

/// The node's own metrics at one point in time.
pub fn collectors(
    clock: &ClockState,
    certificates: &[Expiry],
    out_of_memory: &[(&str, u64)],
) -> Result<[Box<dyn Collector>; 7], prometheus::Error> {
    let kernel_built =
        IntGauge::new("granary_kernel_built_timestamp_seconds", "Build date of the running kernel; 0 if unknown.")?;
    if let Some(built) = Kernel::running().ok().and_then(|kernel| kernel.built()) {
        kernel_built.set(built.unix_timestamp());
    }
    let memory = IntGauge::new(
        "granary_memory_pss_bytes",
        "Memory of the node's own program, with its share of shared pages (PSS); 0 if unknown.",
    )?;
    memory.set(system::own_memory().and_then(|bytes| bytes.get().try_into().ok()).unwrap_or_default());
    let synchronized = IntGauge::new(
        "granary_clock_synchronized",
        "Whether the last attempt to compare the clock with a time server succeeded: 0 or 1.",
    )?;
    synchronized.set((clock.last.is_some() && clock.problem.is_none()).into());
    let offset = Gauge::new(
        "granary_clock_offset_seconds",
        "Correction that the clock needed at its last comparison with a time server: positive if it was behind; 0 \
         before the first one, and after a jump until the next one.",
    )?;
    if let Some(last) = clock.last {
        let size = Duration::from_nanos(last.sample.offset.unsigned_abs()).as_secs_f64();
        offset.set(if last.sample.offset < 0 { -size } else { size });
    }
    let jumps = IntCounter::new(
        "granary_clock_jumps_total",
        "Detected clock jumps: the clock or timers stopped for more than a second, because the machine was restored, \
         migrated, paused or suspended.",
    )?;
    jumps.inc_by(clock.jumps.into());
    let expiry = GaugeVec::new(
        Opts::new("granary_certificate_expiry_timestamp_seconds", "When a certificate of the node expires."),
        &["certificate"],
    )?;
    for certificate in certificates {
        expiry.with_label_values(&[certificate.name]).set(certificate.at.unix_timestamp() as f64);
    }
    let kills = IntCounterVec::new(
        Opts::new(
            "granary_program_oom_kills_total",
            "Kills of a program of the node because it exceeded its memory limit.",
        ),
        &["program"],
    )?;
    for &(program, count) in out_of_memory {
        kills.with_label_values(&[program]).inc_by(count);
    }
    Ok([
        Box::new(kernel_built),
        Box::new(memory),
        Box::new(synchronized),
        Box::new(offset),
        Box::new(jumps),
        Box::new(expiry),
        Box::new(kills),
    ])
}

#[cfg(test)]
mod tests {
    use prometheus::{Registry, TextEncoder};

    use super::*;

    fn example() -> [Box<dyn Collector>; 7] {
        let expiry = Expiry { name: "admin", at: time::OffsetDateTime::UNIX_EPOCH };
        collectors(&ClockState { jumps: 1, ..ClockState::default() }, &[expiry], &[("etcd", 2)]).unwrap()
    }

    #[test]
    fn metrics_and_their_documentation_match() {
        docs::assert_described("Node", example());
    }

    #[test]
    fn a_scrape_shows_the_current_state() {
        let registry = Registry::new();
        example().into_iter().for_each(|collector| registry.register(collector).unwrap());
        let found = TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
        for line in [
            r#"granary_certificate_expiry_timestamp_seconds{certificate="admin"} 0"#,
            "granary_clock_synchronized 0",
            "granary_clock_jumps_total 1",
            r#"granary_program_oom_kills_total{program="etcd"} 2"#,
        ] {
            assert!(found.lines().any(|found| found == line), "{line} in:\n{found}");
        }
    }
}
