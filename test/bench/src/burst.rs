//! [`Burst`]: many claims at once, in several ways, side by side.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::requests;
use crate::statistics::Spread;
use crate::table::{Table, number, spread, verdict};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    Ours,
    /// Claims one after the other: one worker takes them from a queue.
    OneWorker,
    /// external-provisioner's library with 4 workers, without a limit of the client.
    Library,
    /// The library with client-go's default limit: 5 requests per second, 10 at once.
    LimitedLibrary,
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
    /// From the first write (a PV or an event) to the last PV, or from the first claim to the last volume of a disk: only
    /// ratios of it mean something.
    pub milliseconds: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Burst {
    pub runs: u32,
    pub figures: Vec<BurstFigure>,
    pub comparisons: Vec<Comparison>,
    /// Ratios that miss a limit.
    pub violations: Vec<String>,
}

/// The node beside a baseline, run by run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    pub baseline: Way,
    /// Claims that the node served in the time in which the baseline served one.
    pub speed: Spread,
    pub speed_at_least: f64,
    /// Requests of the node for one of the baseline.
    pub requests: Spread,
    pub requests_at_most: Option<f64>,
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
    pub const ALL: [Self; 6] =
        [Self::Ours, Self::OneWorker, Self::Library, Self::LimitedLibrary, Self::Disk, Self::DiskWithWalk];

    /// Of claims of an API server.
    pub const SERVERS: [Self; 4] = [Self::Ours, Self::OneWorker, Self::Library, Self::LimitedLibrary];

    pub const fn title(self) -> &'static str {
        match self {
            Self::Ours => "API server: as the node does",
            Self::OneWorker => "API server: (baseline: one worker)",
            Self::Library => "API server: (baseline: library, 4 workers)",
            Self::LimitedLibrary => "API server: (baseline: library, 5 requests a second)",
            Self::Disk => "disk: as the node does",
            Self::DiskWithWalk => "disk: (baseline: one worker, walk for an ID)",
        }
    }

    const fn ours(self) -> Self {
        match self {
            Self::Ours | Self::OneWorker | Self::Library | Self::LimitedLibrary => Self::Ours,
            Self::Disk | Self::DiskWithWalk => Self::Disk,
        }
    }

    /// Of 500 claims: the least speed, and the largest share of requests. The library sends three requests for a claim: a PV
    /// and two events. A PV and one event are needed; the rest up to 0.7 are lists at the start.
    const fn limits(self) -> Option<(f64, Option<f64>)> {
        match self {
            Self::Library => Some((1.5, Some(0.7))),
            Self::LimitedLibrary => Some((10.0, None)),
            Self::Ours | Self::OneWorker | Self::Disk | Self::DiskWithWalk => None,
        }
    }
}

impl Comparison {
    fn of(baseline: Way, samples: &[BurstSample]) -> Option<Self> {
        let (speed_at_least, requests_at_most) = baseline.limits()?;
        let of = |way: Way| samples.iter().filter(move |sample| sample.way == way);
        let pairs: Vec<_> = of(baseline)
            .filter_map(|theirs| Some((of(baseline.ours()).find(|ours| ours.run == theirs.run)?, theirs)))
            .collect();
        let ratio = |of: fn(&BurstSample) -> u64| {
            Spread::of(pairs.iter().map(|(ours, theirs)| of(ours) * 1000 / of(theirs).max(1)), 1000)
        };
        Some(Self {
            baseline,
            speed: ratio(BurstSample::claims_per_1000_seconds)?,
            speed_at_least,
            requests: ratio(BurstSample::requests_per_1000_claims)?,
            requests_at_most,
        })
    }

    fn violations(&self) -> Vec<String> {
        let Self { baseline, speed, speed_at_least, requests, requests_at_most } = self;
        let speed = (speed.median < *speed_at_least)
            .then(|| format!("{:.1} times as fast, the limit is {speed_at_least}", speed.median));
        let requests = requests_at_most
            .filter(|limit| requests.median > *limit)
            .map(|limit| format!("{:.2} of its requests, the limit is {limit}", requests.median));
        let named = |missed| format!("compared with {}: {missed}", baseline.title());
        [speed, requests].into_iter().flatten().map(named).collect()
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
                requests: each(&|sample| requests::counted(&sample.requests))?,
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
        let comparisons: Vec<_> = Way::ALL.into_iter().filter_map(|way| Comparison::of(way, samples)).collect();
        let violations = comparisons.iter().flat_map(Comparison::violations).collect();
        Self { runs, figures: Way::ALL.into_iter().filter_map(figure).collect(), comparisons, violations }
    }
}

impl BurstSample {
    /// Rates as whole numbers, whose median can be taken.
    fn claims_per_1000_seconds(&self) -> u64 {
        u64::from(self.claims) * 1_000_000 / self.milliseconds.max(1)
    }

    fn requests_per_1000_claims(&self) -> u64 {
        requests::counted(&self.requests) * 1000 / u64::from(self.claims.max(1))
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
        let names = self.figures.iter().filter(|figure| !figure.by_name.is_empty());
        let names = names.map(|figure| vec![figure.way.title().into(), requests::list(&figure.by_name)]);
        writeln!(f, "\n{}", Table::new(vec!["which requests a claim".into(), String::new()], names.collect()))?;
        let heads = ["the node, compared with", "times as fast", "limit", "requests", "limit"].map(String::from);
        let rows = self.comparisons.iter().map(|comparison| {
            let most = comparison.requests_at_most.map_or_else(|| "–".into(), |limit| format!("≤ {limit}"));
            vec![
                comparison.baseline.title().into(),
                spread(&comparison.speed),
                format!("≥ {}", comparison.speed_at_least),
                spread(&comparison.requests),
                most,
            ]
        });
        writeln!(f, "\n{}", Table::new(heads.into(), rows.collect()))?;
        verdict(f, "limits", self.violations.len())
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
        assert_eq!(Burst::new(&[]), Burst { runs: 0, figures: vec![], comparisons: vec![], violations: vec![] });
    }

    #[test]
    fn the_library_is_compared_in_each_run() {
        let library = |run, milliseconds| BurstSample {
            requests: BTreeMap::from([("create events".to_owned(), 200), ("watch persistentvolumes".to_owned(), 9)]),
            ..sample(Way::Library, run, milliseconds)
        };
        let burst = |milliseconds| {
            Burst::new(&[1, 2, 3].map(|run| [sample(Way::Ours, run, 1000), library(run, milliseconds)]).concat())
        };
        let fast = burst(2000);
        assert_eq!(fast.violations, Vec::<String>::new());
        assert!((fast.comparisons[0].speed.median - 2.0).abs() < 0.01);
        assert!((fast.comparisons[0].requests.median - 0.5).abs() < 0.01);
        let slow = burst(1200);
        let missed = "compared with API server: (baseline: library, 4 workers): 1.2 times as fast, the limit is 1.5";
        assert_eq!(slow.violations, [missed]);
        assert!(slow.to_string().ends_with("1 of the limits do NOT hold.\n"), "{slow}");
    }
}
