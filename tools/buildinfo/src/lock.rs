//! The locks of Debian's packages.

use serde::Serialize;

/// A package that is pinned.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Package {
    /// Its name.
    pub package: String,
    /// Debian's, with the epoch.
    pub version: String,
    /// `amd64` or `all`.
    pub architecture: String,
    /// Of its file.
    pub sha256: String,
}

/// A line that names no package.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {0} is not: package, version, architecture, SHA-256, file")]
pub struct ParseLockError(usize);

/// The packages of a lock: a line for each, and comments.
///
/// # Errors
/// A line is neither a comment nor five words.
pub fn parse(text: &str) -> Result<Vec<Package>, ParseLockError> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.starts_with('#') && !line.trim().is_empty());
    lines
        .map(|(at, line)| {
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            let [package, version, architecture, sha256, _] = &*words else { return Err(ParseLockError(at + 1)) };
            let [package, version, architecture, sha256] =
                [package, version, architecture, sha256].map(|word| (*word).to_owned());
            Ok(Package { package, version, architecture, sha256 })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_is_a_package() {
        let found = parse("# comment\nnftables 1.0.6-2 amd64 0123 pool/n.deb\n").unwrap();
        let [Package { package, version, architecture, sha256 }] = &*found else { panic!("one: {found:?}") };
        assert_eq!([package, version, architecture, sha256], ["nftables", "1.0.6-2", "amd64", "0123"]);
    }

    #[test]
    fn a_line_that_names_no_package_is_told() {
        assert_eq!(parse("# comment\nnftables 1.0.6-2"), Err(ParseLockError(2)));
    }
}
