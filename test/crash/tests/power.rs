//! Power cuts in the life of volumes. Needs root and three scratch disks.

use std::time::Duration;

use crash::{Experiment, Flushes, POINTS};

#[test]
fn whenever_the_power_fails_the_volumes_are_what_the_cluster_wants_after_one_comparison() {
    let looked: usize = (1..=2)
        .map(|seed| Experiment { seed, points: POINTS, flushes: Flushes::Kept, patience: Duration::from_secs(60) })
        .map(|experiment| experiment.run().unwrap_or_else(|failure| panic!("{failure}")))
        .sum();
    assert!(looked >= 100, "only {looked} points");
}

/// Shows that the checks can fail: what was promised is lost with the flushes. And that a failure is told shortly.
#[test]
fn a_disk_that_drops_flushes_breaks_the_invariants() {
    let experiment =
        Experiment { seed: 3, points: POINTS, flushes: Flushes::Dropped, patience: Duration::from_secs(10) };
    let failure = experiment.run().expect_err("nothing was lost");
    assert!(failure.cut.is_some() && !failure.violation.is_of_xfs(), "{failure}");
    assert!(failure.history.operations().count() < failure.operations, "{failure}");
    assert!(failure.to_string().contains("--seed=3"), "{failure}");
}
