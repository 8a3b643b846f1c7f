//! Reading what Rust's test harness prints. Pure.
//!
//! ```text
//! running 2 tests
//! test limits::a_limit_holds ... ok
//! test limits::a_limit_grows ... FAILED
//!
//! failures:
//!
//! ---- limits::a_limit_grows stdout ----
//! thread 'limits::a_limit_grows' panicked at ...
//!
//! failures:
//!     limits::a_limit_grows
//!
//! test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s
//! ```

use std::collections::BTreeMap;

/// A test and what came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Test {
    pub(crate) name: String,
    pub(crate) status: Status,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    Passed,
    /// With its output.
    Failed(String),
    /// With the reason, if one was given.
    Ignored(String),
}

/// The tests of a text, in the order in which they ended. Anything else in it is passed over: programs
/// that a test starts may print in between.
pub(crate) fn parse(text: &str) -> Vec<Test> {
    let mut outputs = failures(text);
    let mut tests = Vec::new();
    for (name, word) in text.lines().filter_map(result) {
        let status = match word {
            "FAILED" => Status::Failed(outputs.remove(name).unwrap_or_default()),
            _ => match word.strip_prefix("ignored") {
                Some(reason) => Status::Ignored(reason.trim_start_matches(", ").to_owned()),
                None => Status::Passed,
            },
        };
        tests.push(Test { name: name.to_owned(), status });
    }
    tests
}

/// Name and result of a test's line.
fn result(line: &str) -> Option<(&str, &str)> {
    let (name, word) = line.strip_prefix("test ")?.rsplit_once(" ... ")?;
    let name = name.strip_suffix(" - should panic").unwrap_or(name);
    // Behind the result there may be a time.
    let word = word.trim_end();
    let known = word == "ok" || word == "FAILED" || word.starts_with("ignored");
    match word.split_once(" <") {
        Some((word @ ("ok" | "FAILED"), _)) => Some((name, word)),
        _ => known.then_some((name, word)),
    }
}

/// Outputs of the tests that failed, by name.
fn failures(text: &str) -> BTreeMap<&str, String> {
    let mut outputs: BTreeMap<&str, String> = BTreeMap::new();
    let mut current = None;
    for line in text.lines() {
        if let Some(name) = header(line) {
            current = Some(name);
            outputs.entry(name).or_default();
        } else if line == "failures:" || line.starts_with("test result: ") {
            current = None;
        } else if let Some(output) = current.and_then(|name| outputs.get_mut(name)) {
            output.push_str(line);
            output.push('\n');
        }
    }
    outputs.into_iter().map(|(name, output)| (name, output.trim().to_owned())).collect()
}

fn header(line: &str) -> Option<&str> {
    line.strip_prefix("---- ")?.strip_suffix(" stdout ----")
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use proptest::prelude::*;

    use super::*;

    fn test(name: &str, status: Status) -> Test {
        Test { name: name.into(), status }
    }

    #[test]
    fn a_failure_comes_with_its_output() {
        let text = "
running 3 tests
test a::holds ... ok
test a::grows ... FAILED
test a::waits ... ignored, needs time

failures:

---- a::grows stdout ----
thread 'a::grows' panicked at src/a.rs:3:5:
left: 1
right: 2


failures:
    a::grows

test result: FAILED. 1 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s
";
        assert_eq!(
            parse(text),
            [
                test("a::holds", Status::Passed),
                test(
                    "a::grows",
                    Status::Failed("thread 'a::grows' panicked at src/a.rs:3:5:\nleft: 1\nright: 2".into())
                ),
                test("a::waits", Status::Ignored("needs time".into())),
            ]
        );
    }

    #[test]
    fn two_failures_do_not_share_their_output() {
        let text = "test a ... FAILED\ntest b ... FAILED\n\nfailures:\n\n---- a stdout ----\none\n\n---- b stdout ----\ntwo\n\n\nfailures:\n    a\n    b\n";
        assert_eq!(parse(text), [test("a", Status::Failed("one".into())), test("b", Status::Failed("two".into()))]);
    }

    #[test]
    fn should_panic_and_times_are_not_part_of_the_name() {
        let text = "test a - should panic ... ok\ntest b ... ok <0.003s>\ntest c ... ignored\n";
        assert_eq!(
            parse(text),
            [test("a", Status::Passed), test("b", Status::Passed), test("c", Status::Ignored(String::new()))]
        );
    }

    #[test]
    fn what_is_no_result_is_passed_over() {
        let text = "running 2 tests\ntest a has been running for over 60 seconds\ntest b ... meta-data=/dev/vda\nok\n";
        assert_eq!(parse(text), []);
    }

    fn statuses() -> impl Strategy<Value = Status> {
        prop_oneof![
            Just(Status::Passed),
            "(|[a-z][a-z ]{0,8}[a-z])".prop_map(Status::Ignored),
            "[a-z:]{1,9}(\n[a-z]{1,9}){0,3}"
                .prop_filter("a headline", |text| !text.contains("failures:"))
                .prop_map(Status::Failed),
        ]
    }

    /// Prints as libtest does.
    fn printed(tests: &[Test]) -> String {
        let mut text = format!("\nrunning {} tests\n", tests.len());
        let mut failures = String::new();
        for test in tests {
            let word = match &test.status {
                Status::Passed => "ok".to_owned(),
                Status::Ignored(reason) if reason.is_empty() => "ignored".to_owned(),
                Status::Ignored(reason) => format!("ignored, {reason}"),
                Status::Failed(output) => {
                    writeln!(failures, "---- {} stdout ----\n{output}\n", test.name).unwrap();
                    "FAILED".to_owned()
                }
            };
            writeln!(text, "test {} ... {word}", test.name).unwrap();
        }
        text + "\nfailures:\n\n" + &failures + "\nfailures:\n    some\n\ntest result: FAILED. 0 passed\n"
    }

    proptest! {
        #[test]
        fn what_libtest_prints_is_read_back(
            tests in prop::collection::btree_map("[a-z_]{1,9}(::[a-z_]{1,9})?", statuses(), 0..9)
        ) {
            let tests: Vec<Test> = tests.into_iter().map(|(name, status)| Test { name, status }).collect();
            prop_assert_eq!(parse(&printed(&tests)), tests);
        }

        #[test]
        fn no_output_of_a_test_makes_reading_panic(text in "(test |---- | \\.\\.\\. |ok|FAILED|failures:|stdout ----|\n|.){0,40}") {
            parse(&text);
        }
    }
}
