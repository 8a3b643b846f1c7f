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
use std::process::ExitCode;

/// Displays the error and its causes ([`Error::source`]), one per line; each cause is prefixed with `caused by: `.
/// There is no line break at the end.
pub fn lines<'a>(error: &'a (dyn Error + 'a)) -> impl fmt::Display + 'a {
    fmt::from_fn(move |f| {
        write!(f, "{error}")?;
        let mut next = error.source();
        while let Some(cause) = next {
            write!(f, "\ncaused by: {cause}")?;
            next = cause.source();
        }
        Ok(())
    })
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
    }

    #[test]
    fn an_error_without_a_cause_is_printed_on_one_line() {
        assert_eq!(lines(&Step("no node", None)).to_string(), "no node");
    }
}
