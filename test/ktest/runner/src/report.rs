//! The report that Bazel reads: JUnit XML, one case per test.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use quick_junit::{NonSuccessKind, Report, SerializeError, TestCase, TestCaseStatus, TestSuite};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Test {
    pub name: String,
    pub status: Status,
    pub time: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Status {
    Passed(String),
    Failed(String),
    Ignored(String),
}

#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    #[error("cannot create the report")]
    Create(#[source] io::Error),
    #[error("cannot write the report")]
    Serialize(#[from] SerializeError),
}

impl Test {
    pub fn has_failed(&self) -> bool {
        matches!(self.status, Status::Failed(_))
    }
}

/// Writes the report. `fault` is an error that is not a test's, such as a panic of the guest.
pub fn write(path: &Path, name: &str, tests: &[Test], fault: Option<&str>, time: Duration) -> Result<(), ReportError> {
    serialize(File::create(path).map_err(ReportError::Create)?, name, tests, fault, time)
}

fn serialize(
    to: impl Write,
    name: &str,
    tests: &[Test],
    fault: Option<&str>,
    time: Duration,
) -> Result<(), ReportError> {
    let mut suite = TestSuite::new(name);
    suite.set_time(time);
    suite.add_test_cases(tests.iter().map(case));
    if let Some(fault) = fault {
        let mut status = TestCaseStatus::non_success(NonSuccessKind::Error);
        status.set_message(fault);
        suite.add_test_case(TestCase::new("guest", status));
    }
    let mut report = Report::new(name);
    report.set_time(time).add_test_suite(suite);
    Ok(report.serialize(to)?)
}

fn case(test: &Test) -> TestCase {
    let status = match &test.status {
        Status::Passed(_) => TestCaseStatus::success(),
        Status::Failed(output) => {
            let mut status = TestCaseStatus::non_success(NonSuccessKind::Failure);
            status.set_message(output.lines().next().unwrap_or_default()).set_description(output);
            status
        }
        Status::Ignored(reason) => {
            let mut status = TestCaseStatus::skipped();
            status.set_message(reason);
            status
        }
    };
    let mut case = TestCase::new(test.name.as_str(), status);
    case.set_time(test.time);
    case
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(tests: &[Test], fault: Option<&str>) -> String {
        let mut xml = Vec::new();
        serialize(&mut xml, "//pkg/fsquota:quota_ktest", tests, fault, Duration::from_millis(7500)).unwrap();
        String::from_utf8(xml).unwrap()
    }

    #[test]
    fn each_test_is_a_case() {
        let test = |name: &str, status| Test { name: name.into(), status, time: Duration::from_millis(12) };
        let tests = [
            test("a::holds", Status::Passed(String::new())),
            test("a::grows", Status::Failed("panicked at <x>\nleft: 1".into())),
            test("a::waits", Status::Ignored(String::new())),
        ];
        let xml = written(&tests, None);
        assert!(xml.contains("tests=\"3\" disabled=\"1\" errors=\"0\" failures=\"1\""), "{xml}");
        assert!(
            xml.contains("<failure message=\"panicked at &lt;x&gt;\">panicked at &lt;x&gt;\nleft: 1</failure>"),
            "{xml}"
        );
        assert!(xml.contains("<testcase name=\"a::holds\" time=\"0.012\""), "{xml}");
    }

    #[test]
    fn a_fault_of_the_guest_is_an_error() {
        let xml = written(&[], Some("the guest's kernel panicked"));
        assert!(xml.contains("errors=\"1\"") && xml.contains("kernel panicked"), "{xml}");
    }
}
