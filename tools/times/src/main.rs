//! Prints where the time of a Bazel run went: `times [PROFILE [EVENTS]]`.
//!
//! PROFILE is what `--profile` wrote, also compressed (`.gz`), and EVENTS what `--build_event_json_file` wrote. Without
//! arguments, both are those of the last `bazel test` in the workspace. Test logs are read where the events say they are.
#![forbid(unsafe_code)]

mod events;
mod profile;
mod report;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::{env, fs, io};

#[derive(Debug, thiserror::Error)]
enum MainError {
    #[error("usage: times [PROFILE [EVENTS]]; without arguments, run it with: bazel run //tools/times")]
    Usage,
    #[error("cannot read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} is not a complete profile or event file of Bazel", path.display())]
    Format { path: PathBuf, source: serde_json::Error },
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", causes::lines(&error));
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), MainError> {
    // `bazel run` starts programs elsewhere.
    let from = |variable| env::var_os(variable).map(PathBuf::from);
    let arguments: Vec<PathBuf> =
        env::args_os().skip(1).map(|path| from("BUILD_WORKING_DIRECTORY").unwrap_or_default().join(path)).collect();
    let (profile, events) = match (&*arguments, from("BUILD_WORKSPACE_DIRECTORY")) {
        ([], Some(workspace)) => (workspace.join("bazel-profile.json"), Some(workspace.join("bazel-events.json"))),
        ([profile], _) => (profile.clone(), None),
        ([profile, events], _) => (profile.clone(), Some(events.clone())),
        _ => return Err(MainError::Usage),
    };
    let steps = profile::steps(&read(&profile)?).map_err(|source| MainError::Format { path: profile, source })?;
    // A log may be gone: another run of the test has replaced it.
    let log = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let run = match events {
        None => events::Run::default(),
        Some(path) => events::run(&String::from_utf8_lossy(&read(&path)?), log)
            .map_err(|source| MainError::Format { path, source })?,
    };
    println!("{}\n{}", report::setup(&run, &steps), report::build(&run, &steps));
    if !run.tests.is_empty() {
        println!("{}", report::tests(&run));
    }
    if !run.wall.is_zero() {
        println!("All of it took {:.0} s, without the build root and the crate generator.", run.wall.as_secs_f64());
    }
    Ok(())
}

fn read(path: &Path) -> Result<Vec<u8>, MainError> {
    let content = if path.extension().is_some_and(|extension| extension == "gz") {
        Command::new("gzip").arg("-dc").arg(path).output().map(|output| output.stdout)
    } else {
        fs::read(path)
    };
    content.map_err(|source| MainError::Read { path: path.to_owned(), source })
}
