//! The command line.

use crate::Check;

/// Option that also writes the finding to [`Request::REPORT_FILE`].
const REPORT: &str = "--report";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    pub check: Check,
    pub report: bool,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown check: {given:?}; use one of: {}; and --report for a copy in the status of the pod", Check::FORMS)]
pub struct UsageError {
    given: Vec<String>,
}

impl Request {
    /// Termination message of the container, which the kubelet copies to the status of its pod.
    pub const REPORT_FILE: &str = "/dev/termination-log";

    /// Parses the arguments after the name of the program.
    pub fn parse(given: Vec<String>) -> Result<Self, UsageError> {
        let (words, report) = match given.split_last() {
            Some((last, words)) if last == REPORT => (words, true),
            _ => (given.as_slice(), false),
        };
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        match Check::parse(&words) {
            Some(check) => Ok(Self { check, report }),
            None => Err(UsageError { given }),
        }
    }

    pub fn arguments(&self) -> Vec<String> {
        let mut arguments = self.check.words();
        arguments.extend(self.report.then(|| REPORT.to_owned()));
        arguments
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::tests::any_check;
    use proptest::prelude::*;

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    proptest! {
        #[test]
        fn arguments_are_parsed_as_the_request(check in any_check(), report in any::<bool>()) {
            let request = Request { check, report };
            prop_assert_eq!(Request::parse(request.arguments()), Ok(request));
        }
    }

    #[test]
    fn missing_and_extra_words_are_rejected() {
        for given in [words(&["inspect", "/data", "now"]), words(&["fill", "--report"]), words(&["serve", "99999"])] {
            assert_eq!(Request::parse(given.clone()), Err(UsageError { given }));
        }
    }
}
