//! A history, its log of writes, and cuts of it.

use std::fmt;
use std::thread;
use std::time::{Duration, Instant};

use ktest_support::replay::{Cut, Recorder, Replay, Restored, Tearing};

use crate::check;
use crate::facts::Facts;
use crate::history::{History, Operation};
use crate::model::{self, Progress, begin, end};
use crate::node::Node;
use crate::random::Random;
use crate::reconcile::{next_tenants, reconcile};
use crate::violation::Violation;

/// Operations of a history.
pub const OPERATIONS: usize = 30;

/// Points of one history: enough to pass each of its operations.
pub const POINTS: usize = 50;

const OPTIONS: &str = "prjquota";

/// What the recorded disk does with flushes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flushes {
    /// What disks do.
    Kept,
    /// It ignores them: whatever was promised can be lost. Where XFS itself finds that it is broken, the point is
    /// passed over: that says nothing of the volumes.
    Dropped,
}

/// One history, cut at some points.
#[derive(Clone, Copy, Debug)]
pub struct Experiment {
    /// Decides the history and the points.
    pub seed: u64,
    /// How many points.
    pub points: usize,
    /// What the disk does with flushes.
    pub flushes: Flushes,
    /// How long shorter histories are tried after a failure.
    pub patience: Duration,
}

/// An invariant was broken.
#[derive(Debug)]
pub struct Failure {
    /// What the experiment was made with.
    pub experiment: Experiment,
    /// The shortest history that was found to fail.
    pub history: History,
    /// The number of operations that it was found with.
    pub operations: usize,
    /// Where the power failed; `None` if it did not: an operation failed.
    pub cut: Option<String>,
    /// What was broken.
    pub violation: Violation,
}

/// A violation, and the cut that it was found at.
struct Broken {
    at: Option<Cut>,
    violation: Violation,
}

impl Experiment {
    /// Records the history and looks at every point. Returns the number of points that were looked at.
    ///
    /// # Errors
    /// [`Failure`], with a history as short as patience allows.
    ///
    /// # Panics
    /// As [`Recorder::on_xfs`].
    pub fn run(&self) -> Result<usize, Box<Failure>> {
        let history = History::from_seed(self.seed, OPERATIONS);
        let operations = history.operations().count();
        self.try_history(&history).map_err(|broken| {
            let (history, broken) = self.shorten(history, broken);
            let Broken { at, violation } = *broken;
            let cut = at.map(|cut| cut.to_string());
            Box::new(Failure { experiment: *self, history, operations, cut, violation })
        })
    }

    /// Greedy: goes on with the first shorter history that fails as well. What had not begun at the cut is left out
    /// first.
    fn shorten(&self, history: History, broken: Box<Broken>) -> (History, Box<Broken>) {
        let start = Instant::now();
        let (mut history, mut broken) = (history, broken);
        loop {
            let before = broken.at.as_ref().map(|cut| history.begun(Progress::from_marks(cut.marks()).begun()));
            let before = before.filter(|before| *before != history);
            let fails = |shorter: History| Some((self.try_history(&shorter).err()?, shorter));
            let candidates = before.into_iter().chain(history.shorter());
            let found = candidates.take_while(|_| start.elapsed() < self.patience).find_map(fails);
            let Some((as_well, shorter)) = found else { return (history, broken) };
            (history, broken) = (shorter, as_well);
        }
    }

    fn try_history(&self, history: &History) -> Result<usize, Box<Broken>> {
        let mut replay = self.record(history).map_err(|violation| Box::new(Broken { at: None, violation }))?;
        let cuts = self.cuts(&replay);
        for cut in &cuts {
            let disk = replay.restore(cut);
            match check(&disk, history) {
                Err(violation) if self.flushes == Flushes::Dropped && violation.is_of_xfs() => {}
                checked => checked.map_err(|violation| Box::new(Broken { at: Some(cut.clone()), violation }))?,
            }
        }
        Ok(cuts.len())
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

    /// Half of them lose nothing that was written, the other half anything that was not flushed.
    fn cuts(&self, replay: &Replay) -> Vec<Cut> {
        let mut cuts = Random::from_seed(self.seed).some_of(replay.every_cut(), self.points / 2);
        cuts.extend(replay.lossy_cuts(self.seed, self.points - cuts.len(), Tearing::Sectors));
        cuts.sort_by_key(Cut::position);
        cuts
    }
}

/// Looks at what a power cut left, lets the node start, and looks at what that made of it.
fn check(disk: &Restored<'_>, history: &History) -> Result<(), Violation> {
    let expected = model::expected(history, &Progress::from_marks(disk.cut().marks()));
    let mounted = disk.try_mount(OPTIONS).map_err(Violation::Mount)?;
    let root = mounted.path();
    let left = Facts::look(root)?;
    check::facts(&left, &expected)?;
    check::data(&left, &expected)?;

    let settled = expected.iter().map(|(number, expected)| (*number, expected.reconciled())).collect();
    reconcile(&Node::start(root)?.store, &expected)?;
    let once = Facts::look(root)?;
    check::facts(&once, &settled)?;
    check::data(&once, &settled)?;
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
        writeln!(f, "{violation}")?;
        let mut cause = std::error::Error::source(violation);
        while let Some(error) = cause {
            writeln!(f, "caused by: {error}")?;
            cause = error.source();
        }
        match cut {
            Some(cut) => writeln!(f, "after a {cut}")?,
            None => writeln!(f, "while the power was on")?,
        }
        let found = history.operations().count();
        writeln!(f, "the shortest history that fails, {found} of {operations} operations:\n{history}")?;
        let Experiment { seed, points, .. } = experiment;
        write!(f, "again: bazel run //test/crash -- --seed={seed} --points={points}")
    }
}
