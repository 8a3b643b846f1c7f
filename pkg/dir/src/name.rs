//! [`Name`].

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::OsStrExt;

/// `NAME_MAX`, the longest file name of Linux file systems, in bytes.
const MAX_LEN: usize = 255;

/// One component of a path: not empty, not `.` or `..`, without `/` and NUL, at most 255 bytes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(OsString);

/// An invalid [`Name`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// The text is empty.
    #[error("a file name must not be empty")]
    Empty,
    /// `.` or `..`.
    #[error("a file name must not be `.` or `..`")]
    Dots,
    /// The text contains `/` or NUL.
    #[error("a file name must not contain `/` or NUL")]
    Separator,
    /// The text exceeds 255 bytes (`ENAMETOOLONG`); its length.
    #[error("a file name has at most {MAX_LEN} bytes, but this one has {0}")]
    TooLong(usize),
}

impl Name {
    /// The name for system calls.
    pub fn as_os_str(&self) -> &OsStr {
        &self.0
    }

    /// The name as text; `None` if it is not UTF-8.
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
    fn invalid_names_are_rejected() {
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
        fn a_valid_name_is_one_normal_path_component(text in ".{0,8}") {
            if let Ok(name) = Name::try_from(text.as_str()) {
                let components: Vec<_> = Path::new(&name).components().collect();
                prop_assert_eq!(components, vec![Component::Normal(OsStr::new(&text))]);
            }
        }
    }
}
