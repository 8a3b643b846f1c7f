//! [`IoReport`]: reads and writes of a loop device, of its backing file, and of a disk.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::statistics::Spread;
use crate::table::{Table, number, spread, verdict};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Target {
    /// A disk without a file system.
    Disk,
    /// A file on XFS.
    File,
    /// A loop device with direct I/O on this file.
    Loop,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Access {
    Read,
    Write,
}

/// Accesses to blocks of 4 KiB at random offsets, with `O_DIRECT`, one at a time in each thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IoSample {
    pub target: Target,
    pub access: Access,
    pub threads: u32,
    /// Number of the run, starting at 1.
    pub run: u32,
    pub operations: u64,
    pub elapsed_us: u64,
    pub median_ns: u64,
    /// 99th percentile.
    pub high_ns: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct IoReport {
    pub runs: u32,
    pub figures: Vec<IoFigure>,
    pub ratios: Vec<IoRatio>,
    /// Ratios below the limit.
    pub violations: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct IoFigure {
    pub target: Target,
    pub access: Access,
    pub threads: u32,
    /// Operations per second.
    pub rate: Spread,
    /// Microseconds, like `high`.
    pub median: Spread,
    pub high: Spread,
}

/// Ratios of operations in the same time, of the same run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct IoRatio {
    pub access: Access,
    pub threads: u32,
    pub loop_to_file: Spread,
    /// `None` if no disk was measured.
    pub file_to_disk: Option<Spread>,
}

const AT_LEAST: f64 = 0.95;

impl Target {
    pub const ALL: [Self; 3] = [Self::Disk, Self::File, Self::Loop];

    const fn title(self) -> &'static str {
        match self {
            Self::Disk => "disk",
            Self::File => "file on XFS",
            Self::Loop => "loop device on the file",
        }
    }
}

impl Access {
    pub const ALL: [Self; 2] = [Self::Read, Self::Write];

    const fn title(self) -> &'static str {
        match self {
            Self::Read => "reads",
            Self::Write => "writes",
        }
    }
}

impl IoSample {
    fn rate(&self) -> u64 {
        self.operations * 1_000_000 / self.elapsed_us.max(1)
    }
}

impl IoReport {
    pub fn new(samples: &[IoSample]) -> Self {
        let mut kinds: Vec<_> = samples.iter().map(|sample| (sample.access, sample.threads)).collect();
        kinds.sort_by_key(|(access, threads)| (access.title(), *threads));
        kinds.dedup();
        let figure = |target, (access, threads)| {
            let of: Vec<_> = of(samples, target, access, threads).collect();
            let spread = |value: fn(&IoSample) -> u64, unit| Spread::of(of.iter().map(|sample| value(sample)), unit);
            let rate = spread(IoSample::rate, 1)?;
            let (median, high) = (spread(|sample| sample.median_ns, 1000)?, spread(|sample| sample.high_ns, 1000)?);
            Some(IoFigure { target, access, threads, rate, median, high })
        };
        let figures = kinds.iter().flat_map(|kind| Target::ALL.map(|target| figure(target, *kind))).flatten().collect();
        let ratios: Vec<_> = kinds.iter().filter_map(|kind| IoRatio::of(samples, *kind)).collect();
        let violations = ratios.iter().filter_map(IoRatio::violation).collect();
        let runs = samples.iter().map(|sample| sample.run).max().unwrap_or_default();
        Self { runs, figures, ratios, violations }
    }
}

fn of(samples: &[IoSample], target: Target, access: Access, threads: u32) -> impl Iterator<Item = &IoSample> {
    samples.iter().filter(move |sample| (sample.target, sample.access, sample.threads) == (target, access, threads))
}

impl IoRatio {
    fn of(samples: &[IoSample], (access, threads): (Access, u32)) -> Option<Self> {
        let ratio = |upper, lower| {
            let pairs = of(samples, upper, access, threads).filter_map(|upper| {
                let lower = of(samples, lower, access, threads).find(|lower| lower.run == upper.run)?;
                Some(upper.rate() * 1000 / lower.rate().max(1))
            });
            Spread::of(pairs, 1000)
        };
        let (loop_to_file, file_to_disk) = (ratio(Target::Loop, Target::File)?, ratio(Target::File, Target::Disk));
        Some(Self { access, threads, loop_to_file, file_to_disk })
    }

    fn kind(&self) -> String {
        kind(self.access, self.threads)
    }

    fn violation(&self) -> Option<String> {
        let ratio = self.loop_to_file.median;
        (ratio < AT_LEAST).then(|| {
            format!(
                "{}: the loop device makes {ratio:.2} of the file's operations, the limit is {AT_LEAST}",
                self.kind()
            )
        })
    }
}

fn kind(access: Access, threads: u32) -> String {
    format!("{}, {threads} at once", access.title())
}

impl fmt::Display for IoReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "Direct I/O of 4 KiB at random places; medians of {} interleaved runs (min–max)\n", self.runs)?;
        let heads = ["", "operations a second", "median in µs", "99 of 100 in µs"].map(String::from);
        let rows = self.figures.iter().map(|figure| {
            let title = format!("{}: {}", kind(figure.access, figure.threads), figure.target.title());
            let latencies = [figure.median, figure.high].map(|spread| format!("{:.0}", spread.median));
            [vec![title, spread(&figure.rate)], latencies.into()].concat()
        });
        writeln!(f, "{}", Table::new(heads.into(), rows.collect()))?;
        let heads = ["operations, compared", "file to disk", "loop device to file", "limit"].map(String::from);
        let rows = self.ratios.iter().map(|ratio| {
            vec![
                ratio.kind(),
                ratio.file_to_disk.as_ref().map_or_else(|| "–".to_owned(), spread),
                spread(&ratio.loop_to_file),
                format!("≥ {}", number(AT_LEAST)),
            ]
        });
        writeln!(f, "\n{}", Table::new(heads.into(), rows.collect()))?;
        verdict(f, "limits", self.violations.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(target: Target, access: Access, run: u32, operations: u64) -> IoSample {
        let elapsed_us = 1_000_000;
        IoSample { target, access, threads: 4, run, operations, elapsed_us, median_ns: 90_000, high_ns: 400_000 }
    }

    fn samples(access: Access, operations: [u64; 3]) -> Vec<IoSample> {
        let run = |run| Target::ALL.into_iter().zip(operations).map(move |(target, number)| (run, target, number));
        (1..=3).flat_map(run).map(|(run, target, number)| sample(target, access, run, number)).collect()
    }

    #[test]
    fn a_loop_device_that_is_slower_than_its_file_is_named() {
        let report = IoReport::new(
            &[samples(Access::Write, [1000, 900, 870]), samples(Access::Read, [1000, 900, 450])].concat(),
        );
        let missed = "reads, 4 at once: the loop device makes 0.50 of the file's operations, the limit is 0.95";
        assert_eq!(report.violations, [missed]);
        assert_eq!((report.runs, report.figures.len(), report.ratios.len()), (3, 6, 2));
        assert!((report.ratios[0].file_to_disk.unwrap().median - 0.9).abs() < f64::EPSILON);
        let words = report.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains("writes, 4 at once 0.9 0.966 ≥ 0.95"), "{words}");
    }

    #[test]
    fn without_a_disk_the_file_is_compared_alone() {
        let mut samples = samples(Access::Read, [1000, 900, 890]);
        samples.retain(|sample| sample.target != Target::Disk);
        let report = IoReport::new(&samples);
        assert_eq!((report.figures.len(), report.ratios.len(), report.violations.len()), (2, 1, 0));
        assert_eq!(report.ratios[0].file_to_disk, None);
    }

    #[test]
    fn a_report_without_samples_is_empty() {
        let report = IoReport::new(&[]);
        assert!(report.figures.is_empty() && report.ratios.is_empty() && report.violations.is_empty());
    }
}
