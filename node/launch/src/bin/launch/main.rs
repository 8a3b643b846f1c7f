//! `bazel run //:launch`: boots the node image in QEMU and shows that it works.
//!
//! Exit status 0: all was shown and the guest powered off in order. 1: it was not. 2: wrong usage.
//! 130: a person cut the power with a second Ctrl-C, or ended the boot with the first.
#![forbid(unsafe_code)]

mod arguments;
mod demo;
mod progress;
mod table;

use crate::arguments::Arguments;
use crate::demo::{Demo, DemoError};
use crate::progress::Progress;
use clap::Parser;
use launch::{BootError, Node, Options, SHUTDOWN_LIMIT, ShutdownError};
use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Interrupted: 128 and the signal's number, as shells have it.
const INTERRUPTED: u8 = 130;

/// Why there is nothing to show, or not all of it.
#[derive(Debug, thiserror::Error)]
enum LaunchError {
    #[error("cannot prepare {path}")]
    Prepare {
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
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(Arguments::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(LaunchError::Interrupted) => ExitCode::from(INTERRUPTED),
        Err(error) => {
            eprintln!("error: {error}");
            let mut next = error.source();
            while let Some(cause) = next {
                eprintln!("caused by: {cause}");
                next = cause.source();
            }
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: Arguments) -> Result<(), LaunchError> {
    // Bazel starts programs elsewhere than where the person is.
    let arguments = match std::env::var_os("BUILD_WORKING_DIRECTORY") {
        Some(directory) => arguments.relative_to(Path::new(&directory)),
        None => arguments,
    };
    let temporary = tempfile::Builder::new()
        .prefix("granary-")
        .tempdir()
        .map_err(|source| LaunchError::Prepare { path: std::env::temp_dir(), source })?;
    if let Some(path) = &arguments.keep_logs {
        std::fs::create_dir_all(path).map_err(|source| LaunchError::Prepare { path: path.clone(), source })?;
    }
    let mut interrupts = Interrupts::take().map_err(LaunchError::Signals)?;
    let options = arguments.options(temporary.path());
    let result = show(&options, &arguments, &mut interrupts).await;
    if let Err(source) = temporary.close() {
        eprintln!("warning: the temporary directory stays: {source}");
    }
    result
}

/// Boot, demonstration, and the wait for the end.
async fn show(options: &Options, arguments: &Arguments, interrupts: &mut Interrupts) -> Result<(), LaunchError> {
    let mut node = boot(options, interrupts).await?;
    let client = node.client();
    let progress = Progress::new("demonstration", node.console());
    let shown = tokio::select! {
        shown = demo::run(client, |step| progress.step(step)) => shown.map_err(|error| LaunchError::Demo(Box::new(error))),
        reason = node.ended() => return Err(LaunchError::Ended(reason)),
        () = interrupts.next() => Err(LaunchError::Interrupted),
        () = progress.follow() => Err(LaunchError::Interrupted),
    };
    progress.finish();
    if let Ok(demo) = &shown {
        println!("\n{}", table::of(demo));
    }
    // A demonstration that failed is worth a look, too, where a person is there to take it.
    let stays = !arguments.exit_after_demo && !matches!(shown, Err(LaunchError::Interrupted));
    if stays {
        if let Err(error) = &shown {
            eprintln!("{error}: {}", error.source().map(ToString::to_string).unwrap_or_default());
        }
        println!("{}", directions(&node, arguments));
        tokio::select! {
            reason = node.ended() => return Err(LaunchError::Ended(reason)),
            () = interrupts.next() => {}
        }
    }
    println!("Shutting the node down. Ctrl-C cuts its power.");
    tokio::select! {
        ended = node.shut_down(SHUTDOWN_LIMIT) => ended.map_err(|error| LaunchError::ShutDown(Box::new(error)))?,
        () = interrupts.next() => return Err(LaunchError::Interrupted),
    }
    println!("The node is down.");
    shown.map(|_: Demo| ())
}

async fn boot(options: &Options, interrupts: &mut Interrupts) -> Result<Node, LaunchError> {
    let progress = Progress::new("boot", &options.logs.join("console.log"));
    let booted = tokio::select! {
        booted = Node::boot(options, |event| progress.event(event)) => booted.map_err(|error| LaunchError::Boot(Box::new(error))),
        () = interrupts.next() => Err(LaunchError::Interrupted),
        () = progress.follow() => Err(LaunchError::Interrupted),
    };
    progress.finish();
    booted
}

/// What a person can do now.
fn directions(node: &Node, arguments: &Arguments) -> String {
    let kubeconfig = node.kubeconfig().display();
    let kept = if arguments.keep_logs.is_some() { "" } else { " (gone afterwards; --keep-logs DIR keeps it)" };
    format!(
        "kubeconfig   {kubeconfig}\n\
         kubectl      ./bazelw run //:kubectl -- --kubeconfig={kubeconfig} get pods -A\n\
         console log  {}{kept}\n\n\
         The node runs. Ctrl-C shuts it down.",
        node.console().display(),
    )
}

/// What ends the program: Ctrl-C, SIGTERM, a terminal that is closed.
struct Interrupts {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Signal,
}

impl Interrupts {
    fn take() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }

    /// Returns at the next one. Cancel-safe.
    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            _ = self.hang_up.recv() => {}
        }
    }
}
