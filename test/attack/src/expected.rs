//! Expected results of attacks.

use core::fmt::{self, Write as _};

use crate::errno::Errno;
use crate::text::Text;

/// Text that the program must print after the attack's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    Succeeds,
    Fails(&'static [Errno]),
}

impl Expected {
    pub fn is(self, result: &str) -> bool {
        match self {
            Self::Succeeds => result == "succeeded",
            Self::Fails(errors) => errors.iter().any(|errno| {
                let mut line = Text::<64>::new();
                write!(line, "denied {errno}").is_ok() && line.as_str() == result
            }),
        }
    }
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Succeeds => f.write_str("succeeded"),
            Self::Fails(errors) => {
                f.write_str("denied")?;
                errors
                    .iter()
                    .enumerate()
                    .try_for_each(|(at, errno)| write!(f, "{} {errno}", if at == 0 { "" } else { " or" }))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_exact_error_is_expected() {
        let expected = Expected::Fails(&[Errno::EPERM, Errno::ENOSYS]);
        assert!(expected.is("denied EPERM") && expected.is("denied ENOSYS"));
        for other in ["succeeded", "denied ENXIO", "denied", "unexpected: open the device: EPERM", "denied EPERM "] {
            assert!(!expected.is(other), "{other}");
        }
        assert!(Expected::Succeeds.is("succeeded") && !Expected::Succeeds.is("denied EPERM"));
        assert_eq!(expected.to_string(), "denied EPERM or ENOSYS");
    }
}
