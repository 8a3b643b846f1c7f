//! `bazel run //test/conformance`: runs Kubernetes' end-to-end tests against two nodes in QEMU.
//!
//! Exit status 0: all selected tests passed. 1: a test failed, or the tests did not run. 2: wrong usage.
#![forbid(unsafe_code)]

mod arguments;
mod e2e;
mod images;
mod output;
#[cfg(test)]
mod pins;
mod registry;
mod report;
mod results;
mod run;
mod selection;
mod test_list;

use crate::arguments::Arguments;
use crate::run::RunError;
use clap::Parser as _;
use std::process::ExitCode;
use tokio::runtime::Runtime;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let tasks = Runtime::new().map_err(RunError::from);
    match tasks.and_then(|tasks| tasks.block_on(run::run(&arguments))) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {}", causes::lines(&*error));
            ExitCode::FAILURE
        }
    }
}
