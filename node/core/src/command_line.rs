//! The node's parameters on the kernel's command line. They take effect before the configuration is read.

use config::FailureAction;
use tracing::Level;

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommandLineError {
    /// A parameter with the node's prefix that this release does not support.
    #[error(
        "the kernel command line has {word}, which this release does not support; supported are {}; all other settings \
         are in the configuration",
        WORDS.join(", ")
    )]
    Unknown { word: String },
    #[error("the kernel command line has {LOG}={0}; use error, warn, info, debug or trace")]
    Level(String),
    #[error("the kernel command line has {FAILURE}={0}; use poweroff or reboot")]
    Failure(String),
}

const LOG: &str = "granary.log";
const FAILURE: &str = "granary.failure";
/// Only the initramfs of a direct boot reads `granary.system`; it also reads `granary.failure`.
const WORDS: [&str; 3] = [LOG, FAILURE, "granary.system"];

/// The node's parameters on the kernel's command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandLine {
    /// Lowest level of the programs' messages on the console; `error` by default.
    pub log: Level,
    /// Action if the node cannot start, until the configuration is read.
    pub on_failure: FailureAction,
}

impl CommandLine {
    /// Parses the command line. Words without the prefix `granary.` are the kernel's. The last value of a parameter
    /// counts.
    pub fn parse(line: &str) -> Result<Self, CommandLineError> {
        for word in line.split_whitespace().filter(|word| word.starts_with("granary.")) {
            let word = word.split_once('=').map_or(word, |(key, _)| key);
            if !WORDS.contains(&word) {
                return Err(CommandLineError::Unknown { word: word.to_owned() });
            }
        }
        let on_failure = match value(line, FAILURE) {
            None | Some("poweroff") => FailureAction::PowerOff,
            Some("reboot") => FailureAction::Reboot,
            Some(other) => return Err(CommandLineError::Failure(other.to_owned())),
        };
        let log = match value(line, LOG) {
            None => Level::ERROR,
            Some(text) => text.parse().map_err(|_| CommandLineError::Level(text.to_owned()))?,
        };
        Ok(Self { log, on_failure })
    }
}

fn value<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    line.split_whitespace().filter_map(|word| word.strip_prefix(key)?.strip_prefix('=')).next_back()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn words_of_ours_are_read_and_others_left_to_the_kernel() {
        let line = "console=ttyS0 granary.system=x granary.failure=poweroff granary.failure=reboot granary.log=warn\n";
        let read = CommandLine::parse(line).unwrap();
        assert_eq!(read, CommandLine { log: Level::WARN, on_failure: FailureAction::Reboot });
        let read = CommandLine::parse("quiet").unwrap();
        assert_eq!(read, CommandLine { log: Level::ERROR, on_failure: FailureAction::PowerOff });
    }

    #[test]
    fn a_word_that_is_none_of_ours_is_named_with_those_that_exist() {
        let error = CommandLine::parse("granary.address=10.0.2.15/24").unwrap_err();
        assert_eq!(error, CommandLineError::Unknown { word: "granary.address".into() });
        assert!(error.to_string().contains("granary.log, granary.failure"), "{error}");
    }

    #[test]
    fn a_bad_value_names_its_word() {
        for (line, error) in [
            ("granary.log=loud", CommandLineError::Level("loud".into())),
            ("granary.failure=halt", CommandLineError::Failure("halt".into())),
        ] {
            assert_eq!(CommandLine::parse(line), Err(error));
        }
    }

    proptest! {
        #[test]
        fn no_command_line_makes_it_panic(line in ".{0,200}", value in ".{0,40}") {
            let _ = CommandLine::parse(&line);
            let _ = CommandLine::parse(&format!("granary.log={value} granary.failure={value}"));
        }
    }
}
