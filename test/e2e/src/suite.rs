//! Cases that share one node.

use crate::case::{self, Case};
use crate::part::{self, Outcomes, Part, Stopped};
use crate::turn::Turn;
use crate::{Setting, cleanup, observer, restored};
use envtest::chain;
use k8s_openapi::jiff::Timestamp;
use ktest_runner::report;
use kube::Client;
use launch::{Node, SHUTDOWN_LIMIT};
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::ExitCode;
use std::time::Instant;
use tokio::task::{JoinError, JoinSet};
use tokio::time::timeout;

const CONSOLE_LINES: usize = 400;

/// signal(7).
const SIGTERM: i32 = 15;
const POWER_OFF: &str = "reboot: Power down";

type Body = Box<dyn FnOnce(Part) -> Pin<Box<dyn Future<Output = Result<(), Stopped>> + Send>> + Send>;

/// Parts that share one node of [`Setting::common_options`].
pub struct Suite {
    name: &'static str,
    end: End,
    beside: Vec<Planned>,
    alone: Vec<Planned>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Button,
    /// A pod with the node's processes sends SIGTERM to PID 1.
    Signal,
}

struct Planned {
    name: &'static str,
    body: Body,
}

impl Suite {
    pub fn new(name: &'static str) -> Self {
        Self { name, end: End::Button, beside: Vec::new(), alone: Vec::new() }
    }

    /// Changes how the node ends. The default is its power button.
    pub fn end(self, end: End) -> Self {
        Self { end, ..self }
    }

    pub fn part<F, T>(mut self, name: &'static str, body: F) -> Self
    where
        F: FnOnce(Part) -> T + Send + 'static,
        T: Future<Output = Result<(), Stopped>> + Send + 'static,
    {
        self.beside.push(Planned { name, body: Box::new(move |part| Box::pin(body(part))) });
        self
    }

    /// Adds a part that needs a node without pods and volumes of other parts. It runs after them, by itself. A part
    /// that only disturbs others calls [`Part::alone`] instead.
    pub fn alone<F, T>(mut self, name: &'static str, body: F) -> Self
    where
        F: FnOnce(Part) -> T + Send + 'static,
        T: Future<Output = Result<(), Stopped>> + Send + 'static,
    {
        self.alone.push(Planned { name, body: Box::new(move |part| Box::pin(body(part))) });
        self
    }

    /// Gets a ready node, runs the parts whose names contain one of the arguments (all parts without arguments), and
    /// shuts the node down. Prints a line per case and writes JUnit XML to `XML_OUTPUT_FILE`.
    pub fn run(mut self) -> ExitCode {
        let wanted: Vec<String> = env::args().skip(1).chain(env::var("TESTBRIDGE_TEST_ONLY")).collect();
        let names: Vec<&str> = self.beside.iter().chain(&self.alone).map(|part| part.name).collect();
        for parts in [&mut self.beside, &mut self.alone] {
            parts.retain(|part| matches(part.name, &wanted));
        }
        if self.beside.is_empty() && self.alone.is_empty() {
            eprintln!("error: no part of the suite matches {wanted:?}; there are {names:?}");
            return ExitCode::FAILURE;
        }
        let name = self.name;
        let runtime = match tokio::runtime::Runtime::new() {
            Ok(runtime) => runtime,
            Err(error) => {
                eprintln!("error: cannot start tasks\ncaused by: {error}");
                return ExitCode::FAILURE;
            }
        };
        let (outcomes, start) = (Outcomes::default(), Instant::now());
        runtime.block_on(run(self, &outcomes));
        let outcomes = outcomes.all();
        let failed = outcomes.iter().filter(|outcome| outcome.has_failed()).count();
        let verdict = if failed == 0 { "ok" } else { "FAILED" };
        println!("\ntest result: {verdict}. {} passed; {failed} failed", outcomes.len() - failed);
        let written = env::var_os("XML_OUTPUT_FILE")
            .map(|path| report::write(Path::new(&path), name, &outcomes, None, start.elapsed()));
        if let Some(Err(error)) = &written {
            eprintln!("error: {}", chain(error));
        }
        if failed == 0 && !matches!(written, Some(Err(_))) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

fn matches(name: &str, wanted: &[String]) -> bool {
    wanted.is_empty() || wanted.iter().any(|part| name.contains(part.as_str()))
}

/// Runs the start, the parts and the end. Each of them is reported like a case, so that its failure counts.
async fn run(suite: Suite, outcomes: &Outcomes) {
    let start = Instant::now();
    // The setting owns the temporary directory, which must exist until the end.
    let (mut node, _setting) = match ready().await {
        Ok(ready) => ready,
        Err(message) => return outcomes.add("the_node_is_ready", start, Some(message)),
    };
    outcomes.add("the_node_is_ready", start, None);
    let begun = Timestamp::now();
    let start = Instant::now();
    let clock = restored::has_the_hosts_time(&node.client()).await;
    outcomes.add("the_nodes_clock_is_right", start, clock.err().map(|error| chain(&error)));

    let mut namespaces = Vec::new();
    let singly = suite.alone.into_iter().map(|part| vec![part]);
    for group in [suite.beside].into_iter().chain(singly) {
        if group.is_empty() {
            continue;
        }
        if !namespaces.is_empty() {
            let start = Instant::now();
            let cleaned = cleanup::all_gone(&node.client(), &namespaces).await;
            let failure = cleaned.err().map(|error| chain(&error));
            outcomes.add("nothing_is_left_before_a_part_that_is_alone", start, failure);
        }
        together(&mut node, group, &mut namespaces, outcomes).await;
        if node.has_ended() {
            return;
        }
    }
    // This check comes last, because the kubelet renews the lease only every ten seconds.
    let start = Instant::now();
    let lives = restored::kubelet_lives(&node.client(), begun).await;
    outcomes.add("kubelet_renews_the_lease_of_its_node", start, lives.err().map(|error| chain(&error)));
    let start = Instant::now();
    let cleaned = cleanup::all_gone(&node.client(), &namespaces).await;
    outcomes.add("nothing_is_left_of_the_cases", start, cleaned.err().map(|error| chain(&error)));
    if outcomes.has_failure() {
        show_console(node.console());
    }
    let start = Instant::now();
    let (name, down) = match suite.end {
        End::Button => {
            let down = node.shut_down(SHUTDOWN_LIMIT).await;
            ("the_node_powers_off_at_its_button", down.map_err(|error| chain(&error)))
        }
        End::Signal => ("the_node_powers_off_at_a_signal", terminate(node).await),
    };
    outcomes.add(name, start, down.err());
}

async fn terminate(mut node: Node) -> Result<(), String> {
    // The node may end before it responds.
    let sent = observer::signal(&node.client(), "init", SIGTERM).await;
    let Ok(reason) = timeout(SHUTDOWN_LIMIT, node.ended()).await else {
        return Err(format!("the node goes on after SIGTERM: {sent:?}"));
    };
    let console = fs::read(node.console()).unwrap_or_default();
    let is_off = String::from_utf8_lossy(&console).contains(POWER_OFF);
    if is_off { Ok(()) } else { Err(format!("the node ended, but not with {POWER_OFF:?}: {reason}")) }
}

async fn ready() -> Result<(Node, Setting), String> {
    let setting = Setting::from_target().map_err(|error| chain(&error))?;
    let node = setting.ready_node(&setting.common_options()).await.map_err(|error| chain(&error))?;
    Ok((node, setting))
}

/// Runs parts in parallel. If the node ends, the running parts fail.
async fn together(node: &mut Node, parts: Vec<Planned>, namespaces: &mut Vec<String>, outcomes: &Outcomes) {
    let start = Instant::now();
    let mut running = JoinSet::new();
    let turns = Turn::beside(parts.len());
    for (part, turn) in parts.into_iter().zip(turns) {
        // Names of cluster objects contain the namespace. With the part's name, some would be too long.
        let namespace = format!("part-{}", namespaces.len());
        namespaces.push(namespace.clone());
        let console = node.console().to_owned();
        running.spawn(attempt(node.client(), namespace, part, console, outcomes.clone(), turn));
    }
    loop {
        tokio::select! {
            ended = running.join_next() => match ended {
                Some(Ok(())) => {}
                // A failed assertion of a case does not get here.
                Some(Err(error)) => outcomes.add("a_part_is_run", start, Some(panic_message(error))),
                None => return,
            },
            reason = node.ended() => {
                return outcomes.add("the_node_runs", start, Some(format!("the node ended: {reason}")));
            }
        }
    }
}

/// Runs one part. Its turn ends with this call.
async fn attempt(
    client: Client,
    namespace: String,
    planned: Planned,
    console: PathBuf,
    outcomes: Outcomes,
    turn: Turn,
) {
    let start = Instant::now();
    match Case::begin(client.clone(), namespace.clone()).await {
        Ok(case) => {
            if (planned.body)(Part::new(case, console, outcomes, turn.clone())).await == Err(Stopped) {
                println!("the rest of part {} is left out", planned.name);
            }
        }
        Err(error) => outcomes.add("a_part_has_a_namespace", start, Some(chain(&error))),
    }
    if let Err(error) = case::end(&client, &namespace).await {
        eprintln!("warning: {}", chain(&error));
    }
}

fn panic_message(error: JoinError) -> String {
    match error.try_into_panic() {
        Ok(panic) => part::message(panic.as_ref()),
        Err(_) => "the part was cancelled".to_owned(),
    }
}

fn show_console(path: &Path) {
    match qemu::console_tail(path, CONSOLE_LINES) {
        Ok(lines) => println!("\nend of the node's console:\n{}", lines.join("\n")),
        Err(error) => println!("\nthe node's console cannot be read: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_chosen_by_a_piece_of_its_name() {
        assert!(matches("volumes", &[]));
        assert!(matches("volumes", &["burst".to_owned(), "vol".to_owned()]));
        assert!(!matches("volumes", &["burst".to_owned()]));
    }
}
