//! Whether a test passed, and the reason of a failure. Pure.

use std::fmt;
use std::time::Duration;

use ktest_init::Outcome;

use crate::guest::End;
use crate::libtest::{Status, Test};
use crate::results::Results;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Passed,
    Failed(usize),
    /// No test ran, although no name was given to choose tests.
    Empty,
    /// The status of the test program contradicts the results of its tests.
    Ended(Outcome),
    /// The test program ended in the middle of these tests.
    Left(Outcome, Vec<String>),
    /// The guest failed for this reason while these tests ran.
    Guest(String, Vec<String>),
}

impl Verdict {
    /// `time` is the duration of the whole run. `may_be_empty`: tests were chosen by name, or only listed.
    pub(crate) fn new(end: &End, results: &Results, may_be_empty: bool, time: Duration) -> Self {
        let running = results.running();
        match end {
            End::Exit(outcome) if !running.is_empty() => Self::Left(*outcome, running),
            End::Exit(_) if results.failed() > 0 => Self::Failed(results.failed()),
            End::Exit(Outcome::Code(0)) if ran(results.ended()) || may_be_empty => Self::Passed,
            End::Exit(Outcome::Code(0)) => Self::Empty,
            End::Exit(outcome) => Self::Ended(*outcome),
            guest => Self::Guest(fault(guest, time), running),
        }
    }
}

pub(crate) fn fault(end: &End, time: Duration) -> String {
    match end {
        End::Fault(causes) => causes.join(": "),
        End::Panicked => "the guest's kernel panicked".into(),
        End::Gone(exit) => format!("the VM ended without a status of the program ({exit})"),
        End::Silent => "the VM runs, but its connection to the host is closed".into(),
        End::Hung => {
            format!("the test did not end within {} s; what the guest waits for is on its console", time.as_secs())
        }
        End::Exit(_) | End::PowerCut(_) => "the guest is well".into(),
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Passed => f.write_str("passed"),
            Self::Failed(1) => f.write_str("a test failed"),
            Self::Failed(count) => write!(f, "{count} tests failed"),
            Self::Empty => f.write_str("the test program ran no test; is it a rust_test with tests in it?"),
            Self::Ended(Outcome::Code(code)) => {
                write!(f, "the test program ended with status {code}, but no test failed")
            }
            Self::Ended(Outcome::Signal(signal)) => write!(f, "the test program was killed by signal {signal}"),
            Self::Left(Outcome::Code(code), tests) => {
                write!(f, "the test program ended with status {code} in the middle of {}", tests.join(", "))
            }
            Self::Left(Outcome::Signal(signal), tests) => {
                write!(f, "the test program was killed by signal {signal} in the middle of {}", tests.join(", "))
            }
            Self::Guest(why, tests) if tests.is_empty() => f.write_str(why),
            Self::Guest(why, tests) => write!(f, "{why}; it ran {}", tests.join(", ")),
        }
    }
}

fn ran(tests: &[Test]) -> bool {
    tests.iter().any(|test| !matches!(test.status, Status::Ignored(_)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::tests::results;

    const PASSED: Status = Status::Passed(String::new());
    const TIME: Duration = Duration::from_secs(9);

    fn verdict(end: &End, ended: &[(&str, Status)], running: &[&str]) -> Verdict {
        Verdict::new(end, &results(ended, running), false, TIME)
    }

    #[test]
    fn ignored_tests_alone_are_a_failure() {
        let ignored = [("a", Status::Ignored(String::new()))];
        assert_eq!(verdict(&End::Exit(Outcome::Code(0)), &ignored, &[]), Verdict::Empty);
    }

    #[test]
    fn a_filter_may_match_nothing() {
        assert_eq!(Verdict::new(&End::Exit(Outcome::Code(0)), &results(&[], &[]), true, TIME), Verdict::Passed);
    }

    #[test]
    fn the_status_counts_whatever_was_printed() {
        let died = Outcome::Signal(11);
        assert_eq!(verdict(&End::Exit(died), &[("a", PASSED)], &[]), Verdict::Ended(died));
        let failed = [("a", Status::Failed(String::new()))];
        assert_eq!(verdict(&End::Exit(Outcome::Code(101)), &failed, &[]), Verdict::Failed(1));
        assert_eq!(verdict(&End::Exit(Outcome::Code(0)), &failed, &[]), Verdict::Failed(1));
    }

    #[test]
    fn a_guest_without_a_status_fails_and_names_running_tests() {
        for end in [End::Silent, End::Fault(vec!["a".into()])] {
            let verdict = verdict(&end, &[("a", PASSED)], &["b"]);
            assert!(matches!(verdict, Verdict::Guest(..)), "{end:?}: {verdict}");
            assert!(verdict.to_string().ends_with("; it ran b"), "{verdict}");
        }
    }
}
