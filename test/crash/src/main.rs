//! Program in the guest. It runs random histories with one seed after the other until enough points are checked, or all
//! short sequences, or histories with sources that are overwritten while they are copied.
#![forbid(unsafe_code)]

use std::num::NonZeroUsize;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::Parser;
use crash::history::History;
use crash::{Coverage, Experiment, Failure, Flushes, POINTS, Plan};
use ktest_support::stderr_is_terminal;

/// Cuts the power at random points of random histories of volumes, or at each point of all short sequences, or of one
/// history.
#[derive(Debug, Parser)]
struct Arguments {
    /// Number of points to check.
    #[arg(long, default_value_t = 100)]
    points: usize,
    /// Seed of the first history; the next histories have the seeds that follow. By default, the current time.
    #[arg(long)]
    seed: Option<u64>,
    /// Checks all sequences of three operations, from this part on. Takes hours.
    #[arg(long, value_name = "PART", num_args = 0..=1, default_missing_value = "0", conflicts_with_all = ["points", "seed"])]
    sequences: Option<usize>,
    /// Number of parts of the sequences. By default, all that follow.
    #[arg(long, requires = "sequences")]
    parts: Option<NonZeroUsize>,
    /// Checks sources that are overwritten while they are copied.
    #[arg(long, conflicts_with_all = ["points", "seed", "sequences"])]
    rewrites: bool,
    /// Number of seconds to search for shorter histories after a failure.
    #[arg(long, default_value_t = 600)]
    patience: u64,
}

fn main() -> ExitCode {
    let Arguments { points, seed, sequences, parts, rewrites, patience } = Arguments::parse();
    let run = Run { start: Instant::now(), patience: Duration::from_secs(patience), is_terminal: stderr_is_terminal() };
    let done = match sequences {
        Some(first) if first >= History::parts() => {
            eprintln!("error: part {first} does not exist; give a number below {}", History::parts());
            return ExitCode::from(2);
        }
        Some(first) => run.sequences(first, parts),
        None if rewrites => run.rewrites(),
        None => run.points(points, seed),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            run.clear();
            eprintln!("{failure}");
            ExitCode::FAILURE
        }
    }
}

/// Number of histories that run at once. Each has three disks.
const WORKERS: usize = 2;

/// Repeats the function in each worker until it returns false or a history fails. Returns a failure when all have ended.
fn at_once(history: impl Fn() -> Result<bool, Box<Failure>> + Sync) -> Result<(), Box<Failure>> {
    let has_failed = AtomicBool::new(false);
    let histories = || -> Result<(), Box<Failure>> {
        loop {
            let is_last = has_failed.load(Relaxed) || !history().inspect_err(|_| has_failed.store(true, Relaxed))?;
            if is_last {
                return Ok(());
            }
        }
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..WORKERS).map(|_| scope.spawn(histories)).collect();
        let ends = workers.into_iter().map(|worker| worker.join().expect("an experiment panicked"));
        ends.fold(Ok(()), Result::and)
    })
}

struct Run {
    start: Instant,
    patience: Duration,
    is_terminal: bool,
}

impl Run {
    fn points(&self, points: usize, seed: Option<u64>) -> Result<(), Box<Failure>> {
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        let seeds = AtomicU64::new(seed.unwrap_or_else(now));
        let (claimed, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
        at_once(|| {
            let before = claimed.fetch_add(POINTS, Relaxed);
            if before >= points {
                return Ok(false);
            }
            let (seed, wanted) = (seeds.fetch_add(1, Relaxed), POINTS.min(points - before));
            let shown = |_, _| format!("{} of {points} points", done.fetch_add(1, Relaxed) + 1);
            let looked = self.run(Plan::Random { seed, points: wanted }, shown)?;
            // A short history has fewer points. A history without points counts as one point, so that the loop ends.
            claimed.fetch_sub(POINTS - looked.clamp(1, POINTS), Relaxed);
            let (done, seconds) = (done.load(Relaxed), self.start.elapsed().as_secs());
            println!("seed {seed}: {looked} points hold, {done} of {points} in {seconds} s");
            Ok(true)
        })?;
        let (done, seconds) = (done.into_inner(), self.start.elapsed().as_secs().max(1));
        println!("{done} points hold in {seconds} s, {} in each minute", done as u64 * 60 / seconds);
        Ok(())
    }

    fn sequences(&self, first: usize, count: Option<NonZeroUsize>) -> Result<(), Box<Failure>> {
        let parts = History::parts();
        let end = count.map_or(parts, |count| parts.min(first.saturating_add(count.get())));
        let (next, points) = (AtomicUsize::new(first), AtomicUsize::new(0));
        at_once(|| {
            let part = next.fetch_add(1, Relaxed);
            if part >= end {
                return Ok(false);
            }
            let shown = |looked, all| format!("part {part} of {parts}: {looked} of {all} points");
            let looked = self.run(Plan::Sequences { part }, shown)?;
            points.fetch_add(looked, Relaxed);
            println!("part {part} of {parts}: {looked} points hold, {} s", self.start.elapsed().as_secs());
            Ok(true)
        })?;
        let (points, seconds) = (points.into_inner(), self.start.elapsed().as_secs());
        println!("parts {first} to {} of {parts}: {points} points hold in {seconds} s", end - 1);
        Ok(())
    }

    fn rewrites(&self) -> Result<(), Box<Failure>> {
        let looked = self.run(Plan::Rewrites, |looked, all| format!("{looked} of {all} points"))?;
        println!("{looked} points hold, {} s", self.start.elapsed().as_secs());
        Ok(())
    }

    /// Returns the number of points that were checked. A terminal shows the progress in a line that is rewritten.
    fn run(&self, plan: Plan, shown: impl Fn(usize, usize) -> String) -> Result<usize, Box<Failure>> {
        let experiment = Experiment { plan, flushes: Flushes::Kept, patience: self.patience };
        let report = |coverage: &Coverage, all| {
            let shown = shown(coverage.points, all);
            if self.is_terminal {
                eprint!("\r{shown}, {} s\x1b[K", self.start.elapsed().as_secs());
            }
        };
        let Coverage { points, .. } = experiment.run(report)?;
        self.clear();
        Ok(points)
    }

    fn clear(&self) {
        if self.is_terminal {
            eprint!("\r\x1b[K");
        }
    }
}
