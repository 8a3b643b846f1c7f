//! Reports of the results for other programs: JUnit XML, and one log of all tests.

use crate::results::{Outcome, TestResult};
use launch::StepError;
use quick_junit::{NonSuccessKind, Report, TestCase, TestCaseStatus, TestSuite};
use std::borrow::Cow;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write as _};
use std::path::Path;

const JUNIT: &str = "junit.xml";
const LOG: &str = "e2e.log";
const SUITE: &str = "conformance";

/// Bytes of its log that the case of a failed test has at most. Ginkgo prints the failure near the end, before one
/// letter for each of the 7000 tests that it did not run.
const TAIL: usize = 32 << 10;

/// Writes both files into the output directory. They replace those of an earlier run.
pub(crate) fn write<'a>(output: &Path, results: impl IntoIterator<Item = &'a TestResult>) -> Result<(), StepError> {
    let mut joined = File::create(output.join(LOG)).map_err(StepError::of(format!("create {LOG}")))?;
    let mut suite = TestSuite::new(SUITE);
    for result in results {
        let log = read(&output.join(&result.log)).map_err(StepError::of(format!("read {}", result.log)))?;
        join(&mut joined, result, &log).map_err(StepError::of(format!("write {LOG}")))?;
        suite.add_test_case(case(result, &log));
    }
    let mut report = Report::new(SUITE);
    report.add_test_suite(suite);
    let xml = report.to_string().map_err(StepError::of(format!("write {JUNIT}")))?;
    fs::write(output.join(JUNIT), xml).map_err(StepError::of(format!("write {JUNIT}")))
}

/// Reads a log. It is empty if the file is missing: results can come from another directory.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    match fs::read(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        log => log,
    }
}

/// Appends the result, and the log below it.
fn join(joined: &mut File, result: &TestResult, log: &[u8]) -> io::Result<()> {
    writeln!(joined, "{result}")?;
    joined.write_all(log)?;
    // A killed process can leave a part of a line.
    if log.last().is_some_and(|&last| last != b'\n') {
        joined.write_all(b"\n")?;
    }
    Ok(())
}

fn case(result: &TestResult, log: &[u8]) -> TestCase {
    let status = match result.outcome {
        Outcome::Passed => TestCaseStatus::success(),
        Outcome::Failed => {
            let mut status = TestCaseStatus::non_success(NonSuccessKind::Failure);
            status.set_message(&result.log).set_description(tail(log));
            status
        }
        Outcome::Skipped => TestCaseStatus::skipped(),
    };
    let mut case = TestCase::new(&result.name, status);
    case.set_time(result.time);
    case
}

/// The last lines of the log.
fn tail(log: &[u8]) -> Cow<'_, str> {
    let cut = log.len().saturating_sub(TAIL);
    let start = cut.checked_sub(1).map_or(0, |before| {
        let end = log[before..].iter().position(|&byte| byte == b'\n');
        end.map_or(cut, |end| before + end + 1)
    });
    String::from_utf8_lossy(&log[start..])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Results;
    use std::time::Duration;

    fn result(outcome: Outcome, log: &str, name: &str) -> TestResult {
        TestResult { outcome, time: Duration::from_secs(12), log: log.into(), name: name.into() }
    }

    #[test]
    fn the_reports_have_the_last_result_of_each_selected_test() {
        let directory = tempfile::tempdir().unwrap();
        let output = directory.path();
        fs::create_dir(output.join("logs")).unwrap();
        for (log, text) in [("001", "early"), ("002", "a < b\nend"), ("003", "late\n"), ("004", "other\n")] {
            fs::write(output.join(format!("logs/{log}.log")), text).unwrap();
        }
        let mut results = Results::open(output).unwrap();
        for result in [
            result(Outcome::Failed, "logs/001.log", "A"),
            result(Outcome::Failed, "logs/002.log", "B"),
            result(Outcome::Passed, "logs/003.log", "A"),
            result(Outcome::Passed, "logs/004.log", "not selected"),
            result(Outcome::Skipped, "logs/missing.log", "C"),
        ] {
            results.add(result).unwrap();
        }
        let names = ["B", "A", "C", "not run"].map(str::to_owned);
        // The second run replaces the files.
        for _ in 0..2 {
            write(output, results.finished(&names)).unwrap();
        }

        let joined = "failed\t12\tlogs/002.log\tB\na < b\nend\n\
                      passed\t12\tlogs/003.log\tA\nlate\n\
                      skipped\t12\tlogs/missing.log\tC\n";
        assert_eq!(fs::read_to_string(output.join(LOG)).unwrap(), joined);
        let xml = fs::read_to_string(output.join(JUNIT)).unwrap();
        for part in [
            "tests=\"3\" disabled=\"1\" errors=\"0\" failures=\"1\"",
            "<testcase name=\"A\" time=\"12.000\">",
            "<failure message=\"logs/002.log\">a &lt; b\nend</failure>",
            "<skipped/>",
        ] {
            assert!(xml.contains(part), "{part}: {xml}");
        }
        assert!(!xml.contains("not "), "{xml}");
    }

    #[test]
    fn a_failed_case_has_the_last_whole_lines_of_its_log() {
        assert_eq!(tail(b""), "");
        assert_eq!(tail(b"first\nlast\n"), "first\nlast\n");
        let end = "last\n".repeat(TAIL / 5);
        assert_eq!(tail(format!("cut{}\n{end}", "S".repeat(TAIL)).as_bytes()), end);
        let line = "S".repeat(TAIL);
        assert_eq!(tail(format!("cut{line}").as_bytes()), line);
    }
}
