//! Cargo.toml of a crate.

use crate::licence::{Expression, ParseExpressionError};

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Manifest {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) licence: Expression,
}

/// Error for a missing field or an unknown licence.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ParseManifestError {
    #[error("[package] has no `{0}`")]
    Missing(&'static str),
    #[error("unknown licence")]
    Licence(#[from] ParseExpressionError),
}

/// Parses a manifest from a registry. Cargo normalizes it when the crate is published: one key per line, and names,
/// versions and licences as plain strings.
pub(crate) fn parse(text: &str) -> Result<Manifest, ParseManifestError> {
    let package: Vec<&str> = text
        .lines()
        .skip_while(|line| line.trim() != "[package]")
        .skip(1)
        .take_while(|line| !line.starts_with('['))
        .collect();
    let value = |key: &'static str| {
        let values = package.iter().filter_map(|line| line.strip_prefix(key)?.trim_start().strip_prefix('='));
        let mut strings = values.filter_map(|value| value.trim().strip_prefix('"')?.strip_suffix('"'));
        strings.next().ok_or(ParseManifestError::Missing(key))
    };
    Ok(Manifest {
        name: value("name")?.to_owned(),
        version: value("version")?.to_owned(),
        licence: value("license")?.parse()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_package_section_is_parsed() {
        let text = "# comment\n[package]\nedition = \"2021\"\nname = \"ring\"\nversion = \"0.17.14\"\nlicense-file = \"X\"\n\
                    license = \"Apache-2.0 AND ISC\"\n\n[lib]\nname = \"other\"\n";
        let found = parse(text).unwrap();
        assert_eq!(
            (&*found.name, &*found.version, &*found.licence.to_string()),
            ("ring", "0.17.14", "Apache-2.0 AND ISC")
        );
    }

    #[test]
    fn a_crate_without_a_licence_is_rejected() {
        let text = "[package]\nname = \"a\"\nversion = \"1.0.0\"\n[features]\nlicense = \"MIT\"\n";
        assert_eq!(parse(text), Err(ParseManifestError::Missing("license")));
    }
}
