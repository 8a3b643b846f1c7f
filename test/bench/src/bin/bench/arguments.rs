//! The command line.

use std::env;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use clap::{Parser, Subcommand};
use launch::Image;

use crate::image::{PartFile, part_file};

/// Measures the work that parts of Granary cause in the kernel and in the API server.
#[derive(Debug, Parser)]
#[command(name = "bench")]
pub(crate) struct Arguments {
    // Guests and their programs. The build passes all hidden arguments.
    #[arg(long, hide = true)]
    pub(crate) storage_guest: PathBuf,
    #[arg(long, hide = true)]
    pub(crate) io_guest: PathBuf,
    #[arg(long, hide = true)]
    pub(crate) io_program: PathBuf,
    #[arg(long, hide = true)]
    pub(crate) pause_guest: PathBuf,
    #[arg(long, hide = true)]
    pub(crate) soak_guest: PathBuf,
    #[arg(long, hide = true)]
    pub(crate) claims_program: PathBuf,
    #[command(flatten)]
    pub(crate) image: Image,
    /// Files whose size is reported.
    #[arg(long, hide = true, value_parser = part_file)]
    pub(crate) part: Vec<PartFile>,
    /// Prints the figures as JSON alone. By default, JSON is the last line below the table.
    #[arg(long, global = true)]
    pub(crate) json: bool,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// System calls and flushes of project quotas, durable files and loop devices, and the time of a snapshot beside a
    /// copy.
    Storage {
        /// Number of runs; each run measures everything.
        #[arg(long, default_value = "5")]
        runs: NonZeroU32,
        /// Leaves out times, which depend on the machine.
        #[arg(long)]
        counts: bool,
        /// Directory on an XFS of this machine with project quotas. Only times are then measured, there instead of in a
        /// VM. It needs root.
        #[arg(long, value_name = "DIRECTORY", conflicts_with = "counts")]
        directory: Option<PathBuf>,
    },
    /// Requests, flushes and speed of many claims at once, compared with other ways to serve them.
    Burst {
        /// Number of runs; each run measures every way.
        #[arg(long, default_value = "3")]
        runs: NonZeroU32,
        /// Number of claims at once.
        #[arg(long, default_value = "500")]
        claims: NonZeroU32,
    },
    /// Memory and requests of the provisioner with 1,000 PVs, and with 10,000 claims of another driver.
    Scale,
    /// Reads and writes of a block volume's loop device, of its backing file and of a disk, in a VM.
    Io {
        /// Number of runs.
        #[arg(long, default_value = "5")]
        runs: NonZeroU32,
        /// Duration of each measurement in a run.
        #[arg(long, default_value = "1000")]
        milliseconds: NonZeroU32,
        /// Directory on an XFS of this machine. The measurement then runs there instead of in a VM. It needs root, 256
        /// MiB, and the loop driver.
        #[arg(long, value_name = "DIRECTORY")]
        directory: Option<PathBuf>,
    },
    /// Latency of file syncs in a VM, while a pod writes to a block volume on the same disk with and without I/O limits,
    /// and while a snapshot or a clone is copied.
    Neighbour {
        /// Number of runs.
        #[arg(long, default_value = "5")]
        runs: NonZeroU32,
        /// Duration of each measurement in a run.
        #[arg(long, default_value = "2000")]
        milliseconds: NonZeroU32,
    },
    /// Duration for which a snapshot of a volume with many files stops the pods, in a VM.
    Pause {
        /// Number of runs.
        #[arg(long, default_value = "3")]
        runs: NonZeroU32,
        /// Number of files in a volume. The files of 1 MiB need as much space in the temporary directory.
        #[arg(long, default_value = "10000")]
        files: NonZeroU32,
    },
    /// Uses a node in a VM for a long time, and compares its resources at the end with those at the start.
    Soak {
        /// Duration of the test.
        #[arg(long, default_value = "10")]
        minutes: NonZeroU32,
        /// Seed of the random operations.
        #[arg(long, default_value = "1")]
        seed: u64,
    },
    /// Size of the image by part, stages of its boot, and memory of the node's program.
    Image {
        /// Number of boots.
        #[arg(long, default_value = "3")]
        boots: NonZeroU32,
        /// Number of volumes that the node has at the end. In emulation, a hundred volumes take half a minute.
        #[arg(long, default_value = "1000")]
        volumes: u32,
    },
}

/// Resolves a path relative to the user's working directory, because `bazel run` starts programs in another one.
pub(crate) fn from_where_the_person_is(path: &Path) -> PathBuf {
    env::var_os("BUILD_WORKING_DIRECTORY")
        .map_or_else(|| path.to_path_buf(), |directory| Path::new(&directory).join(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_run_at_all_is_wrong_usage() {
        let command = Command::augment_subcommands(clap::Command::new("bench"));
        let error = command.try_get_matches_from(["bench", "storage", "--runs=0"]).unwrap_err();
        assert_eq!(error.exit_code(), 2);
    }
}
