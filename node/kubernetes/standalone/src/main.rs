//! `granary-storage`: the storage of a node, in a pod.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    standalone::program::run(std::env::args_os())
}
