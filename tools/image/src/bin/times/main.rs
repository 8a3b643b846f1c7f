//! Prints the durations of the steps of a Bazel run: `times [PROFILE [EVENTS]]`.
//!
//! PROFILE is the output of `--profile`, optionally compressed (`.gz`), and EVENTS the output of
//! `--build_event_json_file`. The default is the output of the last `bazel test` in the workspace. Test logs are read
//! from the paths in the events.
#![forbid(unsafe_code)]

mod events;
mod profile;
mod report;
#[cfg(test)]
mod tests;

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::{env, fs};

use image::files::FileError;

const USAGE: &str = "usage: times [PROFILE [EVENTS]]; without arguments, run it with: bazel run //tools/image:times";

fn main() -> ExitCode {
    causes::exit_code(run())
}

fn run() -> Result<(), Box<dyn Error>> {
    // `bazel run` starts programs in another directory.
    let from = |variable| env::var_os(variable).map(PathBuf::from);
    let arguments: Vec<PathBuf> =
        env::args_os().skip(1).map(|path| from("BUILD_WORKING_DIRECTORY").unwrap_or_default().join(path)).collect();
    let (profile, events) = match (&*arguments, from("BUILD_WORKSPACE_DIRECTORY")) {
        ([], Some(workspace)) => (workspace.join("bazel-profile.json"), Some(workspace.join("bazel-events.json"))),
        ([profile], _) => (profile.clone(), None),
        ([profile, events], _) => (profile.clone(), Some(events.clone())),
        _ => return Err(USAGE.into()),
    };
    let steps = profile::steps(&read(&profile)?).map_err(FileError::of("parse the profile", &profile))?;
    // A later run of the test may have replaced the log.
    let log = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let run = match events {
        None => events::Run::default(),
        Some(path) => events::run(&String::from_utf8_lossy(&read(&path)?), log)
            .map_err(FileError::of("parse the events", &path))?,
    };
    println!("{}\n{}", report::setup(&run, &steps), report::build(&run, &steps));
    if !run.tests.is_empty() {
        println!("{}", report::tests(&run));
    }
    if !run.wall.is_zero() {
        println!("Total: {:.0} s, without the build root and the crate generator.", run.wall.as_secs_f64());
    }
    Ok(())
}

fn read(path: &Path) -> Result<Vec<u8>, FileError> {
    let content = if path.extension().is_some_and(|extension| extension == "gz") {
        Command::new("gzip").arg("-dc").arg(path).output().map(|output| output.stdout)
    } else {
        fs::read(path)
    };
    content.map_err(FileError::of("read (run bazel test first, or give the path)", path))
}
