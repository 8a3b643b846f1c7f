//! `bazel run //:launch`: boots the node image in QEMU and shows that it works.
//!
//! Exit status 0: all was shown and the guest powered off in order. 1: it was not, or nobody reads it. 2: wrong usage.
//! 130: a person ended the boot or the demonstration, or cut the power with a second Ctrl-C.
#![forbid(unsafe_code)]
// They panic when nobody reads: `Output` is for that.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod arguments;
mod demo;
mod directions;
mod interrupts;
mod objects;
mod output;
mod progress;
mod table;
mod workspace;

use crate::arguments::Arguments;
use crate::demo::DemoError;
use crate::directions::{Directions, Logs};
use crate::interrupts::{End, Interrupts};
use crate::output::Output;
use crate::progress::Progress;
use crate::workspace::Workspace;
use clap::Parser;
use launch::{BootError, Booting, Node, Options, SHUTDOWN_LIMIT, ShutdownError};
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Interrupted: 128 and the signal's number, as shells have it.
const INTERRUPTED: u8 = 130;

/// Why there is nothing to show, or not all of it.
#[derive(Debug, thiserror::Error)]
enum LaunchError {
    #[error("cannot start the threads of this program")]
    Runtime(#[source] io::Error),
    #[error("cannot make a temporary directory in {path}; name another place with TMPDIR")]
    Temporary {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot make {path} for the logs; name another directory with --keep-logs")]
    Logs {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot wait for signals")]
    Signals(#[source] io::Error),
    #[error("the node did not boot")]
    Boot(#[source] Box<BootError>),
    #[error("the demonstration failed")]
    Demo(#[source] Box<DemoError>),
    #[error("the guest ended by itself: {0}")]
    Ended(String),
    #[error("the node did not shut down")]
    ShutDown(#[source] Box<ShutdownError>),
    #[error("interrupted")]
    Interrupted,
    #[error("the output cannot be written: its reader is gone, or its disk is full")]
    Unread,
}

impl From<End> for LaunchError {
    fn from(end: End) -> Self {
        match end {
            End::Interrupted => Self::Interrupted,
            End::Unread => Self::Unread,
        }
    }
}

fn main() -> ExitCode {
    if let Some(status) = workspace::sweep() {
        return status;
    }
    let arguments = Arguments::parse();
    let output = Output::new();
    match start(arguments, &output) {
        Ok(()) => ExitCode::SUCCESS,
        Err(LaunchError::Interrupted) => ExitCode::from(INTERRUPTED),
        Err(error) => {
            output.tell(&format!("error: {}", causes::lines(&error)));
            ExitCode::FAILURE
        }
    }
}

fn start(arguments: Arguments, output: &Output) -> Result<(), LaunchError> {
    // Bazel starts programs elsewhere than where the person is.
    let arguments = match std::env::var_os("BUILD_WORKING_DIRECTORY") {
        Some(directory) => arguments.relative_to(Path::new(&directory)),
        None => arguments,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(LaunchError::Runtime)?;
    let ended = runtime.block_on(run(&arguments, output));
    // What waits for QEMU, or copies a disk for a boot that nobody wants any more, ends with the process.
    runtime.shutdown_background();
    ended
}

async fn run(arguments: &Arguments, output: &Output) -> Result<(), LaunchError> {
    // Before there is anything to leave behind.
    let mut interrupts = Interrupts::watch(output).map_err(LaunchError::Signals)?;
    if let Some(path) = &arguments.keep_logs {
        std::fs::create_dir_all(path).map_err(|source| LaunchError::Logs { path: path.clone(), source })?;
    }
    let workspace =
        Workspace::make().map_err(|source| LaunchError::Temporary { path: std::env::temp_dir(), source })?;
    let result = show(&arguments.options(workspace.path()), arguments, &mut interrupts, output).await;
    workspace.remove();
    result
}

/// Boot, demonstration, and the wait for the end.
async fn show(
    options: &Options,
    arguments: &Arguments,
    interrupts: &mut Interrupts<'_>,
    output: &Output,
) -> Result<(), LaunchError> {
    let progress = Progress::new(output, &options.logs.join("console.log"));
    let mut node = boot(options, &progress, interrupts, output).await?;
    progress.doing("demonstration");
    let shown = tokio::select! {
        shown = demo::run(node.client(), |step| progress.step(step)) => shown.map_err(|error| LaunchError::Demo(Box::new(error))),
        reason = node.ended() => return Err(LaunchError::Ended(reason)),
        end = interrupts.first() => Err(end.into()),
        never = progress.follow() => match never {},
    };
    drop(progress);
    if let Ok(shown) = &shown {
        output.say(&format!("\n{}", table::of(shown)));
    }
    // A demonstration that failed is worth a look, too, where a person is there to take it.
    let unwanted = matches!(shown, Err(LaunchError::Interrupted | LaunchError::Unread));
    let mut unread = output.is_lost();
    if !arguments.exit_after_demo && !unwanted {
        if let Err(error) = &shown {
            output.tell(&format!("{}\n", causes::lines(error)));
        }
        output.say(&directions(&node, arguments));
        tokio::select! {
            reason = node.ended() => return Err(LaunchError::Ended(reason)),
            // Ctrl-C may end the reader, too: what follows is of no importance.
            end = interrupts.first() => unread = end == End::Unread,
        }
    }
    shut_down(node.shut_down(SHUTDOWN_LIMIT), interrupts, output).await?;
    shown?;
    if unread { Err(LaunchError::Unread) } else { Ok(()) }
}

async fn boot(
    options: &Options,
    progress: &Progress<'_>,
    interrupts: &mut Interrupts<'_>,
    output: &Output,
) -> Result<Node, LaunchError> {
    let failed = |error| LaunchError::Boot(Box::new(error));
    progress.doing("checks, QEMU");
    let mut booting = tokio::select! {
        booting = Booting::start(options, |event| progress.event(event)) => booting.map_err(failed)?,
        end = interrupts.first() => return Err(end.into()),
        never = progress.follow() => match never {},
    };
    let end = tokio::select! {
        access = booting.until_ready(|event| progress.event(event)) => return Ok(booting.into_node(access.map_err(failed)?)),
        end = interrupts.first() => end,
        never = progress.follow() => match never {},
    };
    progress.doing("shutdown");
    shut_down(booting.shut_down(SHUTDOWN_LIMIT), interrupts, output).await?;
    Err(end.into())
}

/// In order, or at once if somebody cannot wait.
async fn shut_down(
    down: impl Future<Output = Result<(), ShutdownError>>,
    interrupts: &mut Interrupts<'_>,
    output: &Output,
) -> Result<(), LaunchError> {
    output.say("Shutting the node down. Ctrl-C cuts its power.");
    tokio::select! {
        ended = down => ended.map_err(|error| LaunchError::ShutDown(Box::new(error)))?,
        () = interrupts.second() => {
            output.say("The power is cut.");
            return Err(LaunchError::Interrupted);
        }
    }
    output.say("The node is down.");
    Ok(())
}

fn directions(node: &Node, arguments: &Arguments) -> String {
    let directions = Directions {
        node: node.name(),
        kubeconfig: node.kubeconfig(),
        api: node.api_port(),
        console: node.console(),
        logs: if arguments.keep_logs.is_some() { Logs::Kept } else { Logs::Removed },
    };
    directions.text()
}
