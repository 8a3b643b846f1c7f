//! Lock files of Debian packages.

use serde::Serialize;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Package {
    pub package: String,
    /// Version with the epoch.
    pub version: String,
    /// `amd64` or `all`.
    pub architecture: String,
    /// SHA-256 of the package file.
    pub sha256: String,
}

/// Error for an invalid line of a lock file, with the line number.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {0} must contain package, version, architecture, SHA-256 and file")]
pub struct ParseLockError(usize);

/// Parses a lock file: one package per line, and comments.
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
    fn each_line_is_parsed_as_a_package() {
        let found = parse("# comment\nnftables 1.0.6-2 amd64 0123 pool/n.deb\n").unwrap();
        let [Package { package, version, architecture, sha256 }] = &*found else { panic!("one: {found:?}") };
        assert_eq!([package, version, architecture, sha256], ["nftables", "1.0.6-2", "amd64", "0123"]);
    }

    #[test]
    fn an_invalid_line_is_reported() {
        assert_eq!(parse("# comment\nnftables 1.0.6-2"), Err(ParseLockError(2)));
    }
}
