//! `bazel run //test/bench -- storage`, `burst`, `scale`, `io`, `neighbour`, `pause`, `soak` or `image`: measures and
//! prints figures.
//!
//! Exit status 0: all limits hold. 1: a limit does not hold, or the measurement failed. 2: wrong usage.
#![forbid(unsafe_code)]

mod arguments;
mod guest;
mod image;

use std::error::Error;
use std::fmt::Display;
use std::io::{self, Write};
use std::num::NonZeroU32;
use std::path::Path;
use std::process::ExitCode;

use bench::{
    Burst, BurstSample, ImageReport, IoReport, IoSample, NeighbourReport, NeighbourSample, PauseReport, PauseSample,
    Progress, Report, ScaleReport, ScaleSample, TimeReport, TimeSample,
};
use clap::Parser;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::arguments::{Arguments, Command};
use crate::guest::GuestError;

/// Error that is only printed.
type BenchError = Box<dyn Error + Send + Sync>;

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {}", causes::lines(&*error));
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Arguments) -> Result<bool, BenchError> {
    match arguments.command {
        Command::Storage { runs, directory: Some(directory), .. } => {
            let directory = arguments::from_where_the_person_is(&directory);
            let command = ["times".to_owned(), runs.to_string(), directory.display().to_string()];
            let samples = rounds(&arguments.io_program, &command, runs, |sample: &TimeSample| sample.run)?;
            print(&TimeReport::new(&samples), &[""; 0], arguments.json)
        }
        Command::Storage { runs, counts, directory: None } => {
            let measured = guest::measure(&arguments.storage_guest, runs.get(), !counts)?;
            let report = Report::new(measured.kernel, &measured.samples, &measured.times)?;
            print(&report, &report.violations, arguments.json)
        }
        Command::Burst { runs, claims } => {
            let command = ["burst".to_owned(), runs.to_string(), claims.to_string()];
            let mut samples: Vec<BurstSample> = guest::samples(&arguments.claims_program, &command, |_| {})?;
            samples.extend(rounds(&arguments.storage_guest, &command, runs, |sample: &BurstSample| sample.run)?);
            let report = Burst::new(&samples);
            print(&report, &report.violations, arguments.json)
        }
        Command::Scale => {
            let samples: Vec<ScaleSample> = guest::samples(&arguments.claims_program, &["scale".to_owned()], |_| {})?;
            let report = ScaleReport::new(&samples);
            print(&report, &report.violations, arguments.json)
        }
        Command::Io { runs, milliseconds, directory } => {
            let mut command = vec!["io".to_owned(), runs.to_string(), milliseconds.to_string()];
            let program = match &directory {
                None => &arguments.io_guest,
                Some(directory) => {
                    let directory = arguments::from_where_the_person_is(directory);
                    command.push(directory.display().to_string());
                    &arguments.io_program
                }
            };
            let report = IoReport::new(&rounds(program, &command, runs, |sample: &IoSample| sample.run)?);
            print(&report, &report.violations, arguments.json)
        }
        Command::Neighbour { runs, milliseconds } => {
            let command = ["neighbour".to_owned(), runs.to_string(), milliseconds.to_string()];
            let samples = rounds(&arguments.io_guest, &command, runs, |sample: &NeighbourSample| sample.run)?;
            let report = NeighbourReport::new(&samples);
            print(&report, &report.violations, arguments.json)
        }
        Command::Pause { runs, files } => {
            let command = ["pause".to_owned(), runs.to_string(), files.to_string()];
            let samples = rounds(&arguments.pause_guest, &command, runs, |sample: &PauseSample| sample.run)?;
            let report = PauseReport::new(&samples);
            print(&report, &report.violations, arguments.json)
        }
        Command::Soak { .. } if arguments.json => Err("soak has no figures; leave out --json".into()),
        Command::Soak { minutes, seed } => {
            let arguments_of_guest = ["soak", &format!("--minutes={minutes}"), &format!("--seed={seed}")];
            Ok(guest::command(&arguments.soak_guest).args(arguments_of_guest).status()?.success())
        }
        Command::Image { boots, volumes } => {
            let parts = image::weigh(&arguments.part)?;
            let tasks = tokio::runtime::Runtime::new()?;
            let (mut kind, mut samples) = (String::new(), Vec::new());
            for boot in 1..=boots.get() {
                eprintln!("boot {boot} of {boots}");
                let progress = Progress::default();
                let run = image::boot(arguments.image.clone(), volumes, |step| progress.show(step));
                let (accelerator, sample) = tasks.block_on(run)?;
                kind = accelerator;
                samples.push(sample);
            }
            let report = ImageReport::new(kind, parts, &samples);
            print(&report, &report.violations, arguments.json)
        }
    }
}

/// Returns the samples of a guest that measures `runs` times. Shows the current run on a terminal.
fn rounds<T: DeserializeOwned>(
    program: &Path,
    command: &[String],
    runs: NonZeroU32,
    run: fn(&T) -> u32,
) -> Result<Vec<T>, GuestError> {
    let progress = Progress::default();
    progress.show("starting the measurement");
    guest::samples(program, command, |sample| progress.show(&format!("run {} of {runs}", run(sample))))
}

/// Prints a report and its violations. Returns whether all limits hold.
fn print(report: &(impl Serialize + Display), violations: &[impl Display], is_json: bool) -> Result<bool, BenchError> {
    // A report contains only numbers and text, so it always has a JSON form.
    let text = serde_json::to_string(report)?;
    let mut out = io::stdout().lock();
    if !is_json {
        writeln!(out, "{report}")?;
    }
    writeln!(out, "{text}")?;
    for violation in violations {
        eprintln!("error: {violation}");
    }
    Ok(violations.is_empty())
}
