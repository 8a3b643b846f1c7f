//! Experiments: a history, the log of its writes, and cuts of the log.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use ktest_support::replay::{Cut, Recorder, Replay, Restored, Tearing};

use crate::check;
use crate::choice;
use crate::data;
use crate::facts::Facts;
use crate::history::History;
use crate::model::{self, Expected, Progress, begin, end};
use crate::node::Node;
use crate::operation::{Case, Number, Operation};
use crate::random::Random;
use crate::reconcile::{next_tenants, reconcile};
use crate::violation::Violation;

/// Number of operations in a random history, not counting the operations on thin snapshots that are added to it.
pub const OPERATIONS: usize = 36;

/// Number of points of one history: enough to interrupt each of its operations.
pub const POINTS: usize = 48;

/// Seeds of the histories in each run of the tests. Together, these histories have each action on each kind of volume.
pub const SEEDS: [u64; 4] = [6_495, 20_404, 13_946, 19_765];

/// Seed of the history that runs on a disk that ignores flushes.
pub const CONTROL_SEED: u64 = 26;

/// One of this many points is a cut without lost writes.
const LOSSLESS: usize = 4;

/// Number of random lossy cuts for each one that is chosen.
const DRAWN: usize = 8;

pub(crate) const OPTIONS: &str = "prjquota";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flushes {
    Kept,
    /// The disk ignores flushes, so synced data can be lost. Points at which XFS itself detects damage are skipped,
    /// because they show nothing about the volumes.
    Dropped,
}

/// The history and the points of an experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plan {
    /// Cuts of a random history, as many as `points`.
    Random { seed: u64, points: usize },
    /// A part of all short sequences of operations. A cut at each write that changes the state that XFS recovers.
    Sequences { part: usize },
    /// Sources that are overwritten while they are copied. The same cuts, from the begin of the copy on.
    Rewrites,
}

/// One history, cut at some points.
#[derive(Clone, Copy, Debug)]
pub struct Experiment {
    pub plan: Plan,
    pub flushes: Flushes,
    /// Time limit of the search for shorter histories after a failure.
    pub patience: Duration,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    pub points: usize,
    /// Number of points at which the disk had lost a write.
    pub lossy: usize,
    pub shown: BTreeSet<Case>,
}

/// A violated invariant.
#[derive(Debug)]
pub struct Failure {
    pub experiment: Experiment,
    /// Shortest history that was found to fail.
    pub history: History,
    /// Number of operations of the first history that failed.
    pub operations: usize,
    /// Cut at which a check failed. `None` if an operation failed while the power was on.
    pub cut: Option<String>,
    pub violation: Violation,
}

/// A violation, and the cut at which it was found.
struct Finding {
    at: Option<Cut>,
    violation: Violation,
}

impl Experiment {
    /// Records the history and checks each point. Calls `report` after each point, with the coverage so far and the
    /// number of points.
    pub fn run(&self, report: impl Fn(&Coverage, usize)) -> Result<Coverage, Box<Failure>> {
        let history = match self.plan {
            Plan::Random { seed, .. } => History::from_seed(seed, OPERATIONS),
            Plan::Sequences { part } => History::of_sequences(part),
            Plan::Rewrites => History::of_rewrites(),
        };
        let operations = history.operations().count();
        self.try_history(&history, report).map_err(|finding| {
            let (history, finding) = self.shorten(history, finding);
            let Finding { at, violation } = *finding;
            let cut = at.map(|cut| cut.to_string());
            Box::new(Failure { experiment: *self, history, operations, cut, violation })
        })
    }

    /// Searches for a shorter history greedily: continues with the first one that fails, too. The first candidate is
    /// the history without the operations that had not begun at the cut.
    fn shorten(&self, history: History, finding: Box<Finding>) -> (History, Box<Finding>) {
        let start = Instant::now();
        let (mut history, mut finding) = (history, finding);
        loop {
            let before = finding.at.as_ref().map(|cut| history.begun(Progress::from_marks(cut.marks()).begun()));
            let before = before.filter(|before| *before != history);
            let fails = |shorter: History| Some((self.try_history(&shorter, |_, _| {}).err()?, shorter));
            let candidates = before.into_iter().chain(history.shorter());
            let found = candidates.take_while(|_| start.elapsed() < self.patience).find_map(fails);
            let Some((as_well, shorter)) = found else { return (history, finding) };
            (history, finding) = (shorter, as_well);
        }
    }

    fn try_history(&self, history: &History, report: impl Fn(&Coverage, usize)) -> Result<Coverage, Box<Finding>> {
        let mut replay = self.record(history).map_err(|violation| Box::new(Finding { at: None, violation }))?;
        let mut coverage = Coverage::default();
        let cuts = self.cuts(&replay, history);
        for cut in &cuts {
            coverage.points += 1;
            coverage.lossy += usize::from(cut.is_lossy());
            coverage.shown.extend(Progress::from_marks(cut.marks()).shown(history));
            let disk = replay.restore(cut);
            match check(&disk, history) {
                Err(violation) if self.flushes == Flushes::Dropped && violation.is_of_xfs() => {}
                checked => checked.map_err(|violation| Box::new(Finding { at: Some(cut.clone()), violation }))?,
            }
            report(&coverage, cuts.len());
        }
        Ok(coverage)
    }

    fn record(&self, history: &History) -> Result<Replay, Violation> {
        let recorder = Recorder::on_xfs();
        let mounted = recorder.mount(OPTIONS);
        let node = Node::start(mounted.path())?;
        if self.flushes == Flushes::Dropped {
            recorder.drop_flushes();
        }
        let run = &|(number, operation): (usize, Operation)| {
            recorder.mark(&begin(number));
            let done = node.run(operation);
            recorder.mark(&end(number));
            done
        };
        let together = |round: Vec<_>| -> Result<(), Violation> {
            thread::scope(|scope| {
                let threads: Vec<_> = round.into_iter().map(|one| scope.spawn(move || run(one))).collect();
                threads.into_iter().try_for_each(|thread| thread.join().expect("an operation panicked"))
            })
        };
        let ran = history.rounds().try_for_each(together);
        ran.and(node.end())?;
        drop(mounted);
        Ok(recorder.finish())
    }

    /// Chooses the cuts. For a random history, a cut for each case is chosen first, and most cuts lose writes that were
    /// not flushed.
    fn cuts(&self, replay: &Replay, history: &History) -> Vec<Cut> {
        let (seed, points) = match self.plan {
            Plan::Random { seed, points } => (seed, points),
            Plan::Sequences { .. } => return replay.every_recovered_cut(),
            Plan::Rewrites => return while_sharing(replay.every_recovered_cut(), history),
        };
        let mut random = Random::from_seed(seed);
        let mut shown = BTreeSet::new();
        let mut choose = |cuts: Vec<Cut>, count| {
            let shows = |cut: &Cut| Progress::from_marks(cut.marks()).shown(history);
            choice::of(cuts.into_iter().map(|cut| (shows(&cut), cut)).collect(), count, &mut shown, &mut random)
        };
        let mut lossy = replay.lossy_cuts(seed, points * DRAWN, Tearing::Sectors);
        lossy.retain(Cut::is_lossy);
        let mut cuts = choose(lossy, points - points / LOSSLESS);
        cuts.extend(choose(replay.every_cut(), points - cuts.len()));
        cuts.sort_by_key(Cut::position);
        cuts
    }
}

/// Keeps the cuts at which a copy may share blocks, after its first call.
fn while_sharing(mut cuts: Vec<Cut>, history: &History) -> Vec<Cut> {
    cuts.retain(|cut| {
        let expected = model::expected(history, &Progress::from_marks(cut.marks()));
        expected.values().any(|expected| expected.sharing.is_some() && !expected.is_begun)
    });
    cuts
}

/// Checks the disk as the power cut left it.
pub(crate) fn check_left(root: &Path, expected: &BTreeMap<Number, Expected>) -> Result<(), Violation> {
    let left = Facts::look(root)?;
    let expected = check::exchanged(&left, expected)?;
    check::facts(&left, &expected)?;
    data::check(&left, &expected)
}

/// Checks the disk as the power cut left it, and after a start of the node with a comparison. Another start and
/// comparison must change nothing.
fn check(disk: &Restored<'_>, history: &History) -> Result<(), Violation> {
    let expected = model::expected(history, &Progress::from_marks(disk.cut().marks()));
    let mounted = disk.try_mount(OPTIONS).map_err(Violation::Mount)?;
    let root = mounted.path();
    check_left(root, &expected)?;

    let settled = expected.iter().map(|(number, expected)| (*number, expected.reconciled())).collect();
    let node = Node::start(root)?;
    reconcile(&node.store, &expected)?;
    check::ledger(&node.store, &settled)?;
    drop(node);
    let once = Facts::look(root)?;
    check::facts(&once, &settled)?;
    data::check(&once, &settled)?;
    if let Some(path) = once.rest.first() {
        return Err(Violation::Leftover { path: path.clone() });
    }

    let node = Node::start(root)?;
    reconcile(&node.store, &settled)?;
    if let Some(changed) = once.difference(&Facts::look(root)?) {
        return Err(Violation::NoFixpoint { changed });
    }
    next_tenants(&node.store)
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { experiment, history, operations, cut, violation } = self;
        writeln!(f, "{}", causes::lines(violation))?;
        match cut {
            Some(cut) => writeln!(f, "after a {cut}")?,
            None => writeln!(f, "while the power was on")?,
        }
        let found = history.operations().count();
        writeln!(f, "the shortest history that fails, {found} of {operations} operations:\n{history}")?;
        f.write_str("again: bazel run //test/crash -- ")?;
        match experiment.plan {
            Plan::Random { seed, points } => write!(f, "--seed={seed} --points={points}"),
            Plan::Sequences { part } => write!(f, "--sequences={part} --parts=1"),
            Plan::Rewrites => f.write_str("--rewrites"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::{Shape, every_case};

    fn cases(seed: u64) -> BTreeSet<Case> {
        History::from_seed(seed, OPERATIONS).cases().into_iter().collect()
    }

    #[test]
    fn the_histories_of_every_run_do_everything_to_every_kind_of_volume() {
        let found: BTreeSet<Case> = SEEDS.into_iter().flat_map(cases).collect();
        assert_eq!(found, every_case());
    }

    #[test]
    fn the_history_of_the_control_discards_every_kind_of_volume() {
        let found = cases(CONTROL_SEED);
        for shape in Shape::ALL {
            assert!(found.contains(&("discard", shape)), "{shape:?}");
        }
    }
}
