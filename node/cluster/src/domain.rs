use std::fmt;
use std::str::FromStr;

/// Domain of the cluster's DNS names: DNS labels (RFC 1123) with dots between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterDomain(Box<str>);

/// Maximum length of the domain in characters. A DNS name has at most 253 characters, and the names of pods have up to
/// three labels in front of the domain.
const LONGEST: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a domain has labels of 1 to 63 lower-case letters, digits and '-', and at most {LONGEST} characters, such as cluster.local"
)]
pub struct DomainError;

impl ClusterDomain {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for ClusterDomain {
    fn default() -> Self {
        Self("cluster.local".into())
    }
}

impl fmt::Display for ClusterDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for ClusterDomain {
    type Err = DomainError;

    fn from_str(text: &str) -> Result<Self, DomainError> {
        let is_domain = text.len() <= LONGEST && text.split('.').all(is_label);
        if is_domain { Ok(Self(text.into())) } else { Err(DomainError) }
    }
}

/// Whether `text` is a DNS label (RFC 1123) in lower case.
pub fn is_label(text: &str) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    (1..=63).contains(&text.len()) && text.chars().all(inner) && !text.starts_with('-') && !text.ends_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_domain_is_labels_with_dots_between_them() {
        for text in ["cluster.local", "cluster", "k8s-1.example.org"] {
            assert_eq!(text.parse::<ClusterDomain>().unwrap().as_str(), text);
        }
        let long = ["a"; 40].join(".");
        for text in
            ["", ".", "cluster.local.", ".local", "a..b", "Cluster.local", "-a.b", "a b", "a{", "10.0.0.0/8", &long]
        {
            assert_eq!(text.parse::<ClusterDomain>(), Err(DomainError), "{text}");
        }
    }
}
