//! Boots the nodes and runs the tests.

use crate::arguments::Arguments;
use crate::images::{self, UnusedImage};
use crate::selection;
use launch::{Cluster, ClusterError, ClusterOptions, ClusterShutdownError, Ended, Nodes, Options, SHUTDOWN_LIMIT};
use std::env;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use tempfile::TempDir;
use tokio::process::{Child, Command};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::{JoinHandle, spawn_blocking};
use units::Bytes;

/// Tests of volumes and the API server need more than a demonstration.
const CONTROL_PLANE_MEMORY: Bytes = Bytes::new(3 << 30);
const WORKER_MEMORY: Bytes = Bytes::new(2 << 30);
/// The images of the tests have 8 % of it.
const DATA_SIZE: Bytes = Bytes::new(16 << 30);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Passed,
    Failed,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum RunError {
    #[error("cannot {step}")]
    Prepare { step: String, source: io::Error },
    #[error("the program with the tests ended with {status}: {output}")]
    List { status: ExitStatus, output: String },
    #[error(transparent)]
    Image(#[from] UnusedImage),
    #[error("the nodes did not boot")]
    Boot(#[source] Box<ClusterError>),
    #[error("{} ended by itself: {}", .0.what, .0.reason)]
    Ended(Ended),
    #[error("the nodes did not shut down in order")]
    ShutDown(#[source] Box<ClusterShutdownError>),
    #[error("interrupted")]
    Interrupted,
}

impl RunError {
    pub(crate) fn prepare(step: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let step = step.into();
        |source| Self::Prepare { step, source }
    }
}

struct Interrupts([Signal; 2]);

impl Interrupts {
    fn watch() -> Result<Self, RunError> {
        let watched = signal(SignalKind::interrupt()).and_then(|first| Ok([first, signal(SignalKind::terminate())?]));
        watched.map(Self).map_err(RunError::prepare("wait for signals"))
    }

    /// Waits for Ctrl-C or SIGTERM. Cancel-safe.
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
    // Has the disks and the administrator's key.
    let state = TempDir::with_prefix("granary-").map_err(RunError::prepare("create a temporary directory"))?;
    let mut options = Options::new(arguments.image.clone(), state.path());
    options.logs = output.to_owned();
    options.memory = CONTROL_PLANE_MEMORY;
    options.data_size = Some(DATA_SIZE);
    options.images = arguments.archives().map(|archive| archive.file.clone()).collect();
    let two = const { Nodes::new(2).unwrap() };
    let options = ClusterOptions { worker_memory: WORKER_MEMORY, ..ClusterOptions::new(options, two) };
    let mut cluster = tokio::select! {
        cluster = Cluster::boot(&options, |node, event| println!("{node}: {event}")) => {
            cluster.map_err(|error| RunError::Boot(Box::new(error)))?
        }
        () = interrupts.next() => return Err(RunError::Interrupted),
    };
    let mut command = command(arguments, output);
    command.arg(flag("kubeconfig", cluster.control_plane().kubeconfig()));
    let tests = Tests::start(&mut command, output)?;
    let outcome = tokio::select! {
        outcome = tests.finish(interrupts) => outcome,
        ended = cluster.ended() => return Err(RunError::Ended(ended)),
    };
    let down = cluster.shut_down(SHUTDOWN_LIMIT).await;
    // The result of the tests counts more.
    let outcome = outcome?;
    down.map_err(|error| RunError::ShutDown(Box::new(error)))?;
    Ok(outcome)
}

async fn list_images(program: &Path) -> Result<String, RunError> {
    let listed = Command::new(program).arg("--list-images").output().await;
    let listed = listed.map_err(RunError::prepare(format!("start {}", program.display())))?;
    if !listed.status.success() {
        let output = String::from_utf8_lossy(&listed.stderr).trim().to_owned();
        return Err(RunError::List { status: listed.status, output });
    }
    Ok(String::from_utf8_lossy(&listed.stdout).into_owned())
}

fn create_output(named: Option<PathBuf>) -> Result<PathBuf, RunError> {
    match named {
        Some(path) => {
            let step = format!("create {} for the results; name another directory with --output", path.display());
            fs::create_dir_all(&path).map(|()| path).map_err(RunError::prepare(step))
        }
        None => {
            let step = format!("create a directory for the results in {}", env::temp_dir().display());
            let directory = TempDir::with_prefix("conformance-").map_err(RunError::prepare(step))?;
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

/// The program with the tests while it runs. It ends when this is dropped.
struct Tests {
    child: Child,
    output: JoinHandle<io::Result<()>>,
}

impl Tests {
    fn start(command: &mut Command, directory: &Path) -> Result<Self, RunError> {
        let log = File::create(directory.join("e2e.log")).map_err(RunError::prepare("create e2e.log"))?;
        let (reader, writer) = io::pipe().map_err(RunError::prepare("create a pipe for the output of the tests"))?;
        let stderr = writer.try_clone().map_err(RunError::prepare("create a pipe for the output of the tests"))?;
        command.stdin(Stdio::null()).stdout(writer).stderr(stderr).kill_on_drop(true);
        let child = command.spawn().map_err(RunError::prepare("start the program with the tests"))?;
        // Closes the writing ends in this process.
        command.stdout(Stdio::null()).stderr(Stdio::null());
        Ok(Self { child, output: spawn_blocking(move || copy(reader, log)) })
    }

    async fn finish(mut self, interrupts: &mut Interrupts) -> Result<Outcome, RunError> {
        let status = tokio::select! {
            status = self.child.wait() => status.map_err(RunError::prepare("wait for the tests"))?,
            () = interrupts.next() => return Err(RunError::Interrupted),
        };
        let copied = self.output.await.unwrap_or_else(|panicked| Err(io::Error::other(panicked)));
        copied.map_err(RunError::prepare("write e2e.log"))?;
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
