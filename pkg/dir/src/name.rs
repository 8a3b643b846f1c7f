//! One checked path component.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::OsStrExt;

/// The longest file name that Linux file systems store (`NAME_MAX`), in bytes.
const MAX_LEN: usize = 255;

/// One component of a path: not empty, not `.` or `..`, without `/` and NUL, at most 255 bytes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(OsString);

/// Why some text is no [`Name`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// There is nothing in it.
    #[error("a file name cannot be empty")]
    Empty,
    /// `.` and `..` name directories that are there already.
    #[error("a file name cannot be `.` or `..`")]
    Dots,
    /// It holds `/` or NUL.
    #[error("a file name cannot contain `/` or NUL")]
    Separator,
    /// The kernel would answer `ENAMETOOLONG`.
    #[error("a file name has at most {MAX_LEN} bytes, this one has {0}")]
    TooLong(usize),
}

impl Name {
    /// The name as the operating system takes it.
    pub fn as_os_str(&self) -> &OsStr {
        &self.0
    }

    /// The name as text, if it is UTF-8.
    pub fn to_str(&self) -> Option<&str> {
        self.0.to_str()
    }
}

impl TryFrom<&OsStr> for Name {
    type Error = NameError;

    fn try_from(text: &OsStr) -> Result<Self, NameError> {
        let bytes = text.as_bytes();
        match bytes {
            [] => Err(NameError::Empty),
            b"." | b".." => Err(NameError::Dots),
            _ if bytes.iter().any(|byte| matches!(byte, b'/' | 0)) => Err(NameError::Separator),
            _ if bytes.len() > MAX_LEN => Err(NameError::TooLong(bytes.len())),
            _ => Ok(Self(text.to_owned())),
        }
    }
}

impl TryFrom<&str> for Name {
    type Error = NameError;

    fn try_from(text: &str) -> Result<Self, NameError> {
        Self::try_from(OsStr::new(text))
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.display().fmt(f)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl AsRef<OsStr> for Name {
    fn as_ref(&self) -> &OsStr {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Component, Path};

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_no_single_component_is_refused() {
        assert_eq!(Name::try_from(""), Err(NameError::Empty));
        assert_eq!(Name::try_from("."), Err(NameError::Dots));
        assert_eq!(Name::try_from(".."), Err(NameError::Dots));
        assert_eq!(Name::try_from("a/b"), Err(NameError::Separator));
        assert_eq!(Name::try_from("/"), Err(NameError::Separator));
        assert_eq!(Name::try_from("a\0"), Err(NameError::Separator));
        assert_eq!(Name::try_from("a".repeat(256).as_str()), Err(NameError::TooLong(256)));
        assert!(Name::try_from("a".repeat(255).as_str()).is_ok());
        assert!(Name::try_from("...").is_ok());
    }

    proptest! {
        #[test]
        fn an_accepted_name_is_exactly_one_normal_component(text in ".{0,8}") {
            if let Ok(name) = Name::try_from(text.as_str()) {
                let components: Vec<_> = Path::new(&name).components().collect();
                prop_assert_eq!(components, vec![Component::Normal(OsStr::new(&text))]);
            }
        }
    }
}
