//! The command line.

use crate::Check;

/// Asks for a copy of the finding in [`Request::REPORT_FILE`].
const REPORT: &str = "--report";

/// One check and where its finding goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// What to look at.
    pub check: Check,
    /// Whether the finding is written to the pod's status too.
    pub report: bool,
}

/// The command line asks for nothing that this program does.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("no such check: {given:?}; give one of: {}; and --report for a copy in the pod's status", Check::FORMS)]
pub struct UsageError {
    given: Vec<String>,
}

impl Request {
    /// The container's message in its pod's status.
    pub const REPORT_FILE: &str = "/dev/termination-log";

    /// Reads the arguments after the program's name.
    ///
    /// # Errors
    /// An unknown word, or one too many or too few.
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

    /// The arguments that [`Request::parse`] reads back.
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
        fn arguments_read_back_as_the_request(check in any_check(), report in any::<bool>()) {
            let request = Request { check, report };
            prop_assert_eq!(Request::parse(request.arguments()), Ok(request));
        }
    }

    #[test]
    fn a_word_too_many_is_refused() {
        let given = words(&["inspect", "/data", "now"]);
        assert_eq!(Request::parse(given.clone()), Err(UsageError { given }));
    }

    #[test]
    fn a_missing_path_is_refused() {
        assert!(Request::parse(words(&["fill", "--report"])).is_err());
    }
}
