//! [`NeighbourReport`]: latency of one pod's syncs while another pod writes to its block volume, or while a volume is
//! copied.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::statistics::Spread;
use crate::table::{Table, number, spread, verdict};

/// The load beside the neighbour: the tenant, which is the pod with the block volume, or a copy of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tenant {
    /// The tenant does nothing.
    Idle,
    /// The tenant writes as fast as its limit allows.
    Limited,
    /// The tenant writes without a limit.
    Unlimited,
    /// The tenant does nothing. A snapshot is copied in the background.
    SnapshotCopy,
    /// The tenant does nothing. A clone is copied while a claim waits for it.
    CloneCopy,
}

/// Files of 4 KiB that the neighbour creates, writes and syncs one after the other, on the disk that has the tenant's
/// image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NeighbourSample {
    pub tenant: Tenant,
    /// Number of the run, starting at 1.
    pub run: u32,
    pub operations: u64,
    pub elapsed_us: u64,
    pub median_ns: u64,
    /// 99th percentile.
    pub high_ns: u64,
    /// Bytes of the tenant that reached its device. For a copy: all bytes that reached the disk.
    pub written: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NeighbourReport {
    pub runs: u32,
    pub figures: Vec<NeighbourFigure>,
    /// Ratios of the tenants that write, and of copies.
    pub ratios: Vec<NeighbourRatio>,
    /// Ratios above the limit.
    pub violations: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NeighbourFigure {
    pub tenant: Tenant,
    /// Microseconds, like `high`.
    pub median: Spread,
    pub high: Spread,
    /// KiB written per second.
    pub written: Spread,
}

/// Comparison with an idle tenant in the same run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NeighbourRatio {
    pub tenant: Tenant,
    pub median: Spread,
    pub high: Spread,
}

/// Limit of the median's ratio beside a limited tenant, and beside the copy of a snapshot.
const AT_MOST: f64 = 2.0;

impl Tenant {
    pub const ALL: [Self; 5] = [Self::Idle, Self::Limited, Self::Unlimited, Self::SnapshotCopy, Self::CloneCopy];

    pub const fn writes(self) -> bool {
        matches!(self, Self::Limited | Self::Unlimited)
    }

    pub const fn is_copy(self) -> bool {
        matches!(self, Self::SnapshotCopy | Self::CloneCopy)
    }

    const fn title(self) -> &'static str {
        match self {
            Self::Idle => "an idle tenant",
            Self::Limited => "a tenant limited to 2 MiB/s",
            Self::Unlimited => "a tenant without a limit",
            Self::SnapshotCopy => "the copy of a snapshot",
            Self::CloneCopy => "the copy of a clone",
        }
    }

    const fn limit(self) -> Option<f64> {
        match self {
            Self::Limited | Self::SnapshotCopy => Some(AT_MOST),
            Self::Idle | Self::Unlimited | Self::CloneCopy => None,
        }
    }
}

impl NeighbourReport {
    pub fn new(samples: &[NeighbourSample]) -> Self {
        let ratios: Vec<_> =
            Tenant::ALL[1..].iter().filter_map(|tenant| NeighbourRatio::of(samples, *tenant)).collect();
        Self {
            runs: samples.iter().map(|sample| sample.run).max().unwrap_or_default(),
            figures: Tenant::ALL.iter().filter_map(|tenant| NeighbourFigure::of(samples, *tenant)).collect(),
            violations: ratios.iter().filter_map(NeighbourRatio::violation).collect(),
            ratios,
        }
    }
}

fn of(samples: &[NeighbourSample], tenant: Tenant) -> impl Iterator<Item = &NeighbourSample> {
    samples.iter().filter(move |sample| sample.tenant == tenant)
}

impl NeighbourFigure {
    fn of(samples: &[NeighbourSample], tenant: Tenant) -> Option<Self> {
        let spread = |value: fn(&NeighbourSample) -> u64, unit| Spread::of(of(samples, tenant).map(value), unit);
        let (median, high) = (spread(|sample| sample.median_ns, 1000)?, spread(|sample| sample.high_ns, 1000)?);
        let written = spread(|sample| (sample.written >> 10) * 1_000_000 / sample.elapsed_us.max(1), 1)?;
        Some(Self { tenant, median, high, written })
    }
}

impl NeighbourRatio {
    fn of(samples: &[NeighbourSample], tenant: Tenant) -> Option<Self> {
        let ratio = |value: fn(&NeighbourSample) -> u64| {
            let pairs = of(samples, tenant).filter_map(|busy| {
                let idle = of(samples, Tenant::Idle).find(|idle| idle.run == busy.run)?;
                Some(value(busy) * 1000 / value(idle).max(1))
            });
            Spread::of(pairs, 1000)
        };
        Some(Self { tenant, median: ratio(|sample| sample.median_ns)?, high: ratio(|sample| sample.high_ns)? })
    }

    fn violation(&self) -> Option<String> {
        let (found, limit) = (self.median.median, self.tenant.limit()?);
        let tenant = self.tenant.title();
        (found > limit).then(|| format!("a sync takes {found:.2} times as long beside {tenant}, the limit is {limit}"))
    }
}

impl fmt::Display for NeighbourReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "Create, write and sync a file beside a tenant or a copy; medians of {} interleaved runs (min–max)\n",
            self.runs
        )?;
        let heads = ["beside", "median in µs", "99 of 100 in µs", "written in KiB/s"].map(String::from);
        let rows = self.figures.iter().map(|figure| {
            let numbers = [figure.median, figure.high, figure.written].map(|spread| format!("{:.0}", spread.median));
            [vec![figure.tenant.title().to_owned()], numbers.into()].concat()
        });
        writeln!(f, "{}", Table::new(heads.into(), rows.collect()))?;
        let heads = ["compared with an idle tenant", "median", "limit", "99 of 100"].map(String::from);
        let rows = self.ratios.iter().map(|ratio| {
            let limit = ratio.tenant.limit().map_or_else(|| "–".to_owned(), |limit| format!("≤ {}", number(limit)));
            vec![ratio.tenant.title().to_owned(), spread(&ratio.median), limit, spread(&ratio.high)]
        });
        writeln!(f, "\n{}", Table::new(heads.into(), rows.collect()))?;
        verdict(f, "limits", self.violations.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(medians: [u64; 5]) -> Vec<NeighbourSample> {
        let sample = |(run, (tenant, median)): (u32, (Tenant, u64))| NeighbourSample {
            tenant,
            run,
            operations: 100,
            elapsed_us: 2_000_000,
            median_ns: median * u64::from(run) * 1000,
            high_ns: median * 3000,
            written: 4 << 20,
        };
        (1..=3).flat_map(|run| Tenant::ALL.into_iter().zip(medians).map(move |of| (run, of))).map(sample).collect()
    }

    #[test]
    fn a_limited_tenant_and_the_copy_of_a_snapshot_have_limits() {
        let report = NeighbourReport::new(&samples([1000, 1900, 9000, 2000, 9000]));
        assert_eq!((report.violations.len(), report.figures.len(), report.ratios.len()), (0, 5, 4));
        let report = NeighbourReport::new(&samples([1000, 2100, 9000, 2500, 9000]));
        let missed = |ratio, other| format!("a sync takes {ratio} times as long beside {other}, the limit is 2");
        let missed = [missed("2.10", "a tenant limited to 2 MiB/s"), missed("2.50", "the copy of a snapshot")];
        assert_eq!(report.violations, missed);
        let words = report.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains("limited to 2 MiB/s 4200 6300 2048"), "{words}");
        assert!(words.contains("limited to 2 MiB/s 2.1 ≤ 2 2.1"), "{words}");
        assert!(words.contains("the copy of a clone 9 – 9"), "{words}");
    }

    #[test]
    fn a_report_without_samples_is_empty() {
        let report = NeighbourReport::new(&[]);
        assert!(report.figures.is_empty() && report.ratios.is_empty() && report.violations.is_empty());
    }
}
