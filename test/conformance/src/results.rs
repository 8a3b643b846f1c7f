//! Results of the tests, and the file that keeps them for further runs.

use launch::StepError;
use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

const FILE: &str = "results.tsv";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Passed,
    Failed,
    /// The test requires a capability that the cluster or the driver does not have.
    Skipped,
}

impl Outcome {
    const ALL: [Self; 3] = [Self::Passed, Self::Failed, Self::Skipped];

    /// Outcome of a process with one selected test. At its end, ginkgo prints `Ran 1 of 7000 Specs in 12.345 seconds`
    /// (`SuiteDidEnd`, reporters/default_reporter.go). A test that skips itself is not counted.
    pub(crate) fn of(succeeded: bool, log: &str) -> Self {
        let ran = log.lines().rev().find(|line| line.starts_with("Ran ") && line.contains(" Specs in "));
        match ran {
            Some(line) if succeeded && line.starts_with("Ran 0 of ") => Self::Skipped,
            Some(_) if succeeded => Self::Passed,
            _ => Self::Failed,
        }
    }

    const fn word(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed => "failed",
            Self::Skipped => "skipped",
        }
    }
}

/// Result of a test. The text form is a line of the file without its end.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TestResult {
    pub(crate) outcome: Outcome,
    /// From the start to the end of the process.
    pub(crate) time: Duration,
    /// Path of the log below the output directory.
    pub(crate) log: String,
    pub(crate) name: String,
}

impl fmt::Display for TestResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\t{}\t{}\t{}", self.outcome.word(), self.time.as_secs(), self.log, self.name)
    }
}

impl FromStr for TestResult {
    type Err = &'static str;

    fn from_str(line: &str) -> Result<Self, &'static str> {
        let fields: Vec<_> = line.split('\t').collect();
        let [outcome, seconds, log, name] = fields[..] else {
            return Err("a result, its seconds, a log and a name are expected, separated by tabs");
        };
        let outcome = Outcome::ALL.into_iter().find(|known| known.word() == outcome);
        Ok(Self {
            outcome: outcome.ok_or("the result is not passed, failed or skipped")?,
            time: seconds.parse().map(Duration::from_secs).map_err(|_| "the seconds are not a number")?,
            log: log.to_owned(),
            name: name.to_owned(),
        })
    }
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {number} is invalid: {problem}; delete the line or name another directory with --output")]
struct LineError {
    number: usize,
    problem: &'static str,
}

/// The file with one line for each run of a test. The last line of a test applies.
#[derive(Debug)]
pub(crate) struct Results {
    file: File,
    by_name: BTreeMap<String, TestResult>,
}

impl Results {
    /// Opens the file in the output directory, or creates it.
    pub(crate) fn open(directory: &Path) -> Result<Self, StepError> {
        let path = directory.join(FILE);
        Self::read(&path).map_err(StepError::of(format!("read {}", path.display())))
    }

    fn read(path: &Path) -> Result<Self, Box<dyn Error + Send + Sync>> {
        let mut file = File::options().read(true).append(true).create(true).open(path)?;
        let mut text = Vec::new();
        file.read_to_end(&mut text)?;
        // A full disk or a crash can leave a part of a line, to which the next result must not be appended.
        text.truncate(text.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1));
        file.set_len(text.len() as u64)?;
        Ok(Self { file, by_name: parse(&String::from_utf8(text)?)? })
    }

    /// Writes the result at once.
    pub(crate) fn add(&mut self, result: TestResult) -> Result<(), StepError> {
        let line = format!("{result}\n");
        self.file.write_all(line.as_bytes()).map_err(StepError::of(format!("write {FILE}")))?;
        self.by_name.insert(result.name.clone(), result);
        Ok(())
    }

    /// The tests that have neither passed nor been skipped, in the same order.
    pub(crate) fn remaining<'a>(&self, names: &'a [String]) -> Vec<&'a str> {
        let is_done = |name: &str| self.by_name.get(name).is_some_and(|result| result.outcome != Outcome::Failed);
        names.iter().map(String::as_str).filter(|&name| !is_done(name)).collect()
    }

    /// Results of those tests that have one, in the same order.
    pub(crate) fn finished<'a>(&'a self, names: &'a [String]) -> impl Iterator<Item = &'a TestResult> {
        names.iter().filter_map(|name| self.by_name.get(name))
    }

    pub(crate) fn summary(&self, names: &[String]) -> Summary<'_> {
        let mut summary = Summary::default();
        for name in names {
            let Some(result) = self.by_name.get(name) else {
                summary.not_run += 1;
                continue;
            };
            match result.outcome {
                Outcome::Passed => summary.passed += 1,
                Outcome::Failed => summary.failed.push(result),
                Outcome::Skipped => summary.skipped += 1,
            }
        }
        summary
    }
}

fn parse(text: &str) -> Result<BTreeMap<String, TestResult>, LineError> {
    let lines = text.lines().zip(1..).map(|(line, number)| match line.parse::<TestResult>() {
        Ok(result) => Ok((result.name.clone(), result)),
        Err(problem) => Err(LineError { number, problem }),
    });
    lines.collect()
}

#[derive(Debug, Default)]
pub(crate) struct Summary<'a> {
    passed: usize,
    failed: Vec<&'a TestResult>,
    skipped: usize,
    not_run: usize,
}

impl Summary<'_> {
    pub(crate) fn is_success(&self) -> bool {
        self.failed.is_empty() && self.not_run == 0
    }
}

impl fmt::Display for Summary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { passed, failed, skipped, not_run } = self;
        write!(f, "{passed} passed, {} failed, {skipped} skipped, {not_run} not run", failed.len())?;
        failed.iter().try_for_each(|result| write!(f, "\nfailed: {} ({})", result.name, result.log))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn result(outcome: Outcome, name: &str) -> TestResult {
        TestResult { outcome, time: Duration::from_millis(12_345), log: "logs/007.log".into(), name: name.into() }
    }

    #[test]
    fn a_line_has_four_fields() {
        let line = "skipped\t12\tlogs/007.log\t[sig-a] A b";
        assert_eq!(result(Outcome::Skipped, "[sig-a] A b").to_string(), line);
        let parsed: TestResult = line.parse().unwrap();
        assert_eq!(parsed, TestResult { time: Duration::from_secs(12), ..result(Outcome::Skipped, "[sig-a] A b") });
    }

    #[test]
    fn an_invalid_line_is_reported_with_its_number() {
        let number = |line: &str| parse(&format!("passed\t1\tlogs/001.log\tA\n{line}\n")).unwrap_err().number;
        for line in ["", "passed\t1\tA", "passed\t1\tl\tA\tB", "Passed\t1\tl\tA", "passed\t-1\tl\tA"] {
            assert_eq!(number(line), 2, "{line:?}");
        }
    }

    #[test]
    fn a_test_passes_only_if_it_ran() {
        let log = |ran: &str| format!("Ran 0 of 1 Specs in a pod\nRan {ran} of 7000 Specs in 1.5 seconds\nSUCCESS!\n");
        assert_eq!(Outcome::of(true, &log("1")), Outcome::Passed);
        assert_eq!(Outcome::of(true, &log("0")), Outcome::Skipped);
        assert_eq!(Outcome::of(false, &log("1")), Outcome::Failed);
        // The setup of the suite failed.
        assert_eq!(Outcome::of(false, &log("0")), Outcome::Failed);
        assert_eq!(Outcome::of(true, "no test\n"), Outcome::Failed);
    }

    #[test]
    fn a_further_run_repeats_tests_without_a_success() {
        let directory = tempfile::tempdir().unwrap();
        let names = ["A", "B", "C", "D", "E"].map(str::to_owned);
        let mut first = Results::open(directory.path()).unwrap();
        assert_eq!(first.remaining(&names), ["A", "B", "C", "D", "E"]);
        for (outcome, name) in [(Outcome::Passed, "A"), (Outcome::Failed, "B"), (Outcome::Skipped, "C")] {
            first.add(result(outcome, name)).unwrap();
        }
        assert_eq!(first.remaining(&names), ["B", "D", "E"]);

        // The end of a run within a write.
        let path = directory.path().join(FILE);
        let torn = fs::read_to_string(&path).unwrap() + "passed\t12\tlogs/004.log\tD";
        fs::write(&path, torn).unwrap();
        let mut second = Results::open(directory.path()).unwrap();
        assert_eq!(second.remaining(&names), ["B", "D", "E"]);
        second.add(result(Outcome::Passed, "B")).unwrap();
        second.add(result(Outcome::Failed, "D")).unwrap();

        let third = Results::open(directory.path()).unwrap();
        assert_eq!(third.remaining(&names), ["D", "E"]);
        let summary = third.summary(&names).to_string();
        assert_eq!(summary, "2 passed, 1 failed, 1 skipped, 1 not run\nfailed: D (logs/007.log)");
    }

    #[test]
    fn a_run_succeeds_if_no_selected_test_failed_or_is_missing() {
        let directory = tempfile::tempdir().unwrap();
        let mut results = Results::open(directory.path()).unwrap();
        for (outcome, name) in [(Outcome::Passed, "A"), (Outcome::Skipped, "B"), (Outcome::Failed, "C")] {
            results.add(result(outcome, name)).unwrap();
        }
        let is_success = |names: &[&str]| {
            let names: Vec<_> = names.iter().copied().map(str::to_owned).collect();
            results.summary(&names).is_success()
        };
        assert!(is_success(&["A", "B"]));
        assert!(!is_success(&["A", "C"]));
        assert!(!is_success(&["A", "D"]));
    }
}
