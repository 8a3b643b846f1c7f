//! Names of clusters.

use std::fmt;
use std::str::FromStr;

use cluster::is_label;

/// Name of a cluster that is kept, `[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?`. The name is a safe path component, and also
/// names the context.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ClusterName(Box<str>);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is not a name of a cluster; use 1 to {} lower-case letters, digits and hyphens, and no hyphen at the ends",
    ClusterName::LONGEST
)]
pub(crate) struct NameError {
    text: String,
}

impl ClusterName {
    const LONGEST: usize = 40;
    const DEFAULT: &str = "granary";

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ClusterName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let is_valid = text.len() <= Self::LONGEST && is_label(text);
        if is_valid { Ok(Self(text.into())) } else { Err(NameError { text: text.to_owned() }) }
    }
}

impl Default for ClusterName {
    fn default() -> Self {
        Self(Self::DEFAULT.into())
    }
}

impl fmt::Display for ClusterName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_safe_path_component() {
        for name in ["a", "granary", "team-1", "0", &"x".repeat(40)] {
            assert_eq!(name.parse::<ClusterName>().unwrap().to_string(), name);
        }
        assert_eq!(ClusterName::DEFAULT.parse(), Ok(ClusterName::default()));
        for name in ["", ".", "..", "a/b", "/a", "A", "a.b", "-a", "a-", "a b", "a\n", "ä", &"x".repeat(41)] {
            let error = name.parse::<ClusterName>().unwrap_err().to_string();
            assert!(error.contains("use 1 to 40 lower-case letters"), "{error}");
        }
    }
}
