//! Power cuts in the life of volumes. Needs root and three scratch disks.

use std::time::Duration;

use crash::history::{Action, Shape};
use crash::{CONTROL_SEED, Experiment, Flushes, Looked, POINTS, SEEDS};

#[test]
fn whenever_the_power_fails_the_volumes_are_what_the_cluster_wants_after_one_comparison() {
    let mut all = Looked::default();
    for seed in SEEDS {
        let experiment = Experiment { seed, points: POINTS, flushes: Flushes::Kept, patience: Duration::from_secs(60) };
        let Looked { points, lossy, shown } = experiment.run().unwrap_or_else(|failure| panic!("{failure}"));
        all.points += points;
        all.lossy += lossy;
        all.shown.extend(shown);
    }
    let Looked { points, lossy, shown } = all;
    println!("{points} points, {lossy} of them lossy");
    assert!(points >= 100 && lossy * 3 >= points * 2, "{points} points, {lossy} of them lossy");
    let missing: Vec<_> = Shape::ALL
        .into_iter()
        .flat_map(|shape| Action::NAMES.map(|action| (action, shape)))
        .filter(|case| !shown.contains(case))
        .collect();
    assert_eq!(missing, [], "no cut shows these");
}

/// Shows that the checks can fail: what was promised is lost with the flushes. And that a failure is told shortly.
#[test]
fn a_disk_that_drops_flushes_breaks_the_invariants() {
    let patience = Duration::from_secs(5);
    let experiment = Experiment { seed: CONTROL_SEED, points: POINTS, flushes: Flushes::Dropped, patience };
    let failure = experiment.run().expect_err("nothing was lost");
    assert!(failure.cut.is_some() && !failure.violation.is_of_xfs(), "{failure}");
    assert!(failure.history.operations().count() < failure.operations, "{failure}");
    assert!(failure.to_string().contains(&format!("--seed={CONTROL_SEED}")), "{failure}");
}
