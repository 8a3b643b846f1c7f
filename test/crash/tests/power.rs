//! Power cuts in the life of volumes. Needs root and three scratch disks.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::resume_unwind;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use crash::omission::{Omission, every_flush};
use crash::operation::{Shape, every_case};
use crash::{CONTROL_SEED, Coverage, Experiment, Flushes, POINTS, Plan, SEEDS};

/// Number of points of each history, 144 in total: as many as a history has operations without those on thin snapshots.
const POINTS_OF_EACH: usize = 36;

/// Number of histories that run at once, each with three disks. The check of a point waits for the kernel more than it
/// computes.
const AT_ONCE: usize = 2;

/// Serializes the tests: one of them forks, and no other thread may unmount a file system meanwhile.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn volumes_are_as_the_cluster_wants_after_any_power_cut() {
    let _turn = turn();
    let coverage = |seed: u64| {
        let plan = Plan::Random { seed, points: POINTS_OF_EACH };
        let experiment = Experiment { plan, flushes: Flushes::Kept, patience: Duration::from_secs(60) };
        experiment.run(|_, _| {}).unwrap_or_else(|failure| panic!("{failure}"))
    };
    let mut all = Coverage::default();
    for seeds in SEEDS.chunks(AT_ONCE) {
        let found: Vec<Coverage> = thread::scope(|scope| {
            let running: Vec<_> = seeds.iter().map(|&seed| scope.spawn(move || coverage(seed))).collect();
            running.into_iter().map(|one| one.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
        });
        for Coverage { points, lossy, shown } in found {
            all.points += points;
            all.lossy += lossy;
            all.shown.extend(shown);
        }
    }
    let Coverage { points, lossy, shown } = all;
    println!("{points} points, {lossy} of them lossy");
    assert!(points >= 100 && lossy * 3 >= points * 2, "{points} points, {lossy} of them lossy");
    let missing: Vec<_> = every_case().into_iter().filter(|case| !shown.contains(case)).collect();
    assert_eq!(missing, [], "no cut shows these");
}

/// Regression: copied blocks were not durable when the source was overwritten in place, and the recovered copy shared
/// the overwritten blocks.
#[test]
fn a_copy_keeps_its_instant_while_its_source_is_written_again() {
    let _turn = turn();
    let experiment = Experiment { plan: Plan::Rewrites, flushes: Flushes::Kept, patience: Duration::from_secs(60) };
    let Coverage { points, shown, .. } = experiment.run(|_, _| {}).unwrap_or_else(|failure| panic!("{failure}"));
    println!("{points} points");
    for shape in [Shape::Thick, Shape::Filesystem] {
        assert!(shown.contains(&("write", shape)), "no cut is within the second write of a {shape}");
    }
}

/// Shows that the checks can fail: without flushes, synced data is lost. Also checks that the report has a shorter
/// history.
#[test]
fn a_disk_that_drops_flushes_breaks_the_invariants() {
    let _turn = turn();
    let plan = Plan::Random { seed: CONTROL_SEED, points: POINTS };
    let experiment = Experiment { plan, flushes: Flushes::Dropped, patience: Duration::from_secs(5) };
    let failure = experiment.run(|_, _| {}).expect_err("nothing was lost");
    assert!(failure.cut.is_some() && !failure.violation.is_of_xfs(), "{failure}");
    assert!(failure.history.operations().count() < failure.operations, "{failure}");
    assert!(failure.to_string().contains(&format!("--seed={CONTROL_SEED}")), "{failure}");
}

/// Each flush of the store: the step, the flush, and whether the checks detect its omission.
const FLUSHES: [(&str, &str, bool); 11] = [
    ("provision", "fdatasync of next-project-id", false), // `//pkg/fsquota:power_ktest` finds it.
    ("provision", "O_DIRECT in pending", true),
    ("provision", "fsync of live", true),
    ("open", "fsync of records", true),
    ("expand", "O_DIRECT in records", true),
    ("expand", "fsync of records", true),
    ("retire", "fsync of trash", true),
    ("restore", "fsync of live", true),
    ("discard", "fsync of records", true),
    ("undo", "fsync of pending", true),
    ("start", "syncfs of volumes", true),
];

#[test]
fn a_single_flush_that_the_store_leaves_out_is_found() {
    let _turn = turn();
    let mut found: BTreeMap<Shape, BTreeSet<(&str, String, bool)>> = BTreeMap::new();
    for Omission { during: (name, shape), flush, violation } in every_flush().unwrap() {
        match &violation {
            Some(violation) => println!("{name} {shape:?} without {flush}: {violation}"),
            None => println!("{name} {shape:?} without {flush}: nothing is missing"),
        }
        found.entry(shape).or_default().insert((name, flush, violation.is_some()));
    }
    let all: BTreeSet<_> = FLUSHES.into_iter().map(|(name, flush, missed)| (name, flush.to_owned(), missed)).collect();
    assert_eq!(found, Shape::ALL.into_iter().map(|shape| (shape, all.clone())).collect());
}
