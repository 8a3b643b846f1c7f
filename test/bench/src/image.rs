//! [`ImageReport`]: size of the image, stages of its boot, and memory of the node's program.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use crate::statistics::Spread;
use crate::table::{Table, number, verdict};

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Part {
    pub name: String,
    /// Size on a disk, in bytes.
    pub bytes: u64,
}

/// A stage of a boot, and the time at which it became ready.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stage {
    pub name: String,
    /// Milliseconds since QEMU started the guest.
    pub at_ms: u64,
    /// CPU time of QEMU up to this stage, in milliseconds.
    pub cpu_ms: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BootSample {
    /// Stages in the order in which they became ready.
    pub stages: Vec<Stage>,
    /// Memory of the node's program (PSS) in bytes, by the number of volumes.
    pub memory: BTreeMap<u32, u64>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ImageReport {
    /// Accelerator of QEMU. Times of an emulated guest depend on the emulation.
    pub accelerator: String,
    pub boots: usize,
    pub parts: Vec<Part>,
    /// Stages in the order in which they became ready in the first boot.
    pub stages: Vec<StageFigure>,
    pub memory: Vec<MemoryFigure>,
    /// Figures that exceed a limit.
    pub violations: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StageFigure {
    pub name: String,
    /// Seconds since QEMU started the guest.
    pub seconds: Spread,
    /// CPU seconds of QEMU up to this stage. They depend less on the load of the machine.
    pub cpu_seconds: Spread,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MemoryFigure {
    pub volumes: u32,
    pub bytes: Spread,
    /// Limit of the median, in bytes.
    pub at_most: Option<f64>,
}

/// The goal is in decimal units.
const MB: f64 = 1_000_000.0;

const MEMORY_LIMIT: f64 = 25.0 * MB;

/// Largest number of volumes for which the limit applies.
const LIMITED_VOLUMES: u32 = 1000;

impl ImageReport {
    /// Evaluates the boots. A stage that is missing in one of them is left out.
    pub fn new(accelerator: String, parts: Vec<Part>, boots: &[BootSample]) -> Self {
        let order = boots.first().map(|boot| boot.stages.as_slice()).unwrap_or_default();
        let stages = order.iter().filter_map(|Stage { name, .. }| {
            let stages: Option<Vec<&Stage>> = boots.iter().map(|boot| boot.stage(name)).collect();
            let stages = stages?;
            let seconds = Spread::of(stages.iter().map(|stage| stage.at_ms), 1000)?;
            let cpu_seconds = Spread::of(stages.iter().map(|stage| stage.cpu_ms), 1000)?;
            Some(StageFigure { name: name.clone(), seconds, cpu_seconds })
        });
        let numbers: Vec<u32> = boots.first().map(|boot| boot.memory.keys().copied().collect()).unwrap_or_default();
        let memory = numbers.into_iter().filter_map(|volumes| {
            let sizes = boots.iter().filter_map(|boot| boot.memory.get(&volumes).copied());
            let at_most = (volumes <= LIMITED_VOLUMES).then_some(MEMORY_LIMIT);
            Some(MemoryFigure { volumes, bytes: Spread::of(sizes, 1)?, at_most })
        });
        let memory: Vec<_> = memory.collect();
        let violations = memory.iter().filter_map(MemoryFigure::violation).collect();
        Self { accelerator, boots: boots.len(), parts, stages: stages.collect(), memory, violations }
    }
}

impl BootSample {
    fn stage(&self, name: &str) -> Option<&Stage> {
        self.stages.iter().find(|stage| stage.name == name)
    }
}

impl MemoryFigure {
    fn violation(&self) -> Option<String> {
        let limit = self.at_most.filter(|limit| self.bytes.median > *limit)?;
        let found = self.bytes.median / MB;
        Some(format!("with {} volumes: {found:.1} MB of memory, the limit is {}", self.volumes, number(limit / MB)))
    }
}

impl fmt::Display for ImageReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "The image, and {} boots of it with {}: medians (min–max where they differ)",
            self.boots, self.accelerator
        )?;
        // Only tables with at least three columns align numbers to the right.
        let parts = self.parts.iter().map(|part| vec![part.name.clone(), part.bytes.to_string(), String::new()]);
        writeln!(f, "\n{}", Table::new(vec!["part".into(), "bytes".into(), String::new()], parts.collect()))?;
        let figures = |stage: &StageFigure| [stage.seconds, stage.cpu_seconds].map(|spread| shown(spread, 1.0));
        let stages =
            self.stages.iter().map(|stage| [vec![stage.name.clone()], figures(stage).into()].concat()).collect();
        writeln!(f, "\n{}", Table::new(["ready", "seconds", "CPU seconds"].map(str::to_owned).into(), stages))?;
        let memory = self.memory.iter().map(|at| {
            let limit = at.at_most.map_or_else(|| "–".to_owned(), |limit| format!("≤ {}", number(limit / MB)));
            vec![format!("with {} volumes", at.volumes), shown(at.bytes, MB), limit]
        });
        let heads = ["memory of the node's program", "MB", "limit"].map(str::to_owned);
        writeln!(f, "\n{}", Table::new(heads.into(), memory.collect()))?;
        verdict(f, "limits", self.violations.len())
    }
}

/// Formats a spread with one decimal, which matches the precision of a boot.
fn shown(spread: Spread, unit: f64) -> String {
    let rounded = |value: f64| number((value / unit * 10.0).round() / 10.0);
    let (median, min, max) = (rounded(spread.median), rounded(spread.min), rounded(spread.max));
    if min == max { median } else { format!("{median} ({min}–{max})") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::VERDICT;

    fn stage(name: &str, at_ms: u64) -> Stage {
        Stage { name: name.to_owned(), at_ms, cpu_ms: 2 * at_ms }
    }

    fn boot(ready: u64, pss: u64) -> BootSample {
        BootSample {
            stages: vec![stage("etcd", 1000), stage("node Ready", ready)],
            memory: BTreeMap::from([(0, pss), (1000, 2 * pss)]),
        }
    }

    #[test]
    fn boots_are_summarized_by_stage() {
        let report = ImageReport::new(
            "emulation".into(),
            vec![Part { name: "kernel".into(), bytes: 4096 }],
            &[boot(30_000, 10_000_000), boot(40_000, 10_000_000), boot(32_000, 10_000_000)],
        );
        assert_eq!(report.stages[0].name, "etcd");
        assert!((report.stages[1].seconds.median - 32.0).abs() < f64::EPSILON);
        assert_eq!(report.memory.iter().map(|at| at.volumes).collect::<Vec<_>>(), [0, 1000]);
        let words = report.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
        for row in ["kernel 4096", "etcd 1 2", "node Ready 32 (30–40) 64 (60–80)", "with 1000 volumes 20 ≤ 25"] {
            assert!(words.contains(row), "{row:?} in\n{words}");
        }
    }

    #[test]
    fn the_memory_with_a_thousand_volumes_has_a_limit() {
        let report = |pss| ImageReport::new(String::new(), vec![], &[boot(1, pss)]);
        let within = report(12_500_000);
        assert!(within.violations.is_empty(), "{within}");
        assert!(within.to_string().contains(VERDICT), "{within}");
        let above = report(13_000_000);
        assert_eq!(above.violations, ["with 1000 volumes: 26.0 MB of memory, the limit is 25"]);
        assert!(!above.to_string().contains(VERDICT), "{above}");
    }

    #[test]
    fn the_memory_with_more_volumes_has_no_limit() {
        let boot = BootSample { memory: BTreeMap::from([(2000, 1 << 30)]), ..BootSample::default() };
        let report = ImageReport::new(String::new(), vec![], &[boot]);
        assert_eq!((report.memory[0].at_most, report.violations.len()), (None, 0));
    }

    #[test]
    fn a_stage_that_one_boot_lacks_is_left_out() {
        let mut other = boot(1, 1);
        other.stages.remove(0);
        let report = ImageReport::new(String::new(), vec![], &[boot(1, 1), other]);
        assert_eq!(report.stages.iter().map(|stage| stage.name.as_str()).collect::<Vec<_>>(), ["node Ready"]);
    }

    #[test]
    fn without_boots_there_are_no_figures() {
        let report = ImageReport::new(String::new(), vec![], &[]);
        assert!(report.stages.is_empty() && report.memory.is_empty());
    }
}
