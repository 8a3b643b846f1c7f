//! [`PauseReport`]: duration for which a snapshot of a filesystem volume with many files stops the pods.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::statistics::Spread;
use crate::table::{Table, number, spread, verdict};

/// Files that pods changed between the last pass before the pause and the pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Changed {
    /// One file, which the pod writes continuously.
    One,
    /// All files. The new data are on the disk. The goal has no such case, so this one has no limit.
    All,
}

/// One snapshot of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PauseSample {
    pub changed: Changed,
    /// Number of the run, starting at 1.
    pub run: u32,
    pub files: u32,
    /// Size of each file in bytes.
    pub size: u64,
    /// Duration of the passes while the pod runs.
    pub passes_us: u64,
    /// Duration from the freeze request until no process runs.
    pub freeze_us: u64,
    /// Duration of the last pass.
    pub clone_us: u64,
    pub thaw_us: u64,
    /// Duration of a recursive copy of the same files with `read` and `write`, including `syncfs`.
    pub copy_us: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PauseReport {
    pub runs: u32,
    pub files: u32,
    pub figures: Vec<PauseFigure>,
    /// Ratios above the limit.
    pub violations: Vec<String>,
}

/// Figures in milliseconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PauseFigure {
    pub changed: Changed,
    pub size: u64,
    pub passes: Spread,
    pub freeze: Spread,
    pub clone: Spread,
    pub thaw: Spread,
    pub pause: Spread,
    /// Ratio of the pause to a copy of the files in the same run.
    pub to_copy: Option<Spread>,
    /// Ratio of the pause to the pause with the smallest files in the same run.
    pub to_small: Option<Spread>,
}

/// Limit of the ratio to a copy. The aim is a tenth.
const COPY: f64 = 0.333;
/// Limit of the ratio to the pause with small files.
const SMALL: f64 = 1.2;

impl Changed {
    pub const ALL: [Self; 2] = [Self::One, Self::All];

    const fn title(self) -> &'static str {
        match self {
            Self::One => "one",
            Self::All => "all: worst case, no limit",
        }
    }
}

impl PauseSample {
    const fn pause(&self) -> u64 {
        self.freeze_us + self.clone_us + self.thaw_us
    }
}

impl PauseReport {
    pub fn new(samples: &[PauseSample]) -> Self {
        let mut sizes: Vec<_> = samples.iter().map(|sample| sample.size).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let kinds = sizes.iter().flat_map(|size| Changed::ALL.map(|changed| (*size, changed)));
        let figures: Vec<_> =
            kinds.filter_map(|(size, changed)| PauseFigure::of(samples, changed, size, sizes[0])).collect();
        Self {
            runs: samples.iter().map(|sample| sample.run).max().unwrap_or_default(),
            files: samples.iter().map(|sample| sample.files).max().unwrap_or_default(),
            violations: figures.iter().flat_map(PauseFigure::violations).collect(),
            figures,
        }
    }
}

impl PauseFigure {
    fn of(samples: &[PauseSample], changed: Changed, size: u64, smallest: u64) -> Option<Self> {
        let of = |size| samples.iter().filter(move |sample| (sample.changed, sample.size) == (changed, size));
        let milliseconds = |value: fn(&PauseSample) -> u64| Spread::of(of(size).map(value), 1000);
        let per_mille = |part: u64, whole: u64| part * 1000 / whole.max(1);
        let to_copy = of(size).filter_map(|sample| Some(per_mille(sample.pause(), sample.copy_us?)));
        let to_small = of(size).filter(|sample| sample.size != smallest).filter_map(|sample| {
            let small = of(smallest).find(|small| small.run == sample.run)?;
            Some(per_mille(sample.pause(), small.pause()))
        });
        Some(Self {
            changed,
            size,
            passes: milliseconds(|sample| sample.passes_us)?,
            freeze: milliseconds(|sample| sample.freeze_us)?,
            clone: milliseconds(|sample| sample.clone_us)?,
            thaw: milliseconds(|sample| sample.thaw_us)?,
            pause: milliseconds(PauseSample::pause)?,
            to_copy: Spread::of(to_copy, 1000),
            to_small: Spread::of(to_small, 1000),
        })
    }

    /// Ratios, their limits, and the baselines.
    fn ratios(&self) -> [(Option<Spread>, Option<f64>, &'static str); 2] {
        let limit = |limit| (self.changed == Changed::One).then_some(limit);
        [(self.to_copy, limit(COPY), "a copy of the files"), (self.to_small, limit(SMALL), "that with small files")]
    }

    fn violations(&self) -> Vec<String> {
        let (kib, changed) = (self.size >> 10, self.changed.title());
        let missed = self.ratios().into_iter().filter_map(|(found, limit, other)| {
            let (found, limit) = (found?.median, limit?);
            (found > limit).then(|| {
                format!(
                    "files of {kib} KiB, {changed} changed: the pause is {found:.2} of {other}, the limit is {limit}"
                )
            })
        });
        missed.collect()
    }
}

impl fmt::Display for PauseReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "Snapshots of {} files in milliseconds; medians of {} interleaved runs (min–max where they differ)\n",
            self.files, self.runs
        )?;
        let heads = ["files, changed", "passes before", "freeze", "clone", "thaw", "pause"].map(String::from);
        let title = |figure: &PauseFigure| format!("{} KiB, {}", figure.size >> 10, figure.changed.title());
        let rows = self.figures.iter().map(|figure| {
            let phases = [figure.passes, figure.freeze, figure.clone, figure.thaw, figure.pause];
            [vec![title(figure)], phases.map(|phase| spread(&phase)).into()].concat()
        });
        writeln!(f, "{}", Table::new(heads.into(), rows.collect()))?;
        let heads = ["the pause, compared with", "a copy", "limit", "small files", "limit"].map(String::from);
        let none = || "–".to_owned();
        let rows = self.figures.iter().map(|figure| {
            let cells = figure.ratios().map(|(found, limit, _)| {
                let limit = limit.filter(|_| found.is_some()).map(|limit| format!("≤ {}", number(limit)));
                vec![found.as_ref().map_or_else(none, spread), limit.unwrap_or_else(none)]
            });
            [vec![title(figure)], cells.concat()].concat()
        });
        writeln!(f, "\n{}", Table::new(heads.into(), rows.collect()))?;
        verdict(f, "limits", self.violations.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(small: u64, large: u64) -> Vec<PauseSample> {
        let sample = |run: u32, changed, (size, clone): (u64, u64)| PauseSample {
            changed,
            run,
            files: 10_000,
            size,
            passes_us: 9_000_000,
            freeze_us: 10_000 * u64::from(run),
            clone_us: clone * 1000 * u64::from(run),
            thaw_us: 0,
            copy_us: (size == 8192).then_some(1_000_000 * u64::from(run)),
        };
        let sizes = [(8192, small), (1 << 20, large)];
        let kinds = Changed::ALL.into_iter().flat_map(move |changed| sizes.map(|size| (changed, size)));
        kinds.flat_map(|(changed, size)| (1..=3).map(move |run| sample(run, changed, size))).collect()
    }

    #[test]
    fn the_pause_is_the_sum_of_its_phases() {
        let report = PauseReport::new(&samples(190, 190));
        assert_eq!((report.figures.len(), report.violations.len()), (4, 0));
        let words = report.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains("8 KiB, one 9000 20 (10–30) 380 (190–570) 0 400 (200–600)"), "{words}");
        assert!(words.contains("8 KiB, one 0.2 ≤ 0.333 – –"), "{words}");
        assert!(words.contains("1024 KiB, one – – 1 ≤ 1.2"), "{words}");
        assert!(words.contains("8 KiB, all: worst case, no limit 0.2 – – –"), "{words}");
    }

    #[test]
    fn the_worst_case_has_no_limit() {
        let report = PauseReport::new(&samples(340, 990));
        let missed = [
            "files of 8 KiB, one changed: the pause is 0.35 of a copy of the files, the limit is 0.333",
            "files of 1024 KiB, one changed: the pause is 2.86 of that with small files, the limit is 1.2",
        ];
        assert_eq!(report.violations, missed);
    }

    #[test]
    fn a_report_without_samples_is_empty() {
        let report = PauseReport::new(&[]);
        assert!(report.figures.is_empty() && report.violations.is_empty());
    }
}
