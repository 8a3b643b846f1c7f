//! JSON events of Rust's test harness, one per line. Pure.
//!
//! ```text
//! { "type": "suite", "event": "started", "test_count": 2 }
//! { "type": "test", "event": "started", "name": "limits::a_limit_holds" }
//! { "type": "test", "name": "limits::a_limit_holds", "event": "ok", "exec_time": 0.012 }
//! { "type": "test", "name": "limits::a_limit_grows", "event": "failed", "exec_time": 0.3, "stdout": "thread ..." }
//! { "type": "suite", "event": "failed", "passed": 1, "failed": 1, ... }
//! ```
//!
//! The format is unstable. A stable harness prints it if `RUSTC_BOOTSTRAP` is in its environment.

use std::time::Duration;

pub(crate) use ktest_runner::report::{Status, Test};
use serde::Deserialize;

/// Environment and arguments with which the harness prints JSON.
pub(crate) const ENVIRONMENT: (&str, &str) = ("RUSTC_BOOTSTRAP", "1");
pub(crate) const OPTIONS: [&str; 3] = ["-Zunstable-options", "--format=json", "--report-time"];

const BEGINNINGS: [&str; 2] = ["{ \"type\": \"test\"", "{ \"type\": \"suite\""];

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Suite(usize),
    Found(String),
    Started(String),
    /// A test that runs for more than a minute.
    Slow(String),
    Ended(Test),
    /// An event that does not concern a test.
    Other,
}

#[derive(Deserialize)]
struct Line {
    event: String,
    name: Option<String>,
    test_count: Option<usize>,
    exec_time: Option<f64>,
    #[serde(default)]
    stdout: String,
    #[serde(default)]
    message: String,
}

/// The event of a line, and the text before it: a program that a test started may have printed half a line.
pub(crate) fn parse(line: &str) -> (&str, Option<Event>) {
    let begins = |(at, _): &(usize, &str)| BEGINNINGS.iter().any(|beginning| line[*at..].starts_with(beginning));
    for (at, _) in line.match_indices('{').filter(begins) {
        if let Some(event) = serde_json::from_str(&line[at..]).ok().and_then(event) {
            return (&line[..at], Some(event));
        }
    }
    (line, None)
}

fn event(line: Line) -> Option<Event> {
    let time = line.exec_time.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).unwrap_or_default();
    let Some(name) = line.name else {
        return Some(line.test_count.map_or(Event::Other, Event::Suite));
    };
    let ended = |status| Some(Event::Ended(Test { name: name.clone(), status, time }));
    match line.event.as_str() {
        "discovered" => Some(Event::Found(name)),
        "started" => Some(Event::Started(name)),
        "timeout" => Some(Event::Slow(name)),
        "ok" => ended(Status::Passed(line.stdout)),
        "failed" => ended(Status::Failed(joined(line.stdout, &line.message))),
        "ignored" => ended(Status::Ignored(line.message)),
        _ => None,
    }
}

/// Appends the harness's message to the output of the test.
fn joined(mut output: String, remark: &str) -> String {
    if !output.is_empty() && !output.ends_with('\n') && !remark.is_empty() {
        output.push('\n');
    }
    output + remark
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    /// A test that took 12 ms.
    pub(crate) fn test(name: &str, status: Status) -> Test {
        Test { name: name.into(), status, time: Duration::from_millis(12) }
    }

    /// The line of the harness for a test, with the same blanks.
    pub(crate) fn printed(test: &Test) -> String {
        let (event, more) = match &test.status {
            Status::Passed(output) => ("ok", json!({"stdout": output})),
            Status::Failed(output) => ("failed", json!({"stdout": output})),
            Status::Ignored(reason) => ("ignored", json!({"message": reason})),
        };
        let (name, time, more) = (json!(test.name), test.time.as_secs_f64(), more.to_string());
        let more = more.trim_matches(['{', '}']);
        format!("{{ \"type\": \"test\", \"name\": {name}, \"event\": \"{event}\", \"exec_time\": {time}, {more} }}")
    }

    fn only(line: &str) -> Event {
        let (before, event) = parse(line);
        assert_eq!(before, "");
        event.unwrap()
    }

    #[test]
    fn start_and_end_of_a_test_are_events() {
        assert_eq!(only("{ \"type\": \"suite\", \"event\": \"started\", \"test_count\": 5 }"), Event::Suite(5));
        assert_eq!(
            only("{ \"type\": \"test\", \"event\": \"started\", \"name\": \"a::b\" }"),
            Event::Started("a::b".into())
        );
        assert_eq!(
            only("{ \"type\": \"test\", \"name\": \"a::b\", \"event\": \"ok\", \"exec_time\": 0.012 }"),
            Event::Ended(test("a::b", Status::Passed(String::new())))
        );
        assert_eq!(only("{ \"type\": \"test\", \"event\": \"timeout\", \"name\": \"a\" }"), Event::Slow("a".into()));
        assert_eq!(
            only("{ \"type\": \"suite\", \"event\": \"ok\", \"passed\": 1, \"failed\": 0, \"exec_time\": 0.0007 }"),
            Event::Other
        );
    }

    #[test]
    fn the_harness_message_follows_the_output() {
        let line = "{ \"type\": \"test\", \"name\": \"a\", \"event\": \"failed\", \"exec_time\": 0.012, \"stdout\": \"hm\", \"message\": \"did not panic\" }";
        assert_eq!(only(line), Event::Ended(test("a", Status::Failed("hm\ndid not panic".into()))));
    }

    #[test]
    fn a_list_names_the_tests() {
        let line = "{ \"type\": \"test\", \"event\": \"discovered\", \"name\": \"a\", \"ignore\": false, \"ignore_message\": \"\", \"source_path\": \"a.rs\", \"start_line\": 1 }";
        assert_eq!(only(line), Event::Found("a".into()));
    }

    #[test]
    fn half_a_line_of_a_program_stands_before_the_event() {
        let line = "meta-data={ { \"type\": \"test\", \"event\": \"started\", \"name\": \"a\" }";
        assert_eq!(parse(line), ("meta-data={ ", Some(Event::Started("a".into()))));
    }

    #[test]
    fn other_lines_are_text() {
        for line in [
            "",
            "{}",
            "{ \"type\": \"test\"",
            "{ \"type\": \"test\", \"event\": \"dances\", \"name\": \"a\" }",
            "test a ... ok",
        ] {
            assert_eq!(parse(line), (line, None));
        }
    }

    pub(crate) fn statuses() -> impl Strategy<Value = Status> {
        prop_oneof![
            ".{0,9}".prop_map(Status::Passed),
            "(.|\n){0,20}".prop_map(Status::Failed),
            ".{0,9}".prop_map(Status::Ignored)
        ]
    }

    proptest! {
        #[test]
        fn what_the_harness_prints_is_read_back(name in "[a-z_:]{1,20}", status in statuses(), before in "[a-z{\" ]{0,9}") {
            let test = test(&name, status);
            let line = before.clone() + &printed(&test);
            prop_assert_eq!(parse(&line), (before.as_str(), Some(Event::Ended(test))));
        }

        #[test]
        fn no_output_of_a_test_makes_reading_panic(line in "(\\{ \"type\": \"test\", |\"event\": \"ok\"|\"name\": \"a\"|, |\\}|.){0,20}") {
            parse(&line);
        }
    }
}
