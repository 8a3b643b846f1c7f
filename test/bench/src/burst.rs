//! [`Burst`]: many claims at once, in several ways, side by side.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::statistics::Spread;
use crate::table::{Table, number};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    Ours,
    /// Claims one after the other: one worker takes them from a queue.
    OneWorker,
    /// As the node does, with the client limits of external-provisioner: 5 requests per second, 10 at once.
    LimitedClient,
    /// Volumes as the node makes them, several at once, without an API server.
    Disk,
    /// Volumes one after the other, each with a walk over all quotas for a free ID.
    DiskWithWalk,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BurstSample {
    pub way: Way,
    /// The round of measurements, from 1 on.
    pub run: u32,
    pub claims: u32,
    /// Requests to the API server, by verb and resource. Empty without one.
    pub requests: BTreeMap<String, u64>,
    /// Flushes that reached the disk. 0 without one.
    pub flushes: u64,
    /// From the first claim to the last volume: only ratios of it mean something.
    pub milliseconds: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Burst {
    pub runs: u32,
    pub figures: Vec<BurstFigure>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BurstFigure {
    pub way: Way,
    pub claims: u32,
    pub requests: Spread,
    pub flushes: Spread,
    /// Medians of requests for each claim, by verb and resource.
    pub by_name: BTreeMap<String, f64>,
    /// How many claims were served in the time in which the way that it is compared with served one.
    pub speed: Option<f64>,
}

impl Way {
    /// All of them, in the order of the report.
    pub const ALL: [Self; 5] = [Self::Ours, Self::OneWorker, Self::LimitedClient, Self::Disk, Self::DiskWithWalk];

    pub const fn title(self) -> &'static str {
        match self {
            Self::Ours => "API server: as the node does",
            Self::OneWorker => "API server: (baseline: one worker)",
            Self::LimitedClient => "API server: (baseline: 5 requests a second)",
            Self::Disk => "disk: as the node does",
            Self::DiskWithWalk => "disk: (baseline: one worker, walk for an ID)",
        }
    }

    const fn ours(self) -> Self {
        match self {
            Self::Ours | Self::OneWorker | Self::LimitedClient => Self::Ours,
            Self::Disk | Self::DiskWithWalk => Self::Disk,
        }
    }
}

impl Burst {
    /// Of these samples; ways without any are left out.
    pub fn new(samples: &[BurstSample]) -> Self {
        let rate = |way| {
            let rates = samples.iter().filter(|sample| sample.way == way).map(BurstSample::claims_per_1000_seconds);
            Spread::of(rates, 1000).map(|spread| spread.median)
        };
        let figure = |way: Way| {
            let of_way: Vec<_> = samples.iter().filter(|sample| sample.way == way).collect();
            let claims = of_way.first()?.claims;
            let names: std::collections::BTreeSet<_> =
                of_way.iter().flat_map(|sample| sample.requests.keys()).collect();
            let each =
                |count: &dyn Fn(&BurstSample) -> u64| Spread::of(of_way.iter().map(|sample| count(sample)), claims);
            Some(BurstFigure {
                way,
                claims,
                requests: each(&|sample| sample.requests.values().sum())?,
                flushes: each(&|sample| sample.flushes)?,
                by_name: names
                    .into_iter()
                    .filter_map(|name| {
                        let spread = each(&|sample| sample.requests.get(name).copied().unwrap_or_default())?;
                        Some((name.clone(), spread.median))
                    })
                    .collect(),
                speed: rate(way.ours()).zip(rate(way)).map(|(ours, this)| this / ours),
            })
        };
        let runs = samples.iter().map(|sample| sample.run).max().unwrap_or_default();
        Self { runs, figures: Way::ALL.into_iter().filter_map(figure).collect() }
    }
}

impl BurstSample {
    /// Rates as whole numbers, whose median can be taken.
    fn claims_per_1000_seconds(&self) -> u64 {
        u64::from(self.claims) * 1_000_000 / self.milliseconds.max(1)
    }
}

impl fmt::Display for Burst {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "Claims at once; medians of {} interleaved runs", self.runs)?;
        let heads = ["", "claims", "requests a claim", "flushes a claim", "speed"].map(String::from);
        let rows = self.figures.iter().map(|figure| {
            vec![
                figure.way.title().into(),
                figure.claims.to_string(),
                number(figure.requests.median),
                number(figure.flushes.median),
                figure.speed.map(|speed| format!("{speed:.3}")).unwrap_or_default(),
            ]
        });
        writeln!(f, "\n{}", Table::new(heads.into(), rows.collect()))?;
        let names = self.figures.iter().filter(|figure| !figure.by_name.is_empty()).map(|figure| {
            let list: Vec<_> = figure.by_name.iter().map(|(name, each)| format!("{} {name}", number(*each))).collect();
            vec![figure.way.title().into(), list.join(", ")]
        });
        writeln!(f, "\n{}", Table::new(vec!["which requests a claim".into(), String::new()], names.collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(way: Way, run: u32, milliseconds: u64) -> BurstSample {
        let requests = BTreeMap::from([("create persistentvolumes".to_owned(), 100)]);
        BurstSample { way, run, claims: 100, requests, flushes: 50, milliseconds }
    }

    #[test]
    fn speeds_are_compared_with_ours() {
        let burst = Burst::new(&[
            sample(Way::Ours, 1, 1000),
            sample(Way::OneWorker, 1, 4000),
            sample(Way::Ours, 2, 1000),
            sample(Way::OneWorker, 2, 4000),
        ]);
        assert_eq!(burst.runs, 2);
        let speeds: Vec<_> = burst.figures.iter().map(|figure| (figure.way, figure.speed)).collect();
        assert_eq!(speeds, [(Way::Ours, Some(1.0)), (Way::OneWorker, Some(0.25))]);
        assert!((burst.figures[0].requests.median - 1.0).abs() < f64::EPSILON);
        assert!((burst.figures[0].flushes.median - 0.5).abs() < f64::EPSILON);
    }

    #[test]
    fn no_samples_give_no_figure() {
        assert_eq!(Burst::new(&[]), Burst { runs: 0, figures: vec![] });
    }
}
