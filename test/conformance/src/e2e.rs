//! The program with the tests, Kubernetes' e2e.

use crate::arguments::Arguments;
use crate::selection;
use crate::test_list::TestList;
use launch::StepError;
use std::error::Error;
use std::fs::{self, File};
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use tempfile::TempDir;
use tokio::process::Command;

pub(crate) async fn images(arguments: &Arguments) -> Result<String, StepError> {
    let output = output(Command::new(&arguments.e2e).arg("--list-images")).await;
    output.map_err(StepError::of("list the images of the tests"))
}

/// Lists the selected tests. This requires no cluster.
pub(crate) async fn tests(arguments: &Arguments) -> Result<TestList, StepError> {
    const STEP: &str = "list the tests";
    let directory = TempDir::with_prefix("conformance-").map_err(StepError::of(STEP))?;
    let report = directory.path().join("report.json");
    let mut command = command(arguments);
    command.args(arguments.focus.as_ref().map(|focus| format!("--ginkgo.focus={focus}")));
    command.arg("--ginkgo.dry-run").arg(flag("ginkgo.json-report", &report));
    output(&mut command).await.map_err(StepError::of(STEP))?;
    let report = fs::read(report).map_err(StepError::of(STEP))?;
    TestList::parse(&report, arguments.suite).map_err(StepError::of(STEP))
}

/// Runs the test that the argument `focus` selects. Dropping the future kills the process.
pub(crate) async fn run(
    arguments: &Arguments,
    kubeconfig: &Path,
    focus: String,
    log: File,
) -> Result<ExitStatus, StepError> {
    const STEP: &str = "run the program with the tests";
    let errors = log.try_clone().map_err(StepError::of(STEP))?;
    let mut command = command(arguments);
    // A focus that selects no test is a failure, not a skipped test.
    command.args(["--ginkgo.fail-on-empty", "--ginkgo.timeout=30m", "--ginkgo.v"]).arg(focus);
    command.arg(flag("kubeconfig", kubeconfig));
    command.stdin(Stdio::null()).stdout(log).stderr(errors);
    command.status().await.map_err(StepError::of(STEP))
}

fn flag(name: &str, path: &Path) -> String {
    format!("--{name}={}", path.display())
}

fn command(arguments: &Arguments) -> Command {
    let mut command = Command::new(&arguments.e2e);
    command
        .args(selection::filters(arguments.suite))
        .args(["--provider=skeleton", "--ginkgo.no-color"])
        .arg(flag("storage.testdriver", &arguments.driver))
        .arg(flag("kubectl-path", &arguments.kubectl))
        .kill_on_drop(true);
    command
}

/// Waits for the end of the command and returns its standard output.
async fn output(command: &mut Command) -> Result<String, Box<dyn Error + Send + Sync>> {
    let output = command.output().await?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    Err(format!("the program with the tests ended with {}: {}", output.status, errors.trim()).into())
}
