use std::fmt;
use std::str::FromStr;

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
        let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        let is_label =
            (1..=63).contains(&text.len()) && text.chars().all(inner) && !text.starts_with('-') && !text.ends_with('-');
        if is_label { Ok(Self(text.into())) } else { Err(NameError) }
    }
}
