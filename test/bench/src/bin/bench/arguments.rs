//! The command line.

use std::convert::Infallible;
use std::env;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::{Parser, Subcommand};
use launch::Image;

use crate::image::{PartFile, part_file};

/// Counts what Granary's parts ask of the kernel and of the API server.
#[derive(Debug, Parser)]
#[command(name = "bench")]
pub(crate) struct Arguments {
    // Guests, and programs of them. The build gives hidden arguments.
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
    /// Files to weigh.
    #[arg(long, hide = true, value_parser = part_file)]
    pub(crate) part: Vec<PartFile>,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// System calls and flushes of project quotas, durable files and loop devices, and the time of a snapshot beside a copy.
    Storage {
        /// How often everything is measured.
        #[arg(long, default_value = "5")]
        runs: NonZeroU32,
        /// Leaves out the times, which depend on the machine.
        #[arg(long)]
        counts: bool,
        /// Where the figures go as JSON: a file, or `-` for JSON alone on standard output. Without
        /// it, JSON is the last line below the table.
        #[arg(long, value_name = "FILE|-", default_value = "", hide_default_value = true)]
        json: Json,
    },
    /// Requests, flushes and speed of many claims at once, beside other ways to serve them.
    Burst {
        /// How often each way is measured.
        #[arg(long, default_value = "3")]
        runs: NonZeroU32,
        /// How many claims there are at once.
        #[arg(long, default_value = "500")]
        claims: NonZeroU32,
        /// As for `storage`.
        #[arg(long, value_name = "FILE|-", default_value = "", hide_default_value = true)]
        json: Json,
    },
    /// Memory and requests of the provisioner with many PVs, and with many claims of another driver.
    Scale {
        /// How many PVs the node has.
        #[arg(long, default_value = "1000")]
        own: u32,
        /// How many claims with PVs another driver has.
        #[arg(long, default_value = "10000")]
        foreign: u32,
        /// As for `storage`.
        #[arg(long, value_name = "FILE|-", default_value = "", hide_default_value = true)]
        json: Json,
    },
    /// Reads and writes of a block volume's loop device, of its file and of a disk, in a VM.
    Io {
        /// How often each is measured.
        #[arg(long, default_value = "5")]
        runs: NonZeroU32,
        /// How long each is measured in a run.
        #[arg(long, default_value = "1000")]
        milliseconds: NonZeroU32,
        /// A directory of an XFS of this machine, to measure there instead of in a VM. Needs root, 256 MiB, and the loop driver.
        #[arg(long, value_name = "DIRECTORY")]
        directory: Option<PathBuf>,
        /// As for `storage`.
        #[arg(long, value_name = "FILE|-", default_value = "", hide_default_value = true)]
        json: Json,
    },
    /// Syncs of a file while a pod writes to a block volume on the same disk, with and without limits of its I/O, and while a
    /// snapshot or a clone is copied, in a VM.
    Neighbour {
        /// How often each is measured.
        #[arg(long, default_value = "5")]
        runs: NonZeroU32,
        /// How long each is measured in a run.
        #[arg(long, default_value = "2000")]
        milliseconds: NonZeroU32,
        /// As for `storage`.
        #[arg(long, value_name = "FILE|-", default_value = "", hide_default_value = true)]
        json: Json,
    },
    /// For how long a snapshot of a volume with many files stops the pods, in a VM.
    Pause {
        /// How often each is measured.
        #[arg(long, default_value = "3")]
        runs: NonZeroU32,
        /// How many files a volume has. Those of 1 MiB need as much space in the temporary directory.
        #[arg(long, default_value = "10000")]
        files: NonZeroU32,
        /// As for `storage`.
        #[arg(long, value_name = "FILE|-", default_value = "", hide_default_value = true)]
        json: Json,
    },
    /// Uses a node for long, in a VM, and compares what is left with what was there before.
    Soak {
        /// How long.
        #[arg(long, default_value = "10")]
        minutes: NonZeroU32,
        /// Other operations with each number.
        #[arg(long, default_value = "1")]
        seed: u64,
    },
    /// Netlink messages of the mesh, and their bytes, with 10, 100 and 1,000 nodes.
    Mesh {
        /// As for `storage`.
        #[arg(long, value_name = "FILE|-", default_value = "", hide_default_value = true)]
        json: Json,
    },
    /// Size of the image by part, stages of its boot, and memory of the node's program.
    Image {
        /// How often the image is booted.
        #[arg(long, default_value = "3")]
        boots: NonZeroU32,
        /// How many volumes the node has in the end. In emulation a hundred take half a minute.
        #[arg(long, default_value = "1000")]
        volumes: u32,
        /// As for `storage`.
        #[arg(long, value_name = "FILE|-", default_value = "", hide_default_value = true)]
        json: Json,
    },
}

/// Where the figures go as JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Json {
    BelowTheTable,
    Alone,
    File(PathBuf),
}

impl FromStr for Json {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(match text {
            "" => Self::BelowTheTable,
            "-" => Self::Alone,
            path => Self::File(path.into()),
        })
    }
}

/// Bazel starts programs elsewhere.
pub(crate) fn from_where_the_person_is(path: &Path) -> PathBuf {
    env::var_os("BUILD_WORKING_DIRECTORY")
        .map_or_else(|| path.to_path_buf(), |directory| Path::new(&directory).join(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without the files, which the build gives.
    #[derive(Debug, Parser)]
    struct Measured {
        #[command(subcommand)]
        command: Command,
    }

    fn storage(arguments: &[&str]) -> Result<(u32, Json), clap::Error> {
        match Measured::try_parse_from([&["bench", "storage"], arguments].concat())?.command {
            Command::Storage { runs, json, .. } => Ok((runs.get(), json)),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn json_goes_where_it_is_sent() {
        assert_eq!(storage(&[]).unwrap(), (5, Json::BelowTheTable));
        assert_eq!(storage(&["--json", "-"]).unwrap(), (5, Json::Alone));
        assert_eq!(storage(&["--runs=3", "--json=a.json"]).unwrap(), (3, Json::File("a.json".into())));
    }

    #[test]
    fn no_run_at_all_is_wrong_usage() {
        assert_eq!(storage(&["--runs=0"]).unwrap_err().exit_code(), 2);
    }
}
