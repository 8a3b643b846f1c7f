//! Did the test pass, and if not, why not? Pure.

use std::fmt;

use ktest_init::Outcome;

use crate::guest::End;
use crate::libtest::{Status, Test};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Passed,
    /// So many tests failed.
    Failed(usize),
    /// Nothing was tested although nothing was left out by name.
    Empty,
    /// The test program ended otherwise than its tests say.
    Ended(Outcome),
    /// The guest is at fault.
    Guest(String),
}

impl Verdict {
    pub(crate) fn new(end: &End, tests: &[Test], arguments: &[String]) -> Self {
        let failed = tests.iter().filter(|test| matches!(test.status, Status::Failed(_))).count();
        match end {
            End::Exit(Outcome::Code(0)) if ran(tests) || chosen(arguments) => Self::Passed,
            End::Exit(Outcome::Code(0)) => Self::Empty,
            End::Exit(_) if failed > 0 => Self::Failed(failed),
            End::Exit(outcome) => Self::Ended(*outcome),
            End::Fault(causes) => Self::Guest(causes.join(": ")),
            End::Panicked => Self::Guest("the guest's kernel panicked".into()),
            End::Gone(exit) => Self::Guest(format!("the VM ended without a status of the test ({exit})")),
            End::Silent => Self::Guest("the VM runs, but its connection to the host is closed".into()),
            End::Hung(limit) => Self::Guest(format!(
                "the test did not end within {} s; what the guest waits for is on its console",
                limit.as_secs()
            )),
        }
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
            Self::Guest(why) => f.write_str(why),
        }
    }
}

fn ran(tests: &[Test]) -> bool {
    tests.iter().any(|test| !matches!(test.status, Status::Ignored(_)))
}

/// Were tests chosen by name, or only listed?
fn chosen(arguments: &[String]) -> bool {
    arguments.iter().any(|argument| !argument.starts_with('-') || argument == "--list")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn test(status: Status) -> Vec<Test> {
        vec![Test { name: "a".into(), status }]
    }

    #[test]
    fn a_program_without_tests_fails() {
        let end = End::Exit(Outcome::Code(0));
        assert_eq!(Verdict::new(&end, &[], &[]), Verdict::Empty);
        assert_eq!(Verdict::new(&end, &[], &["--nocapture".into()]), Verdict::Empty);
        assert_eq!(Verdict::new(&end, &test(Status::Ignored(String::new())), &[]), Verdict::Empty);
        assert_eq!(Verdict::new(&end, &test(Status::Passed), &[]), Verdict::Passed);
    }

    #[test]
    fn a_filter_may_match_nothing() {
        assert_eq!(Verdict::new(&End::Exit(Outcome::Code(0)), &[], &["elsewhere".into()]), Verdict::Passed);
    }

    #[test]
    fn the_status_counts_whatever_was_printed() {
        let died = Outcome::Signal(11);
        assert_eq!(Verdict::new(&End::Exit(died), &test(Status::Passed), &[]), Verdict::Ended(died));
        let failed = test(Status::Failed(String::new()));
        assert_eq!(Verdict::new(&End::Exit(Outcome::Code(101)), &failed, &[]), Verdict::Failed(1));
    }

    #[test]
    fn a_guest_without_a_status_is_never_a_success() {
        for end in [End::Panicked, End::Silent, End::Fault(vec!["a".into()]), End::Hung(Duration::from_secs(9))] {
            let verdict = Verdict::new(&end, &test(Status::Passed), &["a".into()]);
            assert!(matches!(verdict, Verdict::Guest(_)), "{end:?}: {verdict}");
        }
    }
}
