//! Runs in the guest: experiments with one seed after the other, until so many points were looked at.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::Parser;
use crash::{Experiment, Flushes, POINTS};

/// Cuts the power at random points of random histories of volumes.
#[derive(Debug, Parser)]
struct Arguments {
    /// How many points are looked at.
    #[arg(long, default_value_t = 100)]
    points: usize,
    /// The first history; the next ones have the seeds that follow. By default another one each time.
    #[arg(long)]
    seed: Option<u64>,
    /// How many seconds shorter histories are looked for after a failure.
    #[arg(long, default_value_t = 600)]
    patience: u64,
}

fn main() -> ExitCode {
    let Arguments { points, seed, patience } = Arguments::parse();
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let (start, mut seed, mut done) = (Instant::now(), seed.unwrap_or_else(now), 0);
    while done < points {
        let points = POINTS.min(points - done);
        let experiment = Experiment { seed, points, flushes: Flushes::Kept, patience: Duration::from_secs(patience) };
        match experiment.run() {
            Ok(looked) => {
                done += looked.points.max(1);
                println!("seed {seed}: {} points hold, {done} in {} s", looked.points, start.elapsed().as_secs());
            }
            Err(failure) => {
                eprintln!("{failure}");
                return ExitCode::FAILURE;
            }
        }
        seed = seed.wrapping_add(1);
    }
    ExitCode::SUCCESS
}
