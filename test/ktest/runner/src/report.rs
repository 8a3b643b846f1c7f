//! The report that Bazel reads: JUnit XML, one case for each test.

use std::io::{self, Write};
use std::time::Duration;

use quick_junit::{NonSuccessKind, Report, SerializeError, TestCase, TestCaseStatus, TestSuite};

use crate::libtest::{Status, Test};
use crate::verdict::Verdict;

#[derive(Debug, thiserror::Error)]
pub(crate) enum ReportError {
    #[error("cannot create the file")]
    Create(#[source] io::Error),
    #[error("cannot write the file")]
    Serialize(#[from] SerializeError),
}

pub(crate) fn write(
    to: impl Write,
    name: &str,
    tests: &[Test],
    verdict: &Verdict,
    time: Duration,
) -> Result<(), ReportError> {
    let mut suite = TestSuite::new(name);
    suite.set_time(time);
    suite.add_test_cases(tests.iter().map(case));
    if !matches!(verdict, Verdict::Passed | Verdict::Failed(_)) {
        let mut status = TestCaseStatus::non_success(NonSuccessKind::Error);
        status.set_message(verdict.to_string());
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
    use crate::libtest::tests::test;

    fn written(tests: &[Test], verdict: &Verdict) -> String {
        let mut xml = Vec::new();
        write(&mut xml, "//pkg/fsquota:quota_ktest", tests, verdict, Duration::from_millis(7500)).unwrap();
        String::from_utf8(xml).unwrap()
    }

    #[test]
    fn each_test_is_a_case() {
        let tests = [
            test("a::holds", Status::Passed(String::new())),
            test("a::grows", Status::Failed("panicked at <x>\nleft: 1".into())),
            test("a::waits", Status::Ignored(String::new())),
        ];
        let xml = written(&tests, &Verdict::Failed(1));
        assert!(xml.contains("tests=\"3\" disabled=\"1\" errors=\"0\" failures=\"1\""), "{xml}");
        assert!(
            xml.contains("<failure message=\"panicked at &lt;x&gt;\">panicked at &lt;x&gt;\nleft: 1</failure>"),
            "{xml}"
        );
        assert!(xml.contains("<testcase name=\"a::holds\" time=\"0.012\""), "{xml}");
    }

    #[test]
    fn a_fault_of_the_guest_is_an_error_of_its_own() {
        let xml = written(&[], &Verdict::Guest("the guest's kernel panicked".into(), vec![]));
        assert!(xml.contains("errors=\"1\"") && xml.contains("kernel panicked"), "{xml}");
    }
}
