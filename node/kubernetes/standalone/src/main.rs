//! `granary-storage`: see the crate `standalone`.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    standalone::program::run(std::env::args_os())
}
