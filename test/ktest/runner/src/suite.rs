//! Runs the tests of a program, through all boots of the machine.

use std::collections::BTreeMap;
use std::io;
use std::time::Instant;

use ktest_init::{Outcome, PowerCut, StepError};

use crate::arguments::Arguments;
use crate::guest::{Audience, End, Guest, order, show};
use crate::libtest::{self, Event, Status, Test};
use crate::machine::Machine;
use crate::results::Results;

/// Runs the tests until they end or the deadline passes. A test that cuts the power continues alone in the next boot;
/// the tests that have not ended follow there.
pub(crate) fn run(
    machine: &mut Machine<'_>,
    tools: &[String],
    arguments: &Arguments,
    deadline: Instant,
) -> Result<(End, Results), StepError> {
    let disks = machine.disks();
    let mut guest = machine.start()?;
    let mut suite = Suite { tools, arguments, deadline, disks, listener: Listener::default() };
    let mut boots: BTreeMap<String, u32> = BTreeMap::new();
    let mut rest = false;
    let mut bad = None;
    let mut end = suite.turn(&guest, arguments.chosen());
    loop {
        match end {
            End::PowerCut(cut) => {
                suite.listener.results.power_cut(&cut.test, Instant::now());
                let boot = boots.entry(cut.test.clone()).or_insert(1);
                *boot += 1;
                println!("---- the power is cut; boot {boot} of the test {} ----", cut.test);
                drop(guest);
                guest = machine.start()?;
                rest = true;
                end = suite.phase(&guest, *boot, cut);
            }
            // If the program ended in the middle of a test, the remaining tests do not run.
            End::Exit(outcome) if rest && suite.listener.results.running().is_empty() => {
                rest = false;
                bad = bad.or((outcome != Outcome::Code(0)).then_some(outcome));
                end = match suite.remaining(&guest) {
                    Ok(names) if names.is_empty() => End::Exit(Outcome::Code(0)),
                    Ok(names) => suite.turn(&guest, arguments.exactly(&names)),
                    Err(end) => end,
                };
            }
            end => {
                if matches!(end, End::Exit(_)) {
                    guest.power_off();
                }
                return Ok((bad_first(end, bad), suite.listener.results));
            }
        }
    }
}

struct Suite<'a> {
    tools: &'a [String],
    arguments: &'a Arguments,
    deadline: Instant,
    disks: Vec<String>,
    listener: Listener,
}

impl Suite<'_> {
    fn turn(&mut self, guest: &Guest, arguments: Vec<String>) -> End {
        self.run(guest, arguments, 1, self.disks.clone())
    }

    fn phase(&mut self, guest: &Guest, boot: u32, cut: PowerCut) -> End {
        let disks = held_first(&cut.disks, &self.disks);
        self.run(guest, self.arguments.exactly(&[cut.test]), boot, disks)
    }

    /// Chosen tests that have not ended. An error is the end of a program that failed to list them.
    fn remaining(&mut self, guest: &Guest) -> Result<Vec<String>, End> {
        self.listener.quiet = true;
        let end = self.turn(guest, self.arguments.list());
        self.listener.quiet = false;
        match end {
            End::Exit(Outcome::Code(0)) => Ok(self.listener.results.remaining()),
            end => Err(end),
        }
    }

    fn run(&mut self, guest: &Guest, arguments: Vec<String>, boot: u32, disks: Vec<String>) -> End {
        let mut order = order(arguments, boot, disks, self.tools);
        let (name, value) = libtest::ENVIRONMENT;
        order.environment.insert(name.into(), value.into());
        let end = guest.run(order, Some(self.deadline), &mut self.listener);
        self.listener.finish_line();
        end
    }
}

/// A failure of the program in an earlier boot replaces a later success.
fn bad_first(end: End, bad: Option<Outcome>) -> End {
    match (end, bad) {
        (End::Exit(Outcome::Code(0)), Some(bad)) => End::Exit(bad),
        (end, _) => end,
    }
}

/// All disks, with the disks of the test at the front.
fn held_first(held: &[String], all: &[String]) -> Vec<String> {
    let others = all.iter().filter(|disk| !held.contains(disk)).cloned();
    held.iter().filter(|disk| all.contains(disk)).cloned().chain(others).collect()
}

#[derive(Debug, Default)]
struct Listener {
    results: Results,
    /// The incomplete last line of the output.
    line: String,
    /// Hides events while the harness lists the remaining tests.
    quiet: bool,
}

impl Audience for Listener {
    fn stdout(&mut self, text: &str) {
        self.line.push_str(text);
        while let Some(end) = self.line.find('\n') {
            let rest = self.line.split_off(end + 1);
            let line = std::mem::replace(&mut self.line, rest);
            self.read_line(line.trim_end_matches('\n'));
        }
    }

    fn stderr(&mut self, text: &str) {
        show(io::stderr(), text);
    }
}

impl Listener {
    fn read_line(&mut self, line: &str) {
        let (text, event) = libtest::parse(line);
        if event.is_none() || !text.is_empty() {
            show(io::stdout(), &format!("{text}\n"));
        }
        let Some(event) = event else { return };
        let said = said(&event);
        let ended = self.results.record(event, Instant::now());
        if let Some(said) = ended.map(shown).or(said).filter(|_| !self.quiet) {
            show(io::stdout(), &said);
        }
    }

    /// Reads the last line of a program that has ended without a line feed.
    fn finish_line(&mut self) {
        if !self.line.is_empty() {
            let line = std::mem::take(&mut self.line);
            self.read_line(&line);
        }
    }
}

fn said(event: &Event) -> Option<String> {
    match event {
        Event::Suite(1) => Some("running 1 test\n".into()),
        Event::Suite(count) => Some(format!("running {count} tests\n")),
        Event::Found(name) => Some(format!("{name}: test\n")),
        Event::Slow(name) => Some(format!("test {name} has been running for more than 60 s\n")),
        Event::Started(_) | Event::Ended(_) | Event::Other => None,
    }
}

fn shown(test: &Test) -> String {
    let time = test.time.as_secs_f64();
    let (word, output) = match &test.status {
        Status::Passed(output) => ("ok".to_owned(), output.as_str()),
        Status::Failed(output) => ("FAILED".to_owned(), output.as_str()),
        Status::Ignored(reason) if reason.is_empty() => ("ignored".to_owned(), ""),
        Status::Ignored(reason) => (format!("ignored, {reason}"), ""),
    };
    let output = output.trim_end();
    let line = format!("test {} ... {word} <{time:.3}s>\n", test.name);
    if output.is_empty() { line } else { format!("{line}---- output of {} ----\n{output}\n\n", test.name) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::libtest::tests::{printed, test};

    #[test]
    fn a_line_may_come_in_pieces() {
        let mut listener = Listener::default();
        let line = printed(&test("a", Status::Ignored("later".into()))) + "\nrest";
        for at in 0..line.len() {
            listener.stdout(&line[at..=at]);
        }
        assert_eq!(listener.results.ended(), [test("a", Status::Ignored("later".into()))]);
        assert_eq!(listener.line, "rest");
        listener.finish_line();
        assert_eq!(listener.line, "");
    }

    #[test]
    fn a_failure_is_shown_with_its_output() {
        assert_eq!(
            shown(&test("a::b", Status::Failed("left: 1\n".into()))),
            "test a::b ... FAILED <0.012s>\n---- output of a::b ----\nleft: 1\n\n"
        );
        assert_eq!(shown(&test("c", Status::Passed(String::new()))), "test c ... ok <0.012s>\n");
        assert_eq!(shown(&test("d", Status::Ignored("slow".into()))), "test d ... ignored, slow <0.012s>\n");
    }

    #[test]
    fn the_disks_of_the_test_come_first_whatever_it_says() {
        let all = ["scratch-0", "scratch-1", "scratch-2"].map(str::to_owned);
        let held = vec!["scratch-2".to_owned(), "absent".to_owned()];
        assert_eq!(held_first(&held, &all), ["scratch-2", "scratch-0", "scratch-1"]);
    }

    #[test]
    fn an_end_that_was_bad_once_stays_bad() {
        let (good, bad) = (Outcome::Code(0), Outcome::Code(101));
        assert_eq!(bad_first(End::Exit(good), Some(bad)), End::Exit(bad));
        assert_eq!(bad_first(End::Panicked, Some(bad)), End::Panicked);
        assert_eq!(bad_first(End::Exit(good), None), End::Exit(good));
    }
}
