//! [`Report`]: the evaluation of all samples.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::operation::{Expected, Operation, Subject};
use crate::sample::Sample;
use crate::statistics::{Spread, slope};
use crate::timed::{TimeFigure, TimeSample};

/// All figures of a run of the benchmarks. `Display` prints a table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    pub kernel: String,
    pub runs: u32,
    pub figures: Vec<Figure>,
    /// Empty if nothing was timed.
    pub times: Vec<TimeFigure>,
    /// Limits that do not hold.
    pub violations: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figure {
    pub subject: Subject,
    pub operation: Operation,
    pub counts: [Count; 2],
    /// Additional system calls for each existing thing.
    pub slope: f64,
    pub expected: Expected,
}

/// Cost of a call when `present` things exist.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Count {
    pub present: u32,
    /// System calls on the file system or a device.
    pub syscalls: Spread,
    /// System calls about the process itself: memory, locks, signals, IDs and sleeps.
    pub housekeeping: Spread,
    pub flushes: Spread,
    pub writes: Spread,
    pub written_kib: Spread,
    /// Milliseconds of all reads, writes and flushes of the disk.
    pub disk_ms: Spread,
    /// Part of the flushes in `disk_ms`.
    pub flush_ms: Spread,
    pub by_name: BTreeMap<String, f64>,
}

/// The report needs samples that are missing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the guest sent no run of {operation} with {present} {}", operation.subject().things())]
pub struct MissingSample {
    operation: Operation,
    present: u32,
}

impl Report {
    pub fn new(kernel: String, samples: &[Sample], times: &[TimeSample]) -> Result<Self, MissingSample> {
        let figures: Vec<Figure> =
            Operation::ALL.iter().map(|&operation| figure(operation, samples)).collect::<Result<_, _>>()?;
        let times = TimeFigure::all(times);
        let runs: BTreeSet<u32> = samples.iter().map(|sample| sample.run).collect();
        Ok(Self {
            kernel,
            runs: u32::try_from(runs.len()).unwrap_or(u32::MAX),
            violations: figures
                .iter()
                .flat_map(violations)
                .chain(differing_sizes(&figures))
                // Like all times, that of the disk depends on the machine.
                .chain(figures.iter().filter(|_| !times.is_empty()).filter_map(slow_disk))
                .collect(),
            figures,
            times,
        })
    }
}

fn figure(operation: Operation, samples: &[Sample]) -> Result<Figure, MissingSample> {
    let subject = operation.subject();
    let populations = subject.populations();
    let [few, many] = populations;
    let counts = [count(operation, few, samples)?, count(operation, many, samples)?];
    let medians = [counts[0].syscalls.median, counts[1].syscalls.median];
    Ok(Figure { subject, operation, slope: slope(populations, medians), counts, expected: operation.expected() })
}

fn count(operation: Operation, present: u32, samples: &[Sample]) -> Result<Count, MissingSample> {
    let of_this = |sample: &&Sample| sample.operation == operation && sample.present == present;
    let samples: Vec<&Sample> = samples.iter().filter(of_this).collect();
    let spread_in = |unit: u32, count: &dyn Fn(&Sample) -> u64| {
        let counts = samples.iter().map(|sample| count(sample));
        Spread::of(counts, operation.calls() * unit).ok_or(MissingSample { operation, present })
    };
    let spread = |count: &dyn Fn(&Sample) -> u64| spread_in(1, count);
    let names: BTreeSet<&String> = samples.iter().flat_map(|sample| sample.syscalls.keys()).collect();
    let by_name = names.into_iter().map(|name| {
        let spread = spread(&|sample| sample.syscalls.get(name).copied().unwrap_or_default())?;
        Ok((name.clone(), spread.median))
    });
    Ok(Count {
        present,
        syscalls: spread(&Sample::work)?,
        housekeeping: spread(&Sample::housekeeping)?,
        flushes: spread(&|sample| sample.disk.flushes)?,
        writes: spread(&|sample| sample.disk.writes)?,
        written_kib: spread_in(1024, &|sample| sample.disk.written_bytes)?,
        disk_ms: spread_in(1_000_000, &|sample| sample.disk.time_ns)?,
        flush_ms: spread_in(1_000_000, &|sample| sample.disk.flush_ns)?,
        by_name: by_name.collect::<Result<_, _>>()?,
    })
}

fn violations(figure: &Figure) -> Vec<String> {
    let (operation, things) = (figure.operation, figure.subject.things());
    let Expected { slope, at_most, flushes, .. } = figure.expected;
    let slope = slope.filter(|limit| (figure.slope - f64::from(*limit)).abs() > f64::EPSILON).map(|limit| {
        let found = figure.slope;
        format!("{operation} makes {found} more system calls for each of the {things} that exist; the limit is {limit}")
    });
    let mut violations: Vec<String> = slope.into_iter().collect();
    for count in &figure.counts {
        let present = count.present;
        // The median of flushes, because the kernel occasionally adds a flush of its own.
        let found = [("system calls", at_most, count.syscalls.max), ("flushes", flushes, count.flushes.median)];
        for (what, limit, found) in found {
            let Some(limit) = limit.filter(|limit| found > f64::from(*limit)) else { continue };
            violations.push(format!("{operation} makes {found} {what} with {present} {things}; the limit is {limit}"));
        }
    }
    violations
}

fn slow_disk(figure: &Figure) -> Option<String> {
    let [_, Count { present, disk_ms, .. }] = &figure.counts;
    let limit = figure.expected.disk_ms.filter(|limit| disk_ms.median > f64::from(*limit))?;
    let (operation, things, found) = (figure.operation, figure.subject.things(), disk_ms.median);
    Some(format!("{operation} takes {found:.1} ms of the disk with {present} {things}; the limit is {limit}"))
}

/// Operations whose counts differ between a small and a large image, although they must be equal.
fn differing_sizes(figures: &[Figure]) -> Vec<String> {
    let pairs = [
        (Operation::TakeSnapshot, Operation::TakeSnapshotLarge),
        (Operation::CloneVolume, Operation::CloneVolumeLarge),
    ];
    let counts = |operation: Operation| {
        figures.iter().filter(move |figure| figure.operation == operation).flat_map(|of| &of.counts)
    };
    let compared =
        pairs.into_iter().flat_map(|(small, large)| counts(small).zip(counts(large)).map(move |of| (large, of)));
    let differing = compared.filter_map(|(large, (few, many))| {
        let (found, limit, present) = (many.syscalls.median, few.syscalls.median, few.present);
        let differs = found.total_cmp(&limit).is_ne();
        differs.then(|| {
            format!("{large} makes {found} system calls with {present} extents, and {limit} with a smaller image")
        })
    });
    differing.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::DiskWork;
    use crate::timed::Timed;

    /// Samples of all operations with all populations, for each run. `cost` returns the number of calls.
    fn samples(runs: u32, cost: impl Fn(Operation, u32) -> u64) -> Vec<Sample> {
        let mut samples = Vec::new();
        for run in 1..=runs {
            for &operation in Operation::ALL {
                for present in operation.subject().populations() {
                    let syscalls = BTreeMap::from([("ioctl".into(), cost(operation, present)), ("brk".into(), 1)]);
                    samples.push(Sample { operation, present, run, syscalls, disk: DiskWork::default() });
                }
            }
        }
        samples
    }

    fn limit(operation: Operation, present: u32) -> u64 {
        let slope = operation.expected().slope.unwrap_or(1);
        2 + u64::from(slope * present)
    }

    fn report(cost: impl Fn(Operation, u32) -> u64) -> Report {
        Report::new("6.12".into(), &samples(3, cost), &[]).unwrap()
    }

    #[test]
    fn figures_within_the_limits_violate_nothing() {
        let report = report(limit);
        assert_eq!(report.violations, Vec::<String>::new());
        assert_eq!((report.runs, report.figures.len()), (3, Operation::ALL.len()));
    }

    #[test]
    fn one_more_system_call_per_thousand_projects_is_a_violation() {
        let more =
            |operation, present| limit(operation, present) + u64::from(operation == Operation::Get && present > 0);
        let missed = "get makes 0.001 more system calls for each of the projects that exist; the limit is 0";
        assert_eq!(report(more).violations, [missed]);
    }

    #[test]
    fn a_report_that_leaves_projects_out_is_a_violation() {
        let less = |operation, present| if operation == Operation::Report { 2 } else { limit(operation, present) };
        let missed = "report makes 0 more system calls for each of the projects that exist; the limit is 1";
        assert_eq!(report(less).violations, [missed]);
    }

    #[test]
    fn too_many_calls_are_a_violation_at_each_population() {
        let many = |operation, present| if operation == Operation::Quota { 4 } else { limit(operation, present) };
        let missed =
            [0, 1000].map(|present| format!("quota makes 4 system calls with {present} projects; the limit is 3"));
        assert_eq!(report(many).violations, missed);
    }

    #[test]
    fn calls_that_depend_on_the_size_of_an_image_are_a_violation() {
        let more = |operation, present| limit(operation, present) + u64::from(operation == Operation::CloneVolumeLarge);
        let missed = [1, 1000].map(|present| {
            format!("clone-volume-large makes 3 system calls with {present} extents, and 2 with a smaller image")
        });
        assert_eq!(report(more).violations, missed);
    }

    #[test]
    fn a_disk_that_takes_too_long_is_a_violation_beside_times() {
        let of = |extents| Timed::ALL.map(|timed| TimeSample { timed, extents, run: 1, microseconds: 5 });
        let times = Subject::Snapshot.populations().map(of).concat();
        let report = |time_ns: u64, times: &[TimeSample]| {
            let mut samples = samples(1, limit);
            for sample in &mut samples {
                sample.disk.time_ns = time_ns;
            }
            Report::new("6.12".into(), &samples, times).unwrap()
        };
        assert_eq!(report(10_000_000, &times).times.len(), Timed::ALL.len());
        assert_eq!(report(10_000_000, &times).violations, Vec::<String>::new());
        assert_eq!(report(11_000_000, &[]).violations, Vec::<String>::new());
        let missed = ["take-snapshot", "clone-volume", "take-snapshot-large", "clone-volume-large"]
            .map(|operation| format!("{operation} takes 11.0 ms of the disk with 1000 extents; the limit is 10"));
        assert_eq!(report(11_000_000, &times).violations, missed);
    }

    #[test]
    fn housekeeping_is_counted_separately() {
        let report = report(limit);
        let count = &report.figures.iter().find(|figure| figure.operation == Operation::Get).unwrap().counts[0];
        assert_eq!((count.syscalls.median, count.housekeeping.median), (2.0, 1.0));
        assert_eq!(count.by_name, BTreeMap::from([("brk".into(), 1.0), ("ioctl".into(), 2.0)]));
    }

    #[test]
    fn an_operation_that_was_not_measured_is_named() {
        let mut samples = samples(1, limit);
        samples.retain(|sample| sample.operation != Operation::Detach || sample.present == 0);
        let missing = Report::new(String::new(), &samples, &[]).unwrap_err();
        assert_eq!(missing.to_string(), "the guest sent no run of detach with 100 devices");
    }
}
