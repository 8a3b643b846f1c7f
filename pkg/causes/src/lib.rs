//! Prints an error together with the chain of its causes.
//!
//! ```
//! use std::io;
//!
//! let error = io::Error::other(io::Error::other("the disk is gone"));
//! assert_eq!(causes::lines(&error).to_string(), "the disk is gone");
//! ```
#![forbid(unsafe_code)]
#![warn(missing_docs)]

use std::error::Error;
use std::fmt;
use std::iter;
use std::process::ExitCode;

fn chain<'a>(error: &'a (dyn Error + 'a)) -> impl Iterator<Item = &'a (dyn Error + 'a)> {
    let causes = iter::successors(error.source(), |&cause| cause.source());
    iter::once(error).chain(causes.map(|cause| cause as &(dyn Error + 'a)))
}

/// Displays the error and its causes ([`Error::source`]), one per line, without a newline at the end. Each cause is
/// prefixed with `caused by: `.
pub fn lines<'a>(error: &'a (dyn Error + 'a)) -> impl fmt::Display + 'a {
    fmt::from_fn(move |f| {
        write!(f, "{error}")?;
        chain(error).skip(1).try_for_each(|cause| write!(f, "\ncaused by: {cause}"))
    })
}

/// The error and its causes in one line, separated by colons. A cause is omitted if the line already ends with its
/// text, such as that of a transparent error.
pub fn line<'a>(error: &'a (dyn Error + 'a)) -> String {
    let mut line = error.to_string();
    for cause in chain(error).skip(1) {
        let cause = cause.to_string();
        if !line.ends_with(&cause) {
            line.push_str(": ");
            line.push_str(&cause);
        }
    }
    line
}

/// The error as the value of a log field, which contains its causes.
pub const fn of<'a>(error: &'a (dyn Error + 'static)) -> &'a (dyn Error + 'static) {
    error
}

/// The exit code of a program's `main`. Prints an error with its causes to standard error.
pub fn exit_code(result: Result<(), Box<dyn Error>>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", lines(&*error));
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Step(&'static str, Option<Box<Step>>);

    impl fmt::Display for Step {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    impl Error for Step {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            self.1.as_deref().map(|cause| cause as &(dyn Error + 'static))
        }
    }

    #[test]
    fn each_cause_is_printed_on_its_own_line() {
        let error = Step("no node", Some(Box::new(Step("no disk", Some(Box::new(Step("no power", None)))))));
        assert_eq!(lines(&error).to_string(), "no node\ncaused by: no disk\ncaused by: no power");
        assert_eq!(line(&error), "no node: no disk: no power");
    }

    #[test]
    fn a_text_that_contains_its_cause_is_not_repeated() {
        let error = Step("no node", Some(Box::new(Step("no disk: no power", Some(Box::new(Step("no power", None)))))));
        assert_eq!(line(&error), "no node: no disk: no power");
    }

    #[test]
    fn an_error_without_a_cause_is_printed_on_one_line() {
        assert_eq!(lines(&Step("no node", None)).to_string(), "no node");
    }
}
