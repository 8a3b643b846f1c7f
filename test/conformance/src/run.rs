//! Boots the nodes and runs the tests.

use crate::arguments::Arguments;
use crate::images;
use crate::selection;
use launch::{Cluster, ClusterOptions, Options, SHUTDOWN_LIMIT, StepError};
use std::env;
use std::error::Error;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use tempfile::TempDir;
use tokio::process::{Child, Command};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::{JoinHandle, spawn_blocking};
use units::Bytes;

/// Memory for the tests of volumes and of the API server, which exceeds that of a demonstration.
const CONTROL_PLANE_MEMORY: Bytes = Bytes::new(3 << 30);
const WORKER_MEMORY: Bytes = Bytes::new(2 << 30);
/// The images of the tests use 8 % of the disk.
const DATA_SIZE: Bytes = Bytes::new(16 << 30);

const INTERRUPTED: &str = "interrupted";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Passed,
    Failed,
}

/// Error that is only printed.
pub(crate) type RunError = Box<dyn Error + Send + Sync>;

struct Interrupts([Signal; 2]);

impl Interrupts {
    fn watch() -> Result<Self, RunError> {
        let watched = signal(SignalKind::interrupt()).and_then(|first| Ok([first, signal(SignalKind::terminate())?]));
        Ok(watched.map(Self).map_err(StepError::of("wait for signals"))?)
    }

    /// Waits for Ctrl-C or SIGTERM. The method is cancel-safe.
    async fn next(&mut self) {
        let [interrupt, terminate] = &mut self.0;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    }
}

pub(crate) async fn run(arguments: &Arguments) -> Result<Outcome, RunError> {
    let mut interrupts = Interrupts::watch()?;
    images::check(arguments.all_archives(), &list_images(&arguments.e2e).await?)?;
    let output = create_output(arguments.output())?;
    println!("e2e.log, junit.xml and the consoles of the nodes: {}", output.display());
    let outcome = if arguments.dry_run {
        let tests = Tests::start(command(arguments, &output).arg("--ginkgo.dry-run"), &output)?;
        tests.finish(&mut interrupts).await
    } else {
        on_a_cluster(arguments, &output, &mut interrupts).await
    };
    println!("results: {}", output.display());
    outcome
}

async fn on_a_cluster(arguments: &Arguments, output: &Path, interrupts: &mut Interrupts) -> Result<Outcome, RunError> {
    // Directory of the disks and of the administrator's key.
    let state = TempDir::with_prefix("granary-").map_err(StepError::of("create a temporary directory"))?;
    let mut options = Options::new(arguments.image.clone(), state.path());
    options.logs = output.to_owned();
    options.memory = CONTROL_PLANE_MEMORY;
    options.data_size = Some(DATA_SIZE);
    options.images = arguments.archives().map(|archive| archive.file.clone()).collect();
    let options = ClusterOptions { worker_memory: WORKER_MEMORY, ..ClusterOptions::new(options, arguments.nodes) };
    let mut cluster = tokio::select! {
        cluster = Cluster::boot(&options, |node, event| println!("{node}: {event}")) => {
            cluster.map_err(StepError::of("boot the nodes"))?
        }
        () = interrupts.next() => return Err(INTERRUPTED.into()),
    };
    let mut command = command(arguments, output);
    command.arg(flag("kubeconfig", cluster.control_plane().kubeconfig()));
    let tests = Tests::start(&mut command, output)?;
    let outcome = tokio::select! {
        outcome = tests.finish(interrupts) => outcome,
        ended = cluster.ended() => return Err(format!("{} ended unexpectedly: {}", ended.what, ended.reason).into()),
    };
    let down = cluster.shut_down(SHUTDOWN_LIMIT).await;
    // An error of the tests has priority over one of the shutdown.
    let outcome = outcome?;
    down.map_err(StepError::of("shut down the nodes in order"))?;
    Ok(outcome)
}

async fn list_images(program: &Path) -> Result<String, RunError> {
    let listed = Command::new(program).arg("--list-images").output().await;
    let listed = listed.map_err(StepError::of(format!("start {}", program.display())))?;
    if !listed.status.success() {
        let output = String::from_utf8_lossy(&listed.stderr);
        return Err(format!("the program with the tests ended with {}: {}", listed.status, output.trim()).into());
    }
    Ok(String::from_utf8_lossy(&listed.stdout).into_owned())
}

fn create_output(named: Option<PathBuf>) -> Result<PathBuf, RunError> {
    match named {
        Some(path) => {
            let step = format!("create {} for the results; name another directory with --output", path.display());
            fs::create_dir_all(&path).map_err(StepError::of(step))?;
            Ok(path)
        }
        None => {
            let step = format!("create a directory for the results in {}", env::temp_dir().display());
            let directory = TempDir::with_prefix("conformance-").map_err(StepError::of(step))?;
            Ok(directory.keep())
        }
    }
}

fn flag(name: &str, path: &Path) -> String {
    format!("--{name}={}", path.display())
}

fn command(arguments: &Arguments, output: &Path) -> Command {
    let mut command = Command::new(&arguments.e2e);
    command
        .args(selection::arguments(arguments.suite, arguments.focus.as_deref()))
        .args(["--provider=skeleton", "--ginkgo.v", "--ginkgo.no-color"])
        .arg(flag("storage.testdriver", &arguments.driver))
        .arg(flag("kubectl-path", &arguments.kubectl))
        .arg(flag("ginkgo.junit-report", &output.join("junit.xml")));
    command
}

/// The running program with the tests. Dropping the value kills the program.
struct Tests {
    child: Child,
    output: JoinHandle<io::Result<()>>,
}

impl Tests {
    fn start(command: &mut Command, directory: &Path) -> Result<Self, RunError> {
        let log = File::create(directory.join("e2e.log")).map_err(StepError::of("create e2e.log"))?;
        let (reader, writer) = io::pipe().map_err(StepError::of("create a pipe for the output of the tests"))?;
        let stderr = writer.try_clone().map_err(StepError::of("create a pipe for the output of the tests"))?;
        command.stdin(Stdio::null()).stdout(writer).stderr(stderr).kill_on_drop(true);
        let child = command.spawn().map_err(StepError::of("start the program with the tests"))?;
        // Close the writing ends in this process, so that the reader gets the end of the output.
        command.stdout(Stdio::null()).stderr(Stdio::null());
        Ok(Self { child, output: spawn_blocking(move || copy(reader, log)) })
    }

    async fn finish(mut self, interrupts: &mut Interrupts) -> Result<Outcome, RunError> {
        let status = tokio::select! {
            status = self.child.wait() => status.map_err(StepError::of("wait for the tests"))?,
            () = interrupts.next() => return Err(INTERRUPTED.into()),
        };
        let copied = self.output.await.unwrap_or_else(|panicked| Err(io::Error::other(panicked)));
        copied.map_err(StepError::of("write e2e.log"))?;
        Ok(if status.success() { Outcome::Passed } else { Outcome::Failed })
    }
}

/// Copies the output to the log, and to the terminal as long as it is open.
fn copy(mut output: impl Read, mut log: File) -> io::Result<()> {
    let mut buffer = [0; 8192];
    loop {
        let length = output.read(&mut buffer)?;
        let read = &buffer[..length];
        if read.is_empty() {
            return Ok(());
        }
        log.write_all(read)?;
        _ = io::stdout().write_all(read);
    }
}
