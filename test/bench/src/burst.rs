//! [`Burst`]: many claims at once, served in several ways, and the comparison of these ways.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::requests;
use crate::statistics::Spread;
use crate::table::{Table, number, spread, verdict};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    Ours,
    /// One worker takes claims from a queue, one after the other.
    OneWorker,
    /// external-provisioner's library with 4 workers, without a client-side rate limit.
    Library,
    /// The library with client-go's default limit: 5 requests per second, 10 at once.
    LimitedLibrary,
    /// Volumes created in parallel like on the node, without an API server.
    Disk,
}

/// Whether kube-controller-manager runs, which binds claims and PVs. It makes four writes per claim, equally for every
/// provisioner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Binder {
    Stopped,
    Running,
}

/// End of a measured time. Each time begins with the first write of the provisioner (a PV or an event).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Until {
    /// All PVs exist. Without an API server: all volumes exist.
    LastPv,
    /// All PVs and events exist.
    LastWrite,
    LastBound,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BurstSample {
    pub way: Way,
    pub binder: Binder,
    /// Number of the run, starting at 1.
    pub run: u32,
    pub claims: u32,
    /// Requests to the API server, by verb and resource. Empty without an API server.
    pub requests: BTreeMap<String, u64>,
    /// Flushes that reached the disk. 0 without a disk.
    pub flushes: u64,
    /// Times in milliseconds. Only their ratios are meaningful.
    pub times: BTreeMap<Until, u64>,
    /// CPU time of each program from the start of the provisioner to the end of the burst, in milliseconds.
    pub cpu: BTreeMap<String, u64>,
    /// Reason why the directories have no project quotas.
    pub without_quota: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Burst {
    pub runs: u32,
    pub figures: Vec<BurstFigure>,
    pub comparisons: Vec<Comparison>,
    /// Reason why the directories of volumes have no project quotas, but files with the limit.
    pub without_quota: Option<String>,
    /// Ratios that miss a limit.
    pub violations: Vec<String>,
}

/// The node compared with a baseline, run by run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    pub baseline: Way,
    pub binder: Binder,
    pub until: Until,
    /// Number of claims that the node served in the time in which the baseline served one.
    pub speed: Spread,
    pub speed_at_least: Option<f64>,
    /// Number of requests of the node for one request of the baseline.
    pub requests: Spread,
    pub requests_at_most: Option<f64>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BurstFigure {
    pub way: Way,
    pub binder: Binder,
    pub claims: u32,
    pub requests: Spread,
    pub flushes: Spread,
    /// Median number of requests per claim, by verb and resource.
    pub by_name: BTreeMap<String, f64>,
    pub seconds: BTreeMap<Until, Spread>,
    /// Median CPU milliseconds per claim, by program.
    pub cpu_ms: BTreeMap<String, f64>,
    /// Number of claims that had a PV in the time in which the baseline created one.
    pub speed: Option<f64>,
}

/// A comparison and its limits for 500 claims.
struct Goal {
    baseline: Way,
    binder: Binder,
    until: Until,
    speed_at_least: Option<f64>,
    requests_at_most: Option<f64>,
}

/// The limits apply to the work of the provisioners alone. The library sends three requests for a claim: a PV and two
/// events. The node needs a PV and one event; the rest up to 0.7 are lists at the start.
const GOALS: [Goal; 5] = [
    Goal::new(Way::Library, Binder::Stopped, Until::LastPv, Some(1.5), Some(0.7)),
    Goal::new(Way::Library, Binder::Stopped, Until::LastWrite, None, None),
    Goal::new(Way::Library, Binder::Running, Until::LastPv, None, None),
    Goal::new(Way::Library, Binder::Running, Until::LastBound, None, None),
    Goal::new(Way::LimitedLibrary, Binder::Stopped, Until::LastPv, Some(10.0), None),
];

impl Goal {
    const fn new(
        baseline: Way,
        binder: Binder,
        until: Until,
        speed_at_least: Option<f64>,
        requests_at_most: Option<f64>,
    ) -> Self {
        Self { baseline, binder, until, speed_at_least, requests_at_most }
    }
}

impl Way {
    /// All ways, in the order of the report.
    pub const ALL: [Self; 5] = [Self::Ours, Self::OneWorker, Self::Library, Self::LimitedLibrary, Self::Disk];

    pub const fn title(self) -> &'static str {
        match self {
            Self::Ours => "API server: as the node does",
            Self::OneWorker => "API server: (baseline: one worker)",
            Self::Library => "API server: (baseline: library, 4 workers)",
            Self::LimitedLibrary => "API server: (baseline: library, 5 requests a second)",
            Self::Disk => "disk: as the node does",
        }
    }

    const fn ours(self) -> Self {
        match self {
            Self::Ours | Self::OneWorker | Self::Library | Self::LimitedLibrary => Self::Ours,
            Self::Disk => Self::Disk,
        }
    }
}

impl Binder {
    /// Both values, in the order of the report.
    const ALL: [Self; 2] = [Self::Stopped, Self::Running];

    /// Ways that are measured with an API server.
    pub const fn ways(self) -> &'static [Way] {
        match self {
            Self::Stopped => &[Way::Ours, Way::OneWorker, Way::Library, Way::LimitedLibrary],
            Self::Running => &[Way::Ours, Way::Library],
        }
    }

    /// Text after the title of a way.
    const fn suffix(self) -> &'static str {
        match self {
            Self::Stopped => "",
            Self::Running => ", while claims are bound",
        }
    }
}

impl Until {
    const ALL: [Self; 3] = [Self::LastPv, Self::LastWrite, Self::LastBound];

    const fn title(self) -> &'static str {
        match self {
            Self::LastPv => "last PV",
            Self::LastWrite => "last event",
            Self::LastBound => "last bound claim",
        }
    }
}

impl Comparison {
    fn of(goal: &Goal, samples: &[BurstSample]) -> Option<Self> {
        let Goal { baseline, binder, until, speed_at_least, requests_at_most } = *goal;
        let of = |way: Way| samples.iter().filter(move |sample| sample.way == way && sample.binder == binder);
        let pairs: Vec<_> = of(baseline)
            .filter_map(|theirs| Some((of(baseline.ours()).find(|ours| ours.run == theirs.run)?, theirs)))
            .collect();
        let ratio = |of: &dyn Fn(&BurstSample) -> Option<u64>| {
            let ratios = pairs.iter().filter_map(|(ours, theirs)| Some(of(ours)? * 1000 / of(theirs)?.max(1)));
            Spread::of(ratios, 1000)
        };
        Some(Self {
            baseline,
            binder,
            until,
            speed: ratio(&|sample| sample.claims_per_1000_seconds(until))?,
            speed_at_least,
            requests: ratio(&|sample| Some(sample.requests_per_1000_claims()))?,
            requests_at_most,
        })
    }

    fn title(&self) -> String {
        format!("{}{}, until the {}", self.baseline.title(), self.binder.suffix(), self.until.title())
    }

    fn violations(&self) -> Vec<String> {
        let Self { speed, speed_at_least, requests, requests_at_most, .. } = self;
        let speed = speed_at_least
            .filter(|limit| speed.median < *limit)
            .map(|limit| format!("{:.2} times as fast, the limit is {limit}", speed.median));
        let requests = requests_at_most
            .filter(|limit| requests.median > *limit)
            .map(|limit| format!("{:.2} of its requests, the limit is {limit}", requests.median));
        let named = |missed| format!("compared with {}: {missed}", self.title());
        [speed, requests].into_iter().flatten().map(named).collect()
    }
}

impl BurstFigure {
    fn of(way: Way, binder: Binder, samples: &[BurstSample]) -> Option<Self> {
        let of = |way: Way| samples.iter().filter(move |sample| sample.way == way && sample.binder == binder);
        let claims = of(way).next()?.claims;
        let each = |count: &dyn Fn(&BurstSample) -> u64| Spread::of(of(way).map(count), claims);
        let medians = |counts: fn(&BurstSample) -> &BTreeMap<String, u64>| -> BTreeMap<String, f64> {
            let names: BTreeSet<_> = of(way).flat_map(|sample| counts(sample).keys()).collect();
            let median = |name: &String| {
                each(&|sample| counts(sample).get(name).copied().unwrap_or_default()).map(|spread| spread.median)
            };
            names.into_iter().filter_map(|name| Some((name.clone(), median(name)?))).collect()
        };
        let seconds = |until: Until| Spread::of(of(way).filter_map(|sample| sample.times.get(&until).copied()), 1000);
        let rate = |way: Way| {
            let rates = of(way).filter_map(|sample| sample.claims_per_1000_seconds(Until::LastPv));
            Spread::of(rates, 1000).map(|spread| spread.median)
        };
        Some(Self {
            way,
            binder,
            claims,
            requests: each(&|sample| requests::counted(&sample.requests))?,
            flushes: each(&|sample| sample.flushes)?,
            by_name: medians(|sample| &sample.requests),
            seconds: Until::ALL.into_iter().filter_map(|until| Some((until, seconds(until)?))).collect(),
            cpu_ms: medians(|sample| &sample.cpu),
            speed: rate(way.ours()).zip(rate(way)).map(|(ours, this)| this / ours),
        })
    }

    fn title(&self) -> String {
        format!("{}{}", self.way.title(), self.binder.suffix())
    }
}

impl Burst {
    /// Evaluates the samples. Ways without samples are left out.
    pub fn new(samples: &[BurstSample]) -> Self {
        let runs = samples.iter().map(|sample| sample.run).max().unwrap_or_default();
        let of_binder = |binder| Way::ALL.into_iter().filter_map(move |way| BurstFigure::of(way, binder, samples));
        let figures = Binder::ALL.into_iter().flat_map(of_binder).collect();
        let comparisons: Vec<_> = GOALS.iter().filter_map(|goal| Comparison::of(goal, samples)).collect();
        let violations = comparisons.iter().flat_map(Comparison::violations).collect();
        let without_quota = samples.iter().find_map(|sample| sample.without_quota.clone());
        Self { runs, figures, comparisons, without_quota, violations }
    }
}

impl BurstSample {
    /// Rate as a whole number, so that a median can be computed.
    fn claims_per_1000_seconds(&self, until: Until) -> Option<u64> {
        self.times.get(&until).map(|milliseconds| u64::from(self.claims) * 1_000_000 / (*milliseconds).max(1))
    }

    fn requests_per_1000_claims(&self) -> u64 {
        requests::counted(&self.requests) * 1000 / u64::from(self.claims.max(1))
    }
}

impl fmt::Display for Burst {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let none = || "–".to_owned();
        writeln!(f, "Claims at once; medians of {} interleaved runs", self.runs)?;
        match &self.without_quota {
            None => writeln!(f, "The directory of each volume has a project quota.")?,
            Some(reason) => writeln!(f, "NO project quotas, a file in each directory has the limit: {reason}")?,
        }
        let heads = ["", "claims", "requests a claim", "flushes a claim"].map(String::from).into_iter();
        let heads = heads.chain(Until::ALL.map(|until| format!("s to {}", until.title()))).chain(["speed".to_owned()]);
        let rows = self.figures.iter().map(|figure| {
            let start = [
                figure.title(),
                figure.claims.to_string(),
                number(figure.requests.median),
                number(figure.flushes.median),
            ];
            let seconds = Until::ALL.map(|until| figure.seconds.get(&until).map_or_else(none, spread));
            let speed = figure.speed.map(|speed| format!("{speed:.3}")).unwrap_or_default();
            start.into_iter().chain(seconds).chain([speed]).collect::<Vec<_>>()
        });
        writeln!(f, "\n{}", Table::new(heads.collect(), rows.collect()))?;
        let list = |what: &str, counts: fn(&BurstFigure) -> &BTreeMap<String, f64>| {
            let rows = self.figures.iter().filter(|figure| !counts(figure).is_empty());
            let rows = rows.map(|figure| vec![figure.title(), requests::list(counts(figure))]);
            Table::new(vec![what.into(), String::new()], rows.collect())
        };
        writeln!(f, "\n{}", list("which requests a claim", |figure| &figure.by_name))?;
        writeln!(f, "\n{}", list("CPU milliseconds a claim", |figure| &figure.cpu_ms))?;
        let heads = ["the node, compared with", "times as fast", "limit", "requests", "limit"].map(String::from);
        let rows = self.comparisons.iter().map(|comparison| {
            vec![
                comparison.title(),
                spread(&comparison.speed),
                comparison.speed_at_least.map_or_else(none, |limit| format!("≥ {limit}")),
                spread(&comparison.requests),
                comparison.requests_at_most.map_or_else(none, |limit| format!("≤ {limit}")),
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
        BurstSample {
            way,
            binder: Binder::Stopped,
            run,
            claims: 100,
            requests: BTreeMap::from([("create persistentvolumes".to_owned(), 100)]),
            flushes: 50,
            times: BTreeMap::from([(Until::LastPv, milliseconds)]),
            cpu: BTreeMap::from([("etcd".to_owned(), 250)]),
            without_quota: None,
        }
    }

    fn library(run: u32, milliseconds: u64) -> BurstSample {
        let requests = BTreeMap::from([("create events".to_owned(), 200), ("watch persistentvolumes".to_owned(), 9)]);
        BurstSample { requests, ..sample(Way::Library, run, milliseconds) }
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
        assert!((burst.figures[0].cpu_ms["etcd"] - 2.5).abs() < f64::EPSILON);
        assert!((burst.figures[1].seconds[&Until::LastPv].median - 4.0).abs() < f64::EPSILON);
    }

    #[test]
    fn no_samples_give_no_figure() {
        let none = Burst { runs: 0, figures: vec![], comparisons: vec![], without_quota: None, violations: vec![] };
        assert_eq!(Burst::new(&[]), none);
    }

    #[test]
    fn a_burst_without_quotas_is_reported() {
        let with_quota = sample(Way::Ours, 1, 1000);
        let without_quota = BurstSample { without_quota: Some("no XFS".to_owned()), ..with_quota.clone() };
        assert!(Burst::new(&[with_quota]).to_string().contains("each volume has a project quota"));
        let burst = Burst::new(&[without_quota]).to_string();
        assert!(burst.contains("NO project quotas, a file in each directory has the limit: no XFS\n"), "{burst}");
    }

    #[test]
    fn the_library_is_compared_in_each_run() {
        let burst = |milliseconds| {
            Burst::new(&[1, 2, 3].map(|run| [sample(Way::Ours, run, 1000), library(run, milliseconds)]).concat())
        };
        let fast = burst(2000);
        assert_eq!(fast.violations, Vec::<String>::new());
        assert!((fast.comparisons[0].speed.median - 2.0).abs() < 0.01);
        assert!((fast.comparisons[0].requests.median - 0.5).abs() < 0.01);
        let slow = burst(1470);
        let missed = "compared with API server: (baseline: library, 4 workers), until the last PV: 1.47 times as fast, \
                      the limit is 1.5";
        assert_eq!(slow.violations, [missed]);
        assert!(slow.to_string().ends_with("1 of the limits do NOT hold.\n"), "{slow}");
    }

    #[test]
    fn a_time_until_claims_are_bound_is_compared_without_a_limit() {
        let bound = |sample: BurstSample, milliseconds| {
            let times = BTreeMap::from([(Until::LastBound, milliseconds)]);
            BurstSample { binder: Binder::Running, times, ..sample }
        };
        let burst = Burst::new(&[bound(sample(Way::Ours, 1, 0), 2000), bound(library(1, 0), 2200)]);
        let [only] = burst.comparisons.as_slice() else { panic!("{burst:?}") };
        assert_eq!((only.until, only.binder, only.speed_at_least), (Until::LastBound, Binder::Running, None));
        assert!((only.speed.median - 1.1).abs() < 0.01, "{only:?}");
        assert_eq!(burst.violations, Vec::<String>::new());
        assert!(burst.to_string().contains("while claims are bound, until the last bound claim"), "{burst}");
    }

    #[test]
    fn a_sample_is_the_same_after_its_way_as_json() {
        let sample = sample(Way::LimitedLibrary, 2, 9);
        let text = serde_json::to_string(&sample).unwrap();
        assert_eq!(serde_json::from_str::<BurstSample>(&text).unwrap(), sample, "{text}");
    }
}
