//! `bazel run //:launch`: boots nodes in QEMU and demonstrates volumes.
//!
//! Exit status 0: the demonstration succeeded and the guests powered off in order. 1: an error, or the output was closed.
//! 2: wrong usage. 130: interrupted during the boot or the demonstration, or power cut by a second Ctrl-C, without an error.
#![forbid(unsafe_code)]
// They panic if the output is closed; `Output` does not.
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
use crate::interrupts::{Interrupt, Interrupts};
use crate::output::Output;
use crate::progress::Progress;
use crate::workspace::Workspace;
use clap::Parser;
use launch::{
    Cluster, ClusterBoot, ClusterOptions, ClusterShutdownError, Event, Nodes, SHUTDOWN_LIMIT, check_configuration,
};
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
            // The user interrupted it.
            if !matches!(error, LaunchError::Interrupted) {
                output.print_error(&format!("error: {}", causes::lines(&error)));
            }
            ExitCode::from(error.status())
        }
    }
}

fn start(arguments: Arguments, output: &Output) -> Result<(), LaunchError> {
    // Bazel starts programs in another directory.
    let arguments = match std::env::var_os("BUILD_WORKING_DIRECTORY") {
        Some(directory) => arguments.relative_to(Path::new(&directory)),
        None => arguments,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(LaunchError::prepare("start the threads of this program"))?;
    let ended = runtime.block_on(run(&arguments, output));
    // Threads that wait for QEMU or copy a disk end with the process.
    runtime.shutdown_background();
    ended
}

async fn run(arguments: &Arguments, output: &Output) -> Result<(), LaunchError> {
    // Before anything is created.
    let mut interrupts = Interrupts::watch(output).map_err(LaunchError::prepare("wait for signals"))?;
    if let Some(path) = &arguments.keep_logs {
        let step = format!("create {} for the logs; name another directory with --keep-logs", path.display());
        std::fs::create_dir_all(path).map_err(LaunchError::prepare(step))?;
    }
    let configuration = arguments.config.as_deref().map(configuration).transpose()?;
    let place = std::env::temp_dir();
    let step = format!("create a temporary directory in {}; name another place with TMPDIR", place.display());
    let workspace = Workspace::create().map_err(LaunchError::prepare(step))?;
    let mut options = arguments.options(workspace.path());
    options.control_plane.configuration = configuration;
    let result = show(&options, arguments, &mut interrupts, output).await;
    workspace.remove();
    result
}

/// The text of a valid configuration.
fn configuration(path: &Path) -> Result<String, LaunchError> {
    let text = std::fs::read_to_string(path);
    let text = text.map_err(LaunchError::prepare(format!("read the configuration {}", path.display())))?;
    check_configuration(&text).map_err(|source| LaunchError::Config { path: path.to_owned(), source })?;
    Ok(text)
}

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
        // The user can inspect the nodes after a failed demonstration, too.
        Ok(()) | Err(LaunchError::Demo(_)) if !arguments.exit_after_demo => {
            if let Err(error) = &shown {
                output.print_error(&format!("{}\n", causes::lines(error)));
            }
            output.print(&directions(&cluster, options, arguments));
            wait(&mut cluster, interrupts).await.and(shown)
        }
        Ok(()) if output.is_lost() => Err(LaunchError::OutputClosed),
        shown => shown,
    };
    if cluster.names().is_empty() {
        return result;
    }
    let down = shut_down(cluster.shut_down(SHUTDOWN_LIMIT), options, interrupts, |text| output.print(text)).await;
    match (down, result) {
        (Err(down), Err(reason)) => Err(reason.after(down, |text| output.print_error(text))),
        (down, result) => down.and(result),
    }
}

async fn boot(
    options: &ClusterOptions,
    progress: &Progress<'_>,
    interrupts: &mut Interrupts<'_>,
) -> Result<Cluster, LaunchError> {
    let failed = |error| LaunchError::Boot(Box::new(error));
    let emit = |node: &str, event: &Event| progress.event(node, event);
    progress.show("checks, QEMU");
    let mut boot = tokio::select! {
        boot = ClusterBoot::start(options, emit) => boot.map_err(failed)?,
        end = interrupts.first() => return Err(end.into()),
        never = progress.follow() => match never {},
    };
    let reason = tokio::select! {
        ready = boot.until_ready(emit) => match ready {
            Ok(ready) => return Ok(boot.into_cluster(ready)),
            // There are no other nodes to shut down.
            Err(error) if options.nodes == Nodes::ONE => return Err(failed(error)),
            Err(error) => failed(error),
        },
        end = interrupts.first() => end.into(),
        never = progress.follow() => match never {},
    };
    progress.show("shutdown");
    let down = async {
        tokio::select! {
            down = boot.shut_down(SHUTDOWN_LIMIT) => down,
            never = progress.follow() => match never {},
        }
    };
    match shut_down(down, options, interrupts, |text| progress.print(text)).await {
        Ok(()) => Err(reason),
        Err(down) => Err(reason.after(down, |text| progress.print_error(text))),
    }
}

async fn demonstrate(
    cluster: &mut Cluster,
    progress: Progress<'_>,
    interrupts: &mut Interrupts<'_>,
    output: &Output,
) -> Result<(), LaunchError> {
    progress.show("demonstration");
    let (client, names) = (cluster.client(), cluster.names());
    let shown = tokio::select! {
        shown = demo::run(client, &names, |step| progress.step(step)) => shown.map_err(|error| LaunchError::Demo(Box::new(error))),
        ended = cluster.ended() => Err(LaunchError::Ended(ended)),
        end = interrupts.first() => Err(end.into()),
        never = progress.follow() => match never {},
    };
    // Clears the live lines before the table.
    drop(progress);
    output.print(&format!("\n{}", table::of(&shown?)));
    Ok(())
}

/// Waits until the cluster ends or is interrupted. An interrupt is not an error.
async fn wait(cluster: &mut Cluster, interrupts: &mut Interrupts<'_>) -> Result<(), LaunchError> {
    tokio::select! {
        ended = cluster.ended() => Err(LaunchError::Ended(ended)),
        // Ctrl-C may also end the reader of the output, so later write errors are ignored.
        end = interrupts.first() => match end {
            Interrupt::Interrupted => Ok(()),
            Interrupt::OutputClosed => Err(LaunchError::OutputClosed),
        },
    }
}

/// Shuts down in order, or returns at a second interrupt.
async fn shut_down(
    down: impl Future<Output = Result<(), ClusterShutdownError>>,
    options: &ClusterOptions,
    interrupts: &mut Interrupts<'_>,
    print: impl Fn(&str),
) -> Result<(), LaunchError> {
    let alone = options.nodes == Nodes::ONE;
    print(match alone {
        true => "Shutting the node down. Ctrl-C cuts its power.",
        false => "Shutting the nodes down, the workers first. Ctrl-C cuts their power.",
    });
    tokio::select! {
        ended = down => ended.map_err(|error| LaunchError::ShutDown(Box::new(error)))?,
        () = interrupts.second() => {
            print("The power is cut.");
            return Err(LaunchError::Interrupted);
        }
    }
    print(if alone { "The node is down." } else { "The nodes are down." });
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
