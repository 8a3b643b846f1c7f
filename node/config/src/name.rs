use std::fmt;
use std::str::FromStr;

use cluster::is_label;

/// Name of a node, a DNS label (RFC 1123).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NodeName(Box<str>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a name has 1 to 63 lower-case letters, digits and '-', with a letter or digit at both ends")]
pub struct NameError;

impl NodeName {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for NodeName {
    fn default() -> Self {
        Self("granary".into())
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for NodeName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        if is_label(text) { Ok(Self(text.into())) } else { Err(NameError) }
    }
}
