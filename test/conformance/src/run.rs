//! Boots the nodes and runs the tests.

use crate::arguments::Arguments;
use crate::e2e;
use crate::images;
use crate::output::Output;
use crate::registry::Registry;
use crate::report;
use crate::results::{Outcome, Results, TestResult};
use crate::test_list::{self, TestList};
use futures::{StreamExt as _, stream};
use k8s_openapi::api::core::v1 as core;
use kube::{Api, Client};
use launch::{Cluster, ClusterOptions, Nodes, Options, SHUTDOWN_LIMIT, StepError};
use std::error::Error;
use std::fmt::Display;
use std::fs;
use std::io::{self, Write as _};
use std::num::{NonZeroU8, NonZeroUsize};
use std::path::Path;
use std::process::ExitCode;
use std::thread::available_parallelism;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::timeout;
use units::Bytes;

/// Memory for the tests of volumes and of the API server, which exceeds that of a demonstration.
const CONTROL_PLANE_MEMORY: Bytes = Bytes::new(3 << 30);
const WORKER_MEMORY: Bytes = Bytes::new(2 << 30);
/// CPUs of each node: one if the machine has fewer than two for each. With more, an API server completed no TLS
/// handshake for two minutes. The likely reason: CPUs of guests spin on locks of CPUs that the machine does not run.
fn cpus(nodes: Nodes) -> NonZeroU8 {
    let machine = available_parallelism().map_or(1, NonZeroUsize::get);
    if machine < 2 * usize::from(nodes.get()) { NonZeroU8::MIN } else { NonZeroU8::MIN.saturating_add(1) }
}

/// The images of the tests use 8 % of the disk.
const DATA_SIZE: Bytes = Bytes::new(16 << 30);

/// kube-controller-manager removes the taint of a new node some seconds after the kubelet reports that it is Ready.
const UNTAINTED_LIMIT: Duration = Duration::from_secs(300);

const INTERRUPTED: &str = "interrupted";

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

pub(crate) async fn run(arguments: &Arguments) -> Result<ExitCode, RunError> {
    let mut interrupts = Interrupts::watch()?;
    let tests = tokio::select! {
        tests = list(arguments) => tests?,
        () = interrupts.next() => return Err(INTERRUPTED.into()),
    };
    if arguments.dry_run {
        tests.names().iter().for_each(print);
        return Ok(ExitCode::SUCCESS);
    }
    let output = Output::open(arguments.output())?;
    print(format_args!("results, logs and the consoles of the nodes: {}", output.path().display()));
    let mut results = Results::open(output.path())?;
    let remaining = results.remaining(tests.names());
    let ran = if remaining.is_empty() {
        Ok(())
    } else {
        let run = Run { arguments, tests: &tests, output: &output };
        run.on_a_cluster(remaining, &mut results, &mut interrupts).await
    };
    let reported = report::write(output.path(), results.finished(tests.names()));
    let summary = results.summary(tests.names());
    print(format_args!("results: {}\n{summary}", output.path().display()));
    ran?;
    reported?;
    Ok(if summary.is_success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Waits until no node has a taint. Tests that need two nodes skip themselves if one of the nodes has a taint.
async fn until_untainted(client: &Client, nodes: &[String]) -> Result<(), StepError> {
    for name in nodes {
        let all: Api<core::Node> = Api::all(client.clone());
        let mut lost = None;
        let untainted = timeout(UNTAINTED_LIMIT, launch::wait_for(all, name, is_untainted, &mut lost)).await;
        untainted.map_err(|_| {
            let cause = lost.map_or_else(|| format!("it has one after {UNTAINTED_LIMIT:?}"), |error| error.to_string());
            StepError::of(format!("wait until the node {name} has no taint"))(cause)
        })?;
    }
    Ok(())
}

fn is_untainted(node: Option<&core::Node>) -> bool {
    node.is_some_and(|node| node.spec.as_ref().and_then(|spec| spec.taints.as_ref()).is_none_or(Vec::is_empty))
}

async fn list(arguments: &Arguments) -> Result<TestList, RunError> {
    images::check(arguments.all_archives(), &e2e::images(arguments).await?)?;
    Ok(e2e::tests(arguments).await?)
}

/// Prints a line. Without a reader, the program continues: the results are also in the file.
fn print(line: impl Display) {
    _ = writeln!(io::stdout(), "{line}");
}

struct Run<'a> {
    arguments: &'a Arguments,
    tests: &'a TestList,
    output: &'a Output,
}

impl Run<'_> {
    async fn on_a_cluster(
        &self,
        names: Vec<&str>,
        results: &mut Results,
        interrupts: &mut Interrupts,
    ) -> Result<(), RunError> {
        let arguments = self.arguments;
        // Directory of the disks and of the administrator's key.
        let state = TempDir::with_prefix("granary-").map_err(StepError::of("create a temporary directory"))?;
        let mut options = Options::new(arguments.image.clone(), state.path());
        options.logs = self.output.path().to_owned();
        options.memory = CONTROL_PLANE_MEMORY;
        options.cpus = cpus(arguments.nodes);
        options.data_size = Some(DATA_SIZE);
        let registry = Registry::start(&arguments.registry, &arguments.pulled).await?;
        options.configuration = Some(registry.configuration());
        options.images = arguments.archives().map(|archive| archive.file.clone()).collect();
        let options = ClusterOptions { worker_memory: WORKER_MEMORY, ..ClusterOptions::new(options, arguments.nodes) };
        let mut cluster = tokio::select! {
            cluster = Cluster::boot(&options, |node, event| print(format_args!("{node}: {event}"))) => {
                cluster.map_err(StepError::of("boot the nodes"))?
            }
            () = interrupts.next() => return Err(INTERRUPTED.into()),
        };
        let kubeconfig = cluster.control_plane().kubeconfig().to_owned();
        let (client, nodes) = (cluster.client(), cluster.names());
        // A terminal also interrupts the processes of the tests. `biased`: an interrupt is not a failure of a test.
        let ran: Result<(), RunError> = tokio::select! {
            biased;
            () = interrupts.next() => Err(INTERRUPTED.into()),
            ended = cluster.ended() => {
                return Err(format!("{} ended unexpectedly: {}", ended.what, ended.reason).into());
            }
            ran = async {
                until_untainted(&client, &nodes).await?;
                run_all(names, arguments.processes, results, |name| self.one(name, &kubeconfig)).await
            } => ran.map_err(RunError::from),
        };
        let down = cluster.shut_down(SHUTDOWN_LIMIT).await;
        // An error of the tests has priority over one of the shutdown.
        ran?;
        down.map_err(StepError::of("shut down the nodes in order"))?;
        Ok(())
    }

    async fn one(&self, name: &str, kubeconfig: &Path) -> Result<TestResult, StepError> {
        let (log, file) = self.output.create_log()?;
        let start = Instant::now();
        let status = e2e::run(self.arguments, kubeconfig, self.tests.focus(name), file).await?;
        let time = start.elapsed();
        let text = fs::read(self.output.path().join(&log)).map_err(StepError::of(format!("read {log}")))?;
        let outcome = Outcome::of(status.success(), &String::from_utf8_lossy(&text));
        Ok(TestResult { outcome, time, log, name: name.to_owned() })
    }
}

/// Runs the tests, at most `limit` at once, and then those that must run alone. Each result is written at the end of
/// its test.
async fn run_all<'a, F>(
    names: Vec<&'a str>,
    limit: u8,
    results: &mut Results,
    execute: impl Fn(&'a str) -> F,
) -> Result<(), StepError>
where
    F: Future<Output = Result<TestResult, StepError>>,
{
    let count = names.len();
    let mut finished = 0;
    let (serial, parallel): (Vec<_>, Vec<_>) = names.into_iter().partition(|name| test_list::is_serial(name));
    for (names, limit) in [(parallel, limit), (serial, 1)] {
        let mut running = stream::iter(names).map(&execute).buffer_unordered(usize::from(limit));
        while let Some(result) = running.next().await {
            let result = result?;
            finished += 1;
            print(format_args!("{finished}/{count}\t{result}"));
            results.add(result)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::time::Duration;
    use tokio::task;

    #[tokio::test]
    async fn tests_run_up_to_the_limit_and_serial_ones_alone_at_the_end() {
        let directory = tempfile::tempdir().unwrap();
        let names = ["A", "B [Serial]", "C", "D", "E [Serial] e", "F", "G"].map(str::to_owned);
        let mut results = Results::open(directory.path()).unwrap();
        let running = &RefCell::new(Vec::new());
        // The running tests at the start of each one.
        let starts = &RefCell::new(Vec::new());
        let all = run_all(results.remaining(&names), 3, &mut results, |name| async move {
            running.borrow_mut().push(name);
            starts.borrow_mut().push(running.borrow().clone());
            // All other tests that may run start meanwhile.
            task::yield_now().await;
            running.borrow_mut().retain(|&other| other != name);
            let (outcome, log) = (Outcome::Passed, "logs/001.log".to_owned());
            Ok(TestResult { outcome, time: Duration::ZERO, log, name: name.to_owned() })
        });
        all.await.unwrap();

        let starts = starts.borrow();
        let (parallel, serial) = starts.split_at(5);
        assert_eq!(parallel.iter().map(Vec::len).max(), Some(3), "{parallel:?}");
        assert!(!parallel.iter().flatten().any(|name| test_list::is_serial(name)), "{parallel:?}");
        assert_eq!(serial, [["B [Serial]"], ["E [Serial] e"]]);
        let written = Results::open(directory.path()).unwrap();
        assert_eq!(written.finished(&names).count(), names.len());
    }
}
