//! [`ScaleReport`]: memory and requests of a provisioner by the number of PVs and of other drivers' claims.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::requests;
use crate::statistics::Spread;
use crate::table::{Table, number, spread, verdict};

/// Measurement of one state of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScaleSample {
    /// PVs of the node.
    pub own: u32,
    /// Claims of another driver.
    pub foreign: u32,
    /// Proportional share of memory (PSS) of the process, in bytes.
    pub pss: u64,
    /// Number of claims that were created, and then deleted, in this state.
    pub batch: u32,
    /// Requests during the creation, by verb and resource.
    pub claims: BTreeMap<String, u64>,
    /// Requests during the deletion, by verb and resource.
    pub deletions: BTreeMap<String, u64>,
    /// Number of requests that name each PV of the batch. Requests for events and lists name no PV.
    pub of_pvs: Vec<u64>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ScaleReport {
    pub figures: Vec<ScaleFigure>,
    /// Figures that exceed a limit.
    pub violations: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ScaleFigure {
    pub own: u32,
    pub foreign: u32,
    pub pss: u64,
    pub memory_limit: u64,
    pub requests_of_claim: f64,
    /// Number of requests that name the PV. Some PVs need more requests, because other components write to them at the
    /// same time.
    pub requests_of_deletion: Spread,
    /// Mean number of all requests during the deletion, per PV.
    pub requests_while_deleted: f64,
    /// Requests by verb and resource.
    pub claim: BTreeMap<String, f64>,
    pub deletion: BTreeMap<String, f64>,
}

/// The goals are in decimal units.
const MB: u64 = 1_000_000;

const OF_CLAIM: f64 = 2.0;
const OF_DELETION: f64 = 3.0;

/// Each claim's share of the few lists that happen at the same time.
const TOLERANCE: f64 = 0.05;

impl ScaleReport {
    pub fn new(samples: &[ScaleSample]) -> Self {
        let figures: Vec<_> = samples.iter().map(ScaleFigure::of).collect();
        let violations = figures.iter().flat_map(|figure| figure.violations(&figures)).collect();
        Self { figures, violations }
    }
}

impl ScaleFigure {
    fn of(sample: &ScaleSample) -> Self {
        let ScaleSample { own, foreign, pss, batch, claims, deletions, of_pvs } = sample;
        let each = |count: u64| each(count, *batch);
        let by_name = |requests: &BTreeMap<String, u64>| {
            requests.iter().map(|(name, count)| (name.clone(), each(*count))).collect()
        };
        Self {
            own: *own,
            foreign: *foreign,
            pss: *pss,
            memory_limit: if *foreign == 0 { 25 * MB } else { 60 * MB },
            requests_of_claim: each(requests::counted(claims)),
            requests_of_deletion: Spread::of(of_pvs.iter().copied(), 1).unwrap_or(Spread::ZERO),
            requests_while_deleted: each(requests::counted(deletions)),
            claim: by_name(claims),
            deletion: by_name(deletions),
        }
    }

    fn state(&self) -> String {
        format!("{} own PVs, {} foreign claims", self.own, self.foreign)
    }

    fn violations(&self, all: &[Self]) -> Vec<String> {
        let memory = (self.pss > self.memory_limit)
            .then(|| format!("{} MB of memory, the limit is {}", megabytes(self.pss), megabytes(self.memory_limit)));
        let least = |of: fn(&Self) -> f64| all.iter().map(of).fold(f64::INFINITY, f64::min);
        let requests = |of: fn(&Self) -> f64, what: &str, limit: f64| {
            let (count, least) = (of(self), least(of));
            let exceeds = (count > limit + TOLERANCE)
                .then(|| format!("{} requests of a {what}, the limit is {limit}", number(count)));
            let grows = (count > least + TOLERANCE)
                .then(|| format!("{} requests of a {what}, in another state {}", number(count), number(least)));
            exceeds.or(grows)
        };
        let claim = requests(|figure| figure.requests_of_claim, "claim", OF_CLAIM);
        let deletion = requests(|figure| figure.requests_of_deletion.median, "deletion", OF_DELETION);
        let named = |missed| format!("with {}: {missed}", self.state());
        [memory, claim, deletion].into_iter().flatten().map(named).collect()
    }
}

/// Counts are far below 2^52, so the conversion is exact.
#[expect(clippy::cast_precision_loss, reason = "a batch causes some thousand requests")]
fn each(count: u64, batch: u32) -> f64 {
    count as f64 / f64::from(batch.max(1))
}

#[expect(clippy::cast_precision_loss, reason = "one decimal is shown")]
fn megabytes(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / MB as f64)
}

impl fmt::Display for ScaleReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "Memory (PSS) of the provisioner's process, and its requests to the API server\n")?;
        let heads =
            ["", "memory in MB", "limit", "requests of a claim", "limit", "of a deletion", "limit", "mean with events"]
                .map(String::from);
        let rows = self.figures.iter().map(|figure| {
            vec![
                figure.state(),
                megabytes(figure.pss),
                format!("≤ {}", megabytes(figure.memory_limit)),
                number(figure.requests_of_claim),
                format!("≤ {OF_CLAIM}"),
                spread(&figure.requests_of_deletion),
                format!("≤ {OF_DELETION}"),
                number(figure.requests_while_deleted),
            ]
        });
        writeln!(f, "{}", Table::new(heads.into(), rows.collect()))?;
        let names = self.figures.iter().flat_map(|figure| {
            [("a claim", &figure.claim), ("a deletion", &figure.deletion)]
                .map(|(what, each)| vec![format!("{}: {what}", figure.state()), requests::list(each)])
        });
        writeln!(f, "\n{}", Table::new(vec!["which requests".into(), String::new()], names.collect()))?;
        verdict(f, "limits", self.violations.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(own: u32, foreign: u32, megabytes: u64, lists: u64) -> ScaleSample {
        let requests = |events| {
            BTreeMap::from([
                ("create events".to_owned(), events),
                ("list persistentvolumes".to_owned(), lists),
                ("watch persistentvolumes".to_owned(), 7),
            ])
        };
        let of_pvs = [vec![2; 60], vec![9; 40]].concat();
        let (pss, batch, claims, deletions) = (megabytes * MB, 100, requests(200), requests(300));
        ScaleSample { own, foreign, pss, batch, claims, deletions, of_pvs }
    }

    #[test]
    fn limits_hold_with_a_list_in_between() {
        let report = ScaleReport::new(&[sample(0, 0, 9, 0), sample(1000, 0, 25, 1), sample(1000, 10_000, 60, 0)]);
        assert_eq!(report.violations, Vec::<String>::new());
        assert!(report.to_string().ends_with("All limits hold: all as promised.\n"));
    }

    #[test]
    fn memory_and_requests_that_exceed_a_limit_are_named() {
        let report = ScaleReport::new(&[sample(0, 0, 9, 0), sample(1000, 0, 26, 10)]);
        assert_eq!(
            report.violations,
            [
                "with 1000 own PVs, 0 foreign claims: 26.0 MB of memory, the limit is 25.0",
                "with 1000 own PVs, 0 foreign claims: 2.1 requests of a claim, the limit is 2",
            ]
        );
    }

    #[test]
    fn requests_that_grow_with_the_number_of_pvs_are_named() {
        let one = ScaleSample { claims: BTreeMap::from([("create events".into(), 100)]), ..sample(0, 0, 9, 0) };
        let report = ScaleReport::new(&[one, sample(1000, 0, 9, 0)]);
        let missed = "with 1000 own PVs, 0 foreign claims: 2 requests of a claim, in another state 1";
        assert_eq!(report.violations, [missed]);
        let more = ScaleSample { of_pvs: vec![3; 100], ..sample(1000, 0, 9, 0) };
        let most = ScaleSample { of_pvs: vec![4; 100], ..sample(1000, 1, 9, 0) };
        let state = "with 1000 own PVs, ";
        assert_eq!(
            ScaleReport::new(&[sample(0, 0, 9, 0), more, most]).violations,
            [
                format!("{state}0 foreign claims: 3 requests of a deletion, in another state 2"),
                format!("{state}1 foreign claims: 4 requests of a deletion, the limit is 3"),
            ]
        );
    }
}
