//! Results for Bazel: JUnit XML.

use quick_junit::{NonSuccessKind, Report, SerializeError, TestCase, TestCaseStatus, TestSuite};
use std::fs::File;
use std::io;
use std::path::Path;
use std::time::Duration;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) name: String,
    /// What it said at its end, if it failed.
    pub(crate) failure: Option<String>,
    pub(crate) time: Duration,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum ReportError {
    #[error("cannot create the report's file")]
    Create(#[source] io::Error),
    #[error("cannot write the report")]
    Write(#[source] SerializeError),
}

pub(crate) fn write(path: &Path, suite: &str, outcomes: &[Outcome]) -> Result<(), ReportError> {
    let file = File::create(path).map_err(ReportError::Create)?;
    report(suite, outcomes).serialize(file).map_err(ReportError::Write)
}

fn report(name: &str, outcomes: &[Outcome]) -> Report {
    let mut suite = TestSuite::new(name);
    suite.add_test_cases(outcomes.iter().map(|outcome| {
        let status = match &outcome.failure {
            None => TestCaseStatus::success(),
            Some(text) => {
                let mut status = TestCaseStatus::non_success(NonSuccessKind::Failure);
                status.set_message(text.lines().next().unwrap_or_default()).set_description(text);
                status
            }
        };
        let mut case = TestCase::new(outcome.name.as_str(), status);
        case.set_time(outcome.time);
        case
    }));
    let mut report = Report::new(name);
    report.add_test_suite(suite);
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_counted_and_shown() {
        let outcome = |name: &str, failure: Option<&str>| Outcome {
            name: name.into(),
            failure: failure.map(str::to_owned),
            time: Duration::from_millis(1500),
        };
        let outcomes = [outcome("holds", None), outcome("breaks", Some("left: 1\nright: 2"))];
        let xml = report("volumes", &outcomes).to_string().unwrap();
        assert!(xml.contains("tests=\"2\" disabled=\"0\" errors=\"0\" failures=\"1\""), "{xml}");
        assert!(xml.contains("<failure message=\"left: 1\">"), "{xml}");
    }
}
