//! Arguments of a test program, as its harness reads them. Pure.

use crate::libtest::OPTIONS;

/// Options of the harness whose value may be the next argument.
const VALUED: [&str; 7] = ["--test-threads", "--skip", "--color", "--format", "--logfile", "--shuffle-seed", "-Z"];

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Arguments {
    options: Vec<String>,
    filters: Vec<String>,
}

impl Arguments {
    pub(crate) fn parse(arguments: impl Iterator<Item = String>) -> Self {
        let mut parsed = Self::default();
        let mut arguments = arguments;
        while let Some(argument) = arguments.next() {
            if argument == "--" {
                parsed.filters.extend(arguments);
                break;
            }
            if !argument.starts_with('-') {
                parsed.filters.push(argument);
                continue;
            }
            let valued = VALUED.contains(&argument.as_str());
            parsed.options.push(argument);
            parsed.options.extend(if valued { arguments.next() } else { None });
        }
        parsed
    }

    pub(crate) fn chosen(&self) -> Vec<String> {
        self.with(&[], &self.filters)
    }

    pub(crate) fn list(&self) -> Vec<String> {
        self.with(&["--list"], &self.filters)
    }

    pub(crate) fn exactly(&self, names: &[String]) -> Vec<String> {
        self.with(&["--exact"], names)
    }

    /// Whether a run without any test may pass: tests were chosen by name, or only listed.
    pub(crate) fn may_match_nothing(&self) -> bool {
        !self.filters.is_empty() || self.has("--list")
    }

    fn has(&self, option: &str) -> bool {
        self.options.iter().any(|given| given == option)
    }

    fn with(&self, more: &[&str], filters: &[String]) -> Vec<String> {
        let more = more.iter().filter(|option| !self.has(option)).chain(&OPTIONS).map(ToString::to_string);
        let separator = (!filters.is_empty()).then(|| "--".to_owned());
        self.options.iter().cloned().chain(more).chain(separator).chain(filters.iter().cloned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parsed(text: &str) -> Arguments {
        Arguments::parse(text.split_whitespace().map(str::to_owned))
    }

    fn line(arguments: &[String]) -> String {
        arguments.join(" ").replace(&OPTIONS.join(" "), "JSON")
    }

    #[test]
    fn names_are_distinguished_from_values() {
        let arguments = parsed("--test-threads 1 quota --skip slow --nocapture --skip=old -- --odd");
        assert_eq!(arguments.filters, ["quota", "--odd"]);
        assert_eq!(
            line(&arguments.chosen()),
            "--test-threads 1 --skip slow --nocapture --skip=old JSON -- quota --odd"
        );
    }

    #[test]
    fn what_was_not_chosen_does_not_run_after_a_power_cut() {
        let arguments = parsed("--ignored quota");
        assert_eq!(line(&arguments.list()), "--ignored --list JSON -- quota");
        assert_eq!(line(&arguments.exactly(&["a::b".into(), "c".into()])), "--ignored --exact JSON -- a::b c");
    }

    #[test]
    fn no_option_is_given_twice() {
        assert_eq!(line(&parsed("--exact a").exactly(&["a".into()])), "--exact JSON -- a");
        assert_eq!(line(&parsed("--list").list()), "--list JSON");
    }

    #[test]
    fn only_a_choice_by_name_may_match_nothing() {
        assert!(parsed("quota").may_match_nothing() && parsed("--list").may_match_nothing());
        assert!(!parsed("--test-threads 1").may_match_nothing() && !parsed("--skip a").may_match_nothing());
    }

    proptest! {
        #[test]
        fn nothing_is_lost(given in prop::collection::vec("(-{0,2}[a-z]{1,5}|--skip)", 0..9)) {
            prop_assume!(!given.contains(&"--".to_owned()));
            let mut kept = Arguments::parse(given.iter().cloned()).chosen();
            kept.retain(|argument| argument != "--" && !OPTIONS.contains(&argument.as_str()));
            let mut given = given;
            kept.sort_unstable();
            given.sort_unstable();
            prop_assert_eq!(kept, given);
        }
    }
}
