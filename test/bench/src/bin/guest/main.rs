//! Measures in the guest. `guest measure` prints samples, one JSON message per line. For each sample it starts itself
//! again as `guest call`, traces this process, and counts the system calls of one operation.
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

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use bench::Operation;
use clap::Parser;

use crate::call::CallError;
use crate::cgroup::Place;

/// `bench` and this program pass all arguments.
#[derive(Debug, Parser)]
enum Command {
    /// Counts the system calls and flushes of each operation.
    Measure {
        runs: u32,
        /// Also times snapshots, clones and copies.
        #[arg(long)]
        times: bool,
    },
    /// Times snapshots, clones and copies in a directory of this machine.
    Times { runs: u32, directory: PathBuf },
    /// Serves many claims at once on a disk, without an API server.
    Burst { runs: u32, claims: u32 },
    /// Measures reads and writes in the VM, or in a directory of this machine.
    Io { runs: u32, milliseconds: u64, directory: Option<PathBuf> },
    /// Syncs files while a tenant writes, or while a volume is copied.
    Neighbour { runs: u32, milliseconds: u64 },
    /// Writes to a device and syncs it.
    Tenant(Place),
    /// Takes snapshots of volumes with many files.
    Pause { runs: u32, files: u32 },
    /// Writes to a file.
    Pod(Place),
    /// Thaws the cgroup of a pod.
    Guard,
    /// Calls one operation in the file system at `directory`, traced by its parent. `present` is the number of existing
    /// projects or devices, or of the image's extents.
    Call { operation: Operation, directory: PathBuf, present: u32 },
    /// Makes a fixed number of system calls, traced by its parent.
    Control,
}

fn main() -> ExitCode {
    let done = match Command::parse() {
        Command::Measure { runs, times } => measure::all(runs, times),
        Command::Times { runs, directory } => snapshots::time_in(&directory, runs),
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
    causes::exit_code(done.map_err(|error| error as Box<dyn Error>))
}
