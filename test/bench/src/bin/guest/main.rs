//! Measures in the guest: `guest measure` prints samples, one JSON message per line. For each sample it starts
//! itself again as `guest call`, which makes one operation under its eyes.
#![forbid(unsafe_code)]

mod call;
mod cgroup;
mod control;
mod files;
mod io;
mod loops;
mod measure;
mod names;
mod neighbour;
mod pause;
mod publishes;
mod quota;
mod region;
mod snapshots;
mod tracer;
mod volumes;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use bench::Operation;
use clap::{Parser, Subcommand};

use crate::call::CallError;
use crate::cgroup::Place;

#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

/// `bench` gives all arguments of the measurements; see there.
#[derive(Debug, Subcommand)]
enum Command {
    Measure {
        #[arg(long)]
        runs: u32,
    },
    Burst {
        #[arg(long)]
        runs: u32,
        #[arg(long)]
        claims: u32,
    },
    Io {
        #[arg(long)]
        runs: u32,
        #[arg(long)]
        milliseconds: u64,
        #[arg(long)]
        directory: Option<PathBuf>,
    },
    Neighbour {
        #[arg(long)]
        runs: u32,
        #[arg(long)]
        milliseconds: u64,
    },
    /// Writes to a device and syncs it.
    Tenant(Place),
    Pause {
        #[arg(long)]
        runs: u32,
        #[arg(long)]
        files: u32,
    },
    /// Writes to a file.
    Pod(Place),
    /// Thaws the cgroup of a pod.
    Guard,
    /// Makes one operation, traced by its parent.
    Call {
        operation: Operation,
        /// Where the file system is mounted.
        #[arg(long)]
        directory: PathBuf,
        /// How many projects or devices exist, or how many extents the image has.
        #[arg(long)]
        present: u32,
    },
    /// Makes system calls whose number is known, traced by its parent.
    Control,
}

fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Command::Measure { runs } => measure::all(runs),
        Command::Burst { runs, claims } => measure::burst(runs, claims),
        Command::Io { runs, milliseconds, directory: None } => io::measure_in_vm(runs, milliseconds),
        Command::Io { runs, milliseconds, directory: Some(directory) } => {
            io::measure_in(&directory, runs, milliseconds)
        }
        Command::Neighbour { runs, milliseconds } => neighbour::measure(runs, Duration::from_millis(milliseconds)),
        Command::Tenant(place) => neighbour::write(&place),
        Command::Pause { runs, files } => pause::measure(runs, files),
        Command::Pod(place) => pause::write(&place),
        Command::Guard => return freezer::guard(),
        Command::Call { operation, directory, present } => call::make(operation, &directory, present),
        Command::Control => control::make().map_err(CallError::from),
    };
    let Err(error) = done else { return ExitCode::SUCCESS };
    eprintln!("error: {}", causes::lines(&*error));
    ExitCode::FAILURE
}
