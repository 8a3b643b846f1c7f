//! Cases that share one boot.

use crate::case::{self, Case};
use crate::report::{self, Outcome};
use crate::{Failure, Setting, observer};
use eventually::chain;
use kube::Client;
use launch::{Node, Options, SHUTDOWN_LIMIT};
use std::any::Any;
use std::env;
use std::fs;
use std::path::Path;
use std::pin::Pin;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tokio::task::{JoinError, JoinSet};
use tokio::time::timeout;

/// Lines of the console that are shown when something failed.
const CONSOLE_LINES: usize = 400;

/// signal(7).
const SIGTERM: i32 = 15;
/// The kernel's last words.
const POWER_OFF: &str = "reboot: Power down";

/// How many cases run beside each other: mostly they wait, for kubelet or for a container's start.
const AT_ONCE: usize = 5;

type Body = Box<dyn FnOnce(Case) -> Pin<Box<dyn Future<Output = Result<(), Failure>> + Send>> + Send>;

/// Cases that share one boot of the node.
pub struct Suite {
    name: &'static str,
    options: fn(&mut Options),
    end: End,
    beside: Vec<Planned>,
    alone: Vec<Planned>,
}

/// Who asks the node to power off when all cases are done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The machine, by its power button.
    Button,
    /// A pod with the node's processes, by SIGTERM to PID 1.
    Signal,
}

/// A case that has not begun.
struct Planned {
    name: &'static str,
    body: Body,
}

impl Suite {
    /// A suite without cases.
    pub fn new(name: &'static str) -> Self {
        Self { name, options: |_| {}, end: End::Button, beside: Vec::new(), alone: Vec::new() }
    }

    /// Changes what the node is booted with.
    #[must_use]
    pub fn options(self, options: fn(&mut Options)) -> Self {
        Self { options, ..self }
    }

    /// Changes how the node ends, which is by its power button if nothing is said.
    #[must_use]
    pub fn end(self, end: End) -> Self {
        Self { end, ..self }
    }

    /// Adds a case that runs beside others. Its name is the behaviour that it shows.
    #[must_use]
    pub fn case<F, T>(mut self, name: &'static str, body: F) -> Self
    where
        F: FnOnce(Case) -> T + Send + 'static,
        T: Future<Output = Result<(), Failure>> + Send + 'static,
    {
        self.beside.push(Planned { name, body: Box::new(move |case| Box::pin(body(case))) });
        self
    }

    /// Adds a case that would disturb others. It runs after them, by itself.
    #[must_use]
    pub fn alone<F, T>(mut self, name: &'static str, body: F) -> Self
    where
        F: FnOnce(Case) -> T + Send + 'static,
        T: Future<Output = Result<(), Failure>> + Send + 'static,
    {
        self.alone.push(Planned { name, body: Box::new(move |case| Box::pin(body(case))) });
        self
    }

    /// Boots the node and runs the cases whose names contain one of the arguments, all if there are none;
    /// then shuts the node down. Prints a line for each, and writes JUnit XML to `XML_OUTPUT_FILE`.
    pub fn run(mut self) -> ExitCode {
        let wanted: Vec<String> = env::args().skip(1).chain(env::var("TESTBRIDGE_TEST_ONLY")).collect();
        for cases in [&mut self.beside, &mut self.alone] {
            cases.retain(|case| matches(case.name, &wanted));
        }
        let name = self.name;
        let runtime = match tokio::runtime::Runtime::new() {
            Ok(runtime) => runtime,
            Err(error) => {
                eprintln!("error: cannot start tasks\ncaused by: {error}");
                return ExitCode::FAILURE;
            }
        };
        let outcomes = runtime.block_on(run(self));
        let failed = outcomes.iter().filter(|outcome| outcome.failure.is_some()).count();
        let verdict = if failed == 0 { "ok" } else { "FAILED" };
        println!("\ntest result: {verdict}. {} passed; {failed} failed", outcomes.len() - failed);
        let written = env::var_os("XML_OUTPUT_FILE").map(|path| report::write(Path::new(&path), name, &outcomes));
        if let Some(Err(error)) = &written {
            eprintln!("error: {}", chain(error));
        }
        if failed == 0 && !matches!(written, Some(Err(_))) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

fn matches(name: &str, wanted: &[String]) -> bool {
    wanted.is_empty() || wanted.iter().any(|part| name.contains(part.as_str()))
}

/// Boot, cases, end: each is a line, so that a failure of any is counted.
async fn run(suite: Suite) -> Vec<Outcome> {
    let start = Instant::now();
    // The setting's directory stays until the end.
    let (mut node, _setting) = match boot(suite.options).await {
        Ok(booted) => booted,
        Err(message) => return vec![outcome("the_node_boots", start, Some(message))],
    };
    let mut outcomes = vec![outcome("the_node_boots", start, None)];
    let mut namespaces = Vec::new();
    let singly = suite.alone.into_iter().map(|case| vec![case]);
    for group in [suite.beside].into_iter().chain(singly) {
        outcomes.extend(together(&mut node, group, &mut namespaces).await);
        if node.has_ended() {
            return outcomes;
        }
    }
    let start = Instant::now();
    let cleaned = case::all_gone(&node.client(), &namespaces).await;
    outcomes.push(outcome("nothing_is_left_of_the_cases", start, cleaned.err().map(|error| chain(&error))));
    if outcomes.iter().any(|outcome| outcome.failure.is_some()) {
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
    outcomes.push(outcome(name, start, down.err()));
    outcomes
}

async fn terminate(mut node: Node) -> Result<(), String> {
    // The answer may come too late.
    let sent = observer::signal(&node.client(), "init", SIGTERM).await;
    let Ok(reason) = timeout(SHUTDOWN_LIMIT, node.ended()).await else {
        return Err(format!("the node goes on after SIGTERM: {sent:?}"));
    };
    let console = fs::read(node.console()).unwrap_or_default();
    let is_off = String::from_utf8_lossy(&console).contains(POWER_OFF);
    if is_off { Ok(()) } else { Err(format!("the node ended, but not with {POWER_OFF:?}: {reason}")) }
}

async fn boot(change: fn(&mut Options)) -> Result<(Node, Setting), String> {
    let setting = Setting::from_target().map_err(|error| chain(&error))?;
    let mut options = setting.options();
    change(&mut options);
    let node = Node::boot(&options, |event| println!("{event}")).await.map_err(|error| chain(&error))?;
    observer::start(&node.client()).await.map_err(|error| chain(&error))?;
    Ok((node, setting))
}

/// Runs cases beside each other. If the node ends, those that run fail, and no more are started.
async fn together(node: &mut Node, cases: Vec<Planned>, namespaces: &mut Vec<String>) -> Vec<Outcome> {
    let client = node.client();
    let mut outcomes = Vec::new();
    let mut waiting = cases.into_iter();
    let mut running = JoinSet::new();
    loop {
        while running.len() < AT_ONCE
            && let Some(case) = waiting.next()
        {
            let namespace = format!("case-{}", namespaces.len());
            namespaces.push(namespace.clone());
            running.spawn(attempt(client.clone(), namespace, case));
        }
        tokio::select! {
            ended = running.join_next() => match ended {
                Some(Ok(ended)) => outcomes.push(ended),
                // What a case asserts does not come here.
                Some(Err(error)) => outcomes.push(outcome("a_case_is_run", Instant::now(), Some(error.to_string()))),
                None => return outcomes,
            },
            reason = node.ended() => {
                outcomes.push(outcome("the_node_runs", Instant::now(), Some(format!("the node ended: {reason}"))));
                return outcomes;
            }
        }
    }
}

/// Runs one case. What it asserts is a panic: it ends the case's task, not the suite.
async fn attempt(client: Client, namespace: String, planned: Planned) -> Outcome {
    let start = Instant::now();
    let result = match Case::begin(client.clone(), namespace.clone()).await {
        Ok(case) => {
            let mut task = JoinSet::new();
            task.spawn((planned.body)(case));
            match task.join_next().await {
                Some(Ok(result)) => result.map_err(|error| chain(&error)),
                Some(Err(error)) => Err(panic_message(error)),
                None => Err("the case was not started".to_owned()),
            }
        }
        Err(error) => Err(chain(&error)),
    };
    let ended = outcome(planned.name, start, result.err());
    if let Err(error) = case::end(&client, &namespace).await {
        eprintln!("warning: {}", chain(&error));
    }
    ended
}

fn panic_message(error: JoinError) -> String {
    let Ok(payload) = error.try_into_panic() else { return "the case was cancelled".to_owned() };
    let text = |payload: &(dyn Any + Send)| {
        payload.downcast_ref::<String>().cloned().or_else(|| payload.downcast_ref::<&str>().map(ToString::to_string))
    };
    text(payload.as_ref()).unwrap_or_else(|| "the case panicked".to_owned())
}

fn outcome(name: &str, start: Instant, failure: Option<String>) -> Outcome {
    let time = start.elapsed();
    let verdict = if failure.is_some() { "FAILED" } else { "ok" };
    println!("test {name} ... {verdict} ({})", seconds(time));
    if let Some(text) = &failure {
        println!("{text}\n");
    }
    Outcome { name: name.to_owned(), failure, time }
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
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
    fn a_case_is_chosen_by_a_part_of_its_name() {
        assert!(matches("a_volume_ends_at_its_limit", &[]));
        assert!(matches("a_volume_ends_at_its_limit", &["other".to_owned(), "limit".to_owned()]));
        assert!(!matches("a_volume_ends_at_its_limit", &["other".to_owned()]));
    }

    #[tokio::test]
    async fn what_a_case_asserts_is_its_message() {
        let mut task = JoinSet::new();
        task.spawn(async { assert_eq!(1, 2, "one is {}", 2) });
        let message = panic_message(task.join_next().await.unwrap().unwrap_err());
        assert!(message.contains("one is 2"), "{message}");
    }
}
