//! The command line.

use std::path::PathBuf;

/// Asks for a copy of the finding in [`Request::REPORT_FILE`].
const REPORT: &str = "--report";
/// Leaves the file of [`Check::Fill`] behind.
const KEEP: &str = "--keep";

/// One check and where its finding goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// What to look at.
    pub check: Check,
    /// Whether the finding is written to the pod's status too.
    pub report: bool,
}

/// What to look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Check {
    /// `inspect PATH`: size, inodes and flags of the file system there, owner and mode of the path.
    Inspect {
        /// Any path.
        path: PathBuf,
    },
    /// `fill PATH [--keep]`: writes a file in the directory until the first error.
    Fill {
        /// A directory.
        path: PathBuf,
        /// Whether the file stays.
        keep: bool,
    },
    /// `fill-inodes PATH`: makes empty files in the directory until the first error, then removes them.
    FillInodes {
        /// A directory.
        path: PathBuf,
    },
    /// `write PATH TEXT`: makes a file durable.
    Write {
        /// The file.
        path: PathBuf,
        /// Its new content.
        text: String,
    },
    /// `read PATH`: at most [`Check::READ_LIMIT`] bytes.
    Read {
        /// The file.
        path: PathBuf,
    },
    /// `checksum PATH`: SHA-256 of a whole file.
    Checksum {
        /// The file.
        path: PathBuf,
    },
    /// `execute PATH`: copies this program into the directory and runs the copy.
    Execute {
        /// A directory.
        path: PathBuf,
    },
    /// `demo PATH TEXT`: finds what an earlier run wrote, writes a small file, fills the directory to
    /// its limit and keeps only the small file.
    Demo {
        /// A directory.
        path: PathBuf,
        /// Content of the small file.
        text: String,
    },
    /// `volumes PATH`: names and projects of what lies below a directory of the node, two levels deep, and
    /// every project of its file system. Needs `CAP_SYS_ADMIN`.
    Volumes {
        /// A directory.
        path: PathBuf,
    },
    /// `sleep`: holds the container until SIGTERM.
    Sleep,
}

/// The command line asks for nothing that this program does.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no such check: {given:?}; give one of: inspect PATH, fill PATH [--keep], fill-inodes PATH, write PATH TEXT, \
     read PATH, checksum PATH, execute PATH, demo PATH TEXT, volumes PATH, sleep; and --report for a copy in the pod's status"
)]
pub struct UsageError {
    given: Vec<String>,
}

impl Check {
    /// Most that [`Check::Read`] returns, in bytes: a container's message in the pod's status holds 4 KiB.
    pub const READ_LIMIT: u64 = 2048;
}

impl Request {
    /// The container's message in its pod's status.
    pub const REPORT_FILE: &str = "/dev/termination-log";

    /// Reads the arguments after the program's name.
    ///
    /// # Errors
    /// An unknown word, or one too many or too few.
    pub fn parse(given: Vec<String>) -> Result<Self, UsageError> {
        let words: Vec<&str> = given.iter().map(String::as_str).filter(|word| *word != REPORT).collect();
        let check = match words.as_slice() {
            ["inspect", path] => Check::Inspect { path: path.into() },
            ["fill", path] => Check::Fill { path: path.into(), keep: false },
            ["fill", path, KEEP] => Check::Fill { path: path.into(), keep: true },
            ["fill-inodes", path] => Check::FillInodes { path: path.into() },
            ["write", path, text] => Check::Write { path: path.into(), text: (*text).to_owned() },
            ["read", path] => Check::Read { path: path.into() },
            ["checksum", path] => Check::Checksum { path: path.into() },
            ["execute", path] => Check::Execute { path: path.into() },
            ["demo", path, text] => Check::Demo { path: path.into(), text: (*text).to_owned() },
            ["volumes", path] => Check::Volumes { path: path.into() },
            ["sleep"] => Check::Sleep,
            _ => return Err(UsageError { given }),
        };
        let report = words.len() < given.len();
        Ok(Self { check, report })
    }

    /// The arguments that [`Request::parse`] reads back.
    pub fn arguments(&self) -> Vec<String> {
        let path = |path: &PathBuf| path.to_string_lossy().into_owned();
        let mut arguments = match &self.check {
            Check::Inspect { path: of } => vec!["inspect".to_owned(), path(of)],
            Check::Fill { path: of, keep: false } => vec!["fill".to_owned(), path(of)],
            Check::Fill { path: of, keep: true } => vec!["fill".to_owned(), path(of), KEEP.to_owned()],
            Check::FillInodes { path: of } => vec!["fill-inodes".to_owned(), path(of)],
            Check::Write { path: of, text } => vec!["write".to_owned(), path(of), text.clone()],
            Check::Read { path: of } => vec!["read".to_owned(), path(of)],
            Check::Checksum { path: of } => vec!["checksum".to_owned(), path(of)],
            Check::Execute { path: of } => vec!["execute".to_owned(), path(of)],
            Check::Demo { path: of, text } => vec!["demo".to_owned(), path(of), text.clone()],
            Check::Volumes { path: of } => vec!["volumes".to_owned(), path(of)],
            Check::Sleep => vec!["sleep".to_owned()],
        };
        if self.report {
            arguments.push(REPORT.to_owned());
        }
        arguments
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    fn any_check() -> impl Strategy<Value = Check> {
        let path = "/[a-z]{1,8}".prop_map(PathBuf::from);
        let text = "[a-z ]{0,12}";
        prop_oneof![
            path.clone().prop_map(|path| Check::Inspect { path }),
            (path.clone(), any::<bool>()).prop_map(|(path, keep)| Check::Fill { path, keep }),
            path.clone().prop_map(|path| Check::FillInodes { path }),
            (path.clone(), text).prop_map(|(path, text)| Check::Write { path, text }),
            path.clone().prop_map(|path| Check::Read { path }),
            path.clone().prop_map(|path| Check::Checksum { path }),
            path.clone().prop_map(|path| Check::Execute { path }),
            (path.clone(), text).prop_map(|(path, text)| Check::Demo { path, text }),
            path.prop_map(|path| Check::Volumes { path }),
            Just(Check::Sleep),
        ]
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
