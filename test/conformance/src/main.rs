//! `bazel run //test/conformance`: runs Kubernetes' end-to-end tests against two nodes in QEMU.
//!
//! Exit status 0: all selected tests passed. 1: a test failed, or the tests did not run. 2: wrong usage.
#![forbid(unsafe_code)]

mod arguments;
mod images;
#[cfg(test)]
mod pins;
mod run;
mod selection;

use crate::arguments::Arguments;
use crate::run::{Outcome, RunError};
use clap::Parser as _;
use std::process::ExitCode;
use tokio::runtime::Runtime;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let outcome = Runtime::new().map_err(RunError::from);
    match outcome.and_then(|tasks| tasks.block_on(run::run(&arguments))) {
        Ok(Outcome::Passed) => ExitCode::SUCCESS,
        Ok(Outcome::Failed) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {}", causes::lines(&*error));
            ExitCode::FAILURE
        }
    }
}
