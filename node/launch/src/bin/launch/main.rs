//! `bazel run //:launch`: boots the node image in QEMU, once or several times, and shows that it works.
//!
//! Exit status 0: all was shown and the guests powered off in order. 1: it was not, or nobody reads it. 2: wrong usage.
//! 130: a person ended the boot or the demonstration, or cut the power with a second Ctrl-C, and nothing had failed.
#![forbid(unsafe_code)]
// They panic when nobody reads: `Output` is for that.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod arguments;
mod demo;
mod directions;
mod error;
mod interrupts;
mod mesh;
mod objects;
mod output;
mod progress;
mod table;
mod workspace;

use crate::arguments::Arguments;
use crate::directions::{Directions, Logs};
use crate::error::LaunchError;
use crate::interrupts::{End, Interrupts};
use crate::output::Output;
use crate::progress::Progress;
use crate::workspace::Workspace;
use clap::Parser;
use launch::{Booting, Cluster, ClusterOptions, ClusterShutdownError, Event, Nodes, SHUTDOWN_LIMIT};
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    if let Some(status) = workspace::sweep() {
        return status;
    }
    let arguments = Arguments::parse();
    let output = Output::new();
    match start(arguments, &output) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Who interrupted it knows.
            if !matches!(error, LaunchError::Interrupted) {
                output.tell(&format!("error: {}", causes::lines(&error)));
            }
            ExitCode::from(error.status())
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
    options: &ClusterOptions,
    arguments: &Arguments,
    interrupts: &mut Interrupts<'_>,
    output: &Output,
) -> Result<(), LaunchError> {
    let progress = Progress::new(output, options.consoles());
    let mut cluster = boot(options, &progress, interrupts).await?;
    let shown = demonstrate(&mut cluster, progress, interrupts, output).await;
    let result = match shown {
        // A demonstration that failed is worth a look, too, where a person is there to take it.
        Ok(()) | Err(LaunchError::Demo(_)) if !arguments.exit_after_demo => {
            if let Err(error) = &shown {
                output.tell(&format!("{}\n", causes::lines(error)));
            }
            output.say(&directions(&cluster, options, arguments));
            stay(&mut cluster, interrupts).await.and(shown)
        }
        Ok(()) if output.is_lost() => Err(LaunchError::Unread),
        shown => shown,
    };
    if cluster.names().is_empty() {
        return result;
    }
    let down = shut_down(cluster.shut_down(SHUTDOWN_LIMIT), options, interrupts, |text| output.say(text)).await;
    match (down, result) {
        (Err(down), Err(reason)) => Err(reason.after(down, |text| output.tell(text))),
        (down, result) => down.and(result),
    }
}

async fn boot(
    options: &ClusterOptions,
    progress: &Progress<'_>,
    interrupts: &mut Interrupts<'_>,
) -> Result<Cluster, LaunchError> {
    let failed = |error| LaunchError::Boot(Box::new(error));
    let tell = |node: &str, event: &Event| progress.event(node, event);
    progress.doing("checks, QEMU");
    let mut booting = tokio::select! {
        booting = Booting::start(options, tell) => booting.map_err(failed)?,
        end = interrupts.first() => return Err(end.into()),
        never = progress.follow() => match never {},
    };
    let reason = tokio::select! {
        ready = booting.until_ready(tell) => match ready {
            Ok(ready) => return Ok(booting.into_cluster(ready)),
            // There is nobody else to be shut down.
            Err(error) if options.nodes == Nodes::ONE => return Err(failed(error)),
            Err(error) => failed(error),
        },
        end = interrupts.first() => end.into(),
        never = progress.follow() => match never {},
    };
    progress.doing("shutdown");
    let down = async {
        tokio::select! {
            down = booting.shut_down(SHUTDOWN_LIMIT) => down,
            never = progress.follow() => match never {},
        }
    };
    match shut_down(down, options, interrupts, |text| progress.say(text)).await {
        Ok(()) => Err(reason),
        Err(down) => Err(reason.after(down, |text| progress.tell(text))),
    }
}

async fn demonstrate(
    cluster: &mut Cluster,
    progress: Progress<'_>,
    interrupts: &mut Interrupts<'_>,
    output: &Output,
) -> Result<(), LaunchError> {
    progress.doing("demonstration");
    let (client, names) = (cluster.client(), cluster.names());
    let shown = tokio::select! {
        shown = demo::run(client, &names, |step| progress.step(step)) => shown.map_err(|error| LaunchError::Demo(Box::new(error))),
        ended = cluster.ended() => Err(LaunchError::Ended(ended)),
        end = interrupts.first() => Err(end.into()),
        never = progress.follow() => match never {},
    };
    // Its living lines are gone before the table comes.
    drop(progress);
    output.say(&format!("\n{}", table::of(&shown?)));
    Ok(())
}

/// Waits for an end. That somebody asks for it is no error.
async fn stay(cluster: &mut Cluster, interrupts: &mut Interrupts<'_>) -> Result<(), LaunchError> {
    tokio::select! {
        ended = cluster.ended() => Err(LaunchError::Ended(ended)),
        // Ctrl-C may end the reader, too: what follows is of no importance.
        end = interrupts.first() => match end {
            End::Interrupted => Ok(()),
            End::Unread => Err(LaunchError::Unread),
        },
    }
}

/// In order, or at once if somebody cannot wait.
async fn shut_down(
    down: impl Future<Output = Result<(), ClusterShutdownError>>,
    options: &ClusterOptions,
    interrupts: &mut Interrupts<'_>,
    say: impl Fn(&str),
) -> Result<(), LaunchError> {
    let alone = options.nodes == Nodes::ONE;
    say(match alone {
        true => "Shutting the node down. Ctrl-C cuts its power.",
        false => "Shutting the nodes down, the workers first. Ctrl-C cuts their power.",
    });
    tokio::select! {
        ended = down => ended.map_err(|error| LaunchError::ShutDown(Box::new(error)))?,
        () = interrupts.second() => {
            say("The power is cut.");
            return Err(LaunchError::Interrupted);
        }
    }
    say(if alone { "The node is down." } else { "The nodes are down." });
    Ok(())
}

fn directions(cluster: &Cluster, options: &ClusterOptions, arguments: &Arguments) -> String {
    let node = cluster.control_plane();
    let directions = Directions {
        nodes: &options.consoles(),
        kubeconfig: node.kubeconfig(),
        api: node.api_port(),
        logs: if arguments.keep_logs.is_some() { Logs::Kept } else { Logs::Removed },
    };
    directions.text()
}
