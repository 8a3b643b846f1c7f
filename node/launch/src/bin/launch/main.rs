//! `bazel run //:launch`: boots nodes in QEMU and demonstrates volumes, or keeps clusters in the background.
//!
//! Exit status 0: the demonstration succeeded and the guests powered off in order. 1: an error, or the output was
//! closed. 2: wrong usage. 130: interrupted during the boot or the demonstration, or power cut by a second Ctrl-C,
//! without an error.
#![forbid(unsafe_code)]
// These macros panic if the output is closed; `Output` does not.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod arguments;
mod background;
mod commands;
mod configuration_file;
mod contexts;
mod demo;
mod directions;
mod error;
mod interrupts;
mod kept;
mod kubeconfig_error;
mod locks;
mod mesh;
mod name;
mod objects;
mod output;
mod place;
mod pods;
mod progress;
mod record;
mod table;
mod workspace;

use crate::arguments::{Arguments, Command};
use crate::directions::{Directions, KeptDirections, Logs};
use crate::error::LaunchError;
use crate::interrupts::{Interrupt, Interrupts, Source};
use crate::kept::KeptCluster;
use crate::output::Output;
use crate::place::{Lock, Place, Root};
use crate::progress::Progress;
use crate::workspace::Workspace;
use launch::{Boot, Cluster, ClusterBoot, ClusterOptions, ClusterShutdownError, Event, Nodes, SHUTDOWN_LIMIT};
use std::env;
use std::fs::File;
use std::process::ExitCode;

fn main() -> ExitCode {
    if let Some(status) = workspace::sweep() {
        return status;
    }
    let arguments = Arguments::read(env::args_os()).unwrap_or_else(|error| error.exit());
    let output = Output::new();
    match start(arguments, &output) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Print no error after an interrupt by the user.
            if !matches!(error, LaunchError::Interrupted | LaunchError::PowerCut) {
                output.print_error(&format!("error: {}", causes::lines(&error)));
            }
            ExitCode::from(error.status())
        }
    }
}

fn start(arguments: Arguments, output: &Output) -> Result<(), LaunchError> {
    if arguments.detached {
        background::detach()?;
    }
    // `bazel run` starts programs in another directory.
    let directory = env::var_os("BUILD_WORKING_DIRECTORY").map_or_else(env::current_dir, |path| Ok(path.into()));
    let directory = directory.map_err(LaunchError::prepare("find the working directory"))?;
    let arguments = arguments.relative_to(&directory, |name| env::var_os(name));
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(LaunchError::prepare("start the threads of this program"))?;
    let ended = runtime.block_on(execute(&arguments, output));
    // Do not wait for threads that wait for QEMU or copy a disk: they end with the process.
    runtime.shutdown_background();
    ended
}

async fn execute(arguments: &Arguments, output: &Output) -> Result<(), LaunchError> {
    let root = || Root::find(|name| env::var_os(name));
    let place = || Ok::<_, LaunchError>(root()?.place(&arguments.name.clone().unwrap_or_default()));
    match arguments.command {
        Some(Command::Start) if arguments.detached => keep(arguments, place()?, None, output).await,
        Some(Command::Start) => background::start(&place()?, output).await,
        Some(Command::Stop) => commands::stop(&place()?, output),
        Some(Command::Status) => commands::status(&root()?, output),
        Some(Command::Delete) => commands::delete(&place()?, output),
        None if arguments.name.is_some() => {
            let place = place()?;
            let lock = place.lock()?;
            keep(arguments, place, Some(lock), output).await
        }
        None => run(arguments, output).await,
    }
}

/// Runs a cluster in a temporary directory, which is removed at the end.
async fn run(arguments: &Arguments, output: &Output) -> Result<(), LaunchError> {
    // Handle signals before anything is created.
    let mut interrupts =
        Interrupts::watch(output, Source::Terminal).map_err(LaunchError::prepare("wait for signals"))?;
    if let Some(path) = &arguments.keep_logs {
        let step = format!("create {} for the logs; name another directory with --keep-logs", path.display());
        std::fs::create_dir_all(path).map_err(LaunchError::prepare(step))?;
    }
    let configuration = configuration_file::read(arguments.config.as_deref(), interrupts.first()).await?;
    let place = workspace::temporary(|name| env::var_os(name));
    let step = format!("create a temporary directory in {}; name another place with TMPDIR", place.display());
    let workspace = Workspace::create(&place).map_err(LaunchError::prepare(step))?;
    let mut options = arguments.options(workspace.path());
    options.control_plane.configuration = configuration;
    let result = show(&options, arguments, None, &mut interrupts, output).await;
    workspace.remove();
    result
}

/// Runs a cluster that is kept.
async fn keep(arguments: &Arguments, place: Place, lock: Option<Lock>, output: &Output) -> Result<(), LaunchError> {
    let source = if arguments.detached { Source::Background } else { Source::KeptTerminal };
    let mut interrupts = Interrupts::watch(output, source).map_err(LaunchError::prepare("wait for signals"))?;
    let configuration = configuration_file::read(arguments.config.as_deref(), interrupts.first()).await?;
    let mut options = arguments.options(&place.run());
    options.control_plane.configuration = configuration;
    let _pinned = pin(&mut options)?;
    // Leave the directory of Bazel, which may be removed while the nodes run.
    env::set_current_dir("/").map_err(LaunchError::prepare("enter /"))?;
    let mut kept = KeptCluster::begin(place, lock, arguments.kubeconfig_file()?, output)?;
    kept.complete(&mut options, arguments.nodes);
    let result = show(&options, arguments, Some(&mut kept), &mut interrupts, output).await;
    let ended = kept.end(&result);
    result.and(ended)
}

/// Opens the files of the image. The next build replaces these files, and workers start later than the control plane.
fn pin(options: &mut ClusterOptions) -> Result<Vec<File>, LaunchError> {
    let control_plane = &mut options.control_plane;
    let image = &mut control_plane.image;
    let paths = match &mut control_plane.boot {
        Boot::Kernel => vec![&mut image.kernel, &mut image.initramfs, &mut image.system, &mut image.command_line],
        Boot::Firmware(disk) => vec![disk],
    };
    paths.into_iter().map(background::pin).collect()
}

async fn show(
    options: &ClusterOptions,
    arguments: &Arguments,
    mut kept: Option<&mut KeptCluster>,
    interrupts: &mut Interrupts<'_>,
    output: &Output,
) -> Result<(), LaunchError> {
    let progress = Progress::new(output, options.consoles());
    let mut cluster = boot(options, &progress, interrupts).await?;
    let booted =
        kept.as_mut().map_or(Ok(()), |kept| kept.booted(&cluster, options.nodes, |text| progress.print_error(text)));
    let shown = match booted {
        Ok(()) if arguments.command.is_none() => demonstrate(&mut cluster, progress, interrupts, output).await,
        booted => {
            drop(progress);
            booted
        }
    };
    let result = match shown {
        // The user can also inspect the nodes after a failed demonstration.
        Ok(()) | Err(LaunchError::Demo(_)) if !arguments.exit_after_demo => {
            if let Err(error) = &shown {
                output.print_error(&format!("{}\n", causes::lines(error)));
            }
            output.print(&directions(&cluster, options, arguments, kept.as_deref()));
            match kept.as_mut().map_or(Ok(()), |kept| kept.ready()) {
                Ok(()) => wait(&mut cluster, interrupts).await.and(shown),
                Err(error) => Err(error),
            }
        }
        Ok(()) if output.is_lost() => Err(LaunchError::OutputClosed),
        shown => shown,
    };
    if cluster.names().is_empty() {
        return result;
    }
    if let Some(kept) = kept.as_mut() {
        kept.stopping();
    }
    let down = shut_down(cluster.shut_down(SHUTDOWN_LIMIT), options, interrupts, |text| output.print(text)).await;
    if let (Ok(()), Some(kept)) = (&down, kept) {
        kept.down();
    }
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
            // No guest is left to shut down.
            Err(error) if boot.has_ended() => return Err(failed(error)),
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
    // Clear the live lines before printing the table.
    drop(progress);
    output.print(&format!("\n{}", table::of(&shown?)));
    Ok(())
}

/// Waits until the cluster ends or is interrupted. An interrupt is not an error.
async fn wait(cluster: &mut Cluster, interrupts: &mut Interrupts<'_>) -> Result<(), LaunchError> {
    tokio::select! {
        ended = cluster.ended() => Err(LaunchError::Ended(ended)),
        // Ctrl-C may also end the reader of the output, so ignore later write errors.
        end = interrupts.first() => match end {
            Interrupt::Interrupted => Ok(()),
            Interrupt::OutputClosed => Err(LaunchError::OutputClosed),
        },
    }
}

/// Shuts the nodes down in order, or returns at a second interrupt.
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
            return Err(LaunchError::PowerCut);
        }
    }
    print(if alone { "The node is down." } else { "The nodes are down." });
    Ok(())
}

fn directions(
    cluster: &Cluster,
    options: &ClusterOptions,
    arguments: &Arguments,
    kept: Option<&KeptCluster>,
) -> String {
    let node = cluster.control_plane();
    let directions = Directions {
        nodes: &options.consoles(),
        kubeconfig: node.kubeconfig(),
        api: node.api_port(),
        logs: if arguments.keep_logs.is_some() || kept.is_some() { Logs::Kept } else { Logs::Removed },
        kept: kept.map(|kept| KeptDirections {
            name: kept.name(),
            kubeconfigs: kept.kubeconfigs(),
            current: kept.current(),
            is_in_background: arguments.detached,
        }),
    };
    directions.text()
}
