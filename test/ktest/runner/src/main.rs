//! Runs a program in a VM: a test program, whose results it reports to Bazel, or any other, whose output and status it
//! passes on. A file of the rules `ktest` and `guest_program` describes the VM; arguments go to the program.
#![forbid(unsafe_code)]

mod arguments;
mod bazel;
mod config;
mod disks;
mod guest;
mod libtest;
mod machine;
mod payload;
mod results;
mod scratch;
mod suite;
mod verdict;

use std::env;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use ktest_init::StepError;
use ktest_runner::report;
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::unistd::getppid;

use crate::arguments::Arguments;
use crate::bazel::Bazel;
use crate::config::{Config, Runs};
use crate::guest::End;
use crate::machine::{Machine, Starts};
use crate::verdict::Verdict;

/// Exit status if a program did not run to its end, as `env` and `timeout` have it for their own failures.
const NOT_RUN: u8 = 125;

/// Variable with the ID of the process with which this one ends.
const PARENT: &str = "KTEST_PARENT";

fn main() -> ExitCode {
    match run() {
        Ok(status) => status,
        Err(error) => {
            eprintln!("error: {}", causes::lines(&error));
            ExitCode::from(NOT_RUN)
        }
    }
}

fn run() -> Result<ExitCode, StepError> {
    let start = Instant::now();
    end_with_parent()?;
    let mut arguments = env::args_os();
    let config = Config::read(arguments.next().map(PathBuf::from))?;
    let arguments = arguments.map(|argument| argument.to_string_lossy().into_owned());
    let program = qemu::Program::find().map_err(StepError::of("find QEMU"))?;
    let bazel = Bazel::from_environment();
    let mut machine = Machine::new(&program, &config, &bazel)?;
    match config.runs {
        Runs::Test => {
            println!("{}: QEMU {}, {}", config.name, program.version(), machine.accelerator());
            let arguments = Arguments::parse(bazel.arguments(arguments).into_iter());
            test(&mut machine, &config, &bazel, &arguments, start)
        }
        Runs::Program => {
            let end = payload::run(&mut machine, &config.tools, &arguments.collect::<Vec<_>>())?;
            if let End::Exit(outcome) = end {
                return Ok(ExitCode::from(payload::status(outcome)));
            }
            show_console(&machine);
            eprintln!("{}: {}", config.name, verdict::fault(&end, start.elapsed()));
            Ok(ExitCode::from(NOT_RUN))
        }
    }
}

/// Lets the kernel kill this process, and QEMU with it, when the thread of the parent that started it ends
/// (`PR_SET_PDEATHSIG`, prctl(2)). A command that a user starts has no such variable, so that it can outlive its shell
/// (`nohup`).
fn end_with_parent() -> Result<(), StepError> {
    let Ok(parent) = env::var(PARENT) else { return Ok(()) };
    prctl::set_pdeathsig(Signal::SIGKILL).map_err(StepError::of("end with the parent process"))?;
    // The parent may have ended before the call.
    if parent == getppid().to_string() {
        return Ok(());
    }
    Err(StepError::of(format!("use {PARENT}"))(format!("process {parent} is not the parent, or has ended")))
}

fn test(
    machine: &mut Machine<'_>,
    config: &Config,
    bazel: &Bazel,
    arguments: &Arguments,
    start: Instant,
) -> Result<ExitCode, StepError> {
    let (end, mut results) = suite::run(machine, &config.tools, arguments, start + bazel.limit())?;
    let verdict = Verdict::new(&end, &results, arguments.may_match_nothing(), start.elapsed());
    results.close(&verdict.to_string(), Instant::now());
    if let Some(path) = &bazel.xml {
        let fault = (!matches!(verdict, Verdict::Passed | Verdict::Failed(_))).then(|| verdict.to_string());
        let written = report::write(path, &config.name, results.ended(), fault.as_deref(), start.elapsed());
        written.map_err(StepError::of(format!("write the report {}", path.display())))?;
    }
    println!("{}", results.summary(start.elapsed()));
    let Starts { boots, restores } = machine.starts();
    println!("granary-cost: boots={boots} restores={restores} pods=0");
    if verdict == Verdict::Passed {
        return Ok(ExitCode::SUCCESS);
    }
    show_console(machine);
    eprintln!("{}: {verdict}", config.name);
    Ok(ExitCode::FAILURE)
}

/// Prints the console to standard error: kernel messages may explain a failure.
fn show_console(machine: &Machine<'_>) {
    eprintln!("---- console of the guest ----");
    match machine.console() {
        Ok(lines) => lines.iter().for_each(|line| eprintln!("{line}")),
        Err(error) => eprintln!("(cannot be read: {error})"),
    }
    eprintln!("---- end of the console ----");
}
