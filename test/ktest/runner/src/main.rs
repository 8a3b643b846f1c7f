//! Runs a test program as the payload of a VM, and tells Bazel what came of it.
//!
//! The rule `ktest` gives the file named by `KTEST_CONFIG`; arguments go on to the test program.
#![forbid(unsafe_code)]

mod bazel;
mod config;
mod guest;
mod libtest;
mod report;
mod scratch;
mod verdict;

use std::env;
use std::error::Error;
use std::fs::File;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use crate::bazel::Bazel;
use crate::config::Config;
use crate::guest::Guest;
use crate::verdict::Verdict;

/// Why no verdict could be given.
#[derive(Debug, thiserror::Error)]
enum RunError {
    #[error("cannot read the configuration of the test")]
    Config(#[from] config::ConfigError),
    #[error("there is no QEMU to run the test in")]
    Find(#[from] qemu::FindError),
    #[error("cannot run the guest")]
    Guest(#[from] guest::GuestError),
    #[error("cannot write the report {path}")]
    Report {
        path: PathBuf,
        #[source]
        source: report::ReportError,
    },
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            let mut cause = error.source();
            while let Some(error) = cause {
                eprintln!("caused by: {error}");
                cause = error.source();
            }
            ExitCode::FAILURE
        }
    }
}

/// Did the test pass?
fn run() -> Result<bool, RunError> {
    let start = Instant::now();
    let bazel = Bazel::from_environment();
    let config = Config::read()?;
    let arguments = bazel.arguments(env::args().skip(1));
    let program = qemu::Program::find()?;
    let accelerator = qemu::Accelerator::probe(&program);
    println!("{}: QEMU {}, {accelerator}", config.name, program.version());

    let guest = Guest::start(&program, accelerator, &config, &bazel)?;
    let heard = guest.run(&config, &arguments, start + bazel.limit())?;
    let results = libtest::parse(&heard.stdout);
    let verdict = Verdict::new(&heard.end, &results, &arguments);
    if let Some(path) = &bazel.xml {
        let written = File::create(path)
            .map_err(report::ReportError::Create)
            .and_then(|file| report::write(file, &config.name, &results, &verdict, start.elapsed()));
        written.map_err(|source| RunError::Report { path: path.clone(), source })?;
    }
    if verdict != Verdict::Passed {
        show_console(&guest);
        eprintln!("{}: {verdict}", config.name);
    }
    Ok(verdict == Verdict::Passed)
}

/// To standard error: what the kernel complained of may explain a failure.
fn show_console(guest: &Guest) {
    eprintln!("---- console of the guest ----");
    match guest.console() {
        Ok(lines) => lines.iter().for_each(|line| eprintln!("{line}")),
        Err(error) => eprintln!("(cannot be read: {error})"),
    }
    eprintln!("---- end of the console ----");
}
