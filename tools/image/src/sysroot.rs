//! Libraries that are linked into static programs, and their packages.

use std::collections::BTreeMap;

/// Input of the linker, which is a line of the section `.granary.libraries`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Library {
    pub sha256: String,
    /// Path relative to the sysroot.
    pub path: String,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` must contain SHA-256 and path")]
pub struct ParseLibraryError(String);

/// Parses a section in the output format of sha256sum.
pub fn libraries(section: &str) -> Result<Vec<Library>, ParseLibraryError> {
    let lines = section.lines().map(|line| match line.split_once("  ") {
        Some((sha256, path)) if sha256.len() == 64 && !path.is_empty() => {
            Ok(Library { sha256: sha256.to_owned(), path: path.to_owned() })
        }
        _ => Err(ParseLibraryError(line.to_owned())),
    });
    lines.collect()
}

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Sysroot {
    packages: BTreeMap<Library, String>,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseSysrootError {
    #[error("`{0}` has no package")]
    Package(String),
    #[error(transparent)]
    File(#[from] ParseLibraryError),
}

impl Sysroot {
    /// Parses the list. Each line contains a package, a SHA-256 and a path.
    pub fn parse(text: &str) -> Result<Self, ParseSysrootError> {
        let mut packages = BTreeMap::new();
        for line in text.lines() {
            let (package, file) = line.split_once(' ').ok_or_else(|| ParseSysrootError::Package(line.to_owned()))?;
            packages.extend(libraries(file)?.into_iter().map(|library| (library, package.to_owned())));
        }
        Ok(Self { packages })
    }

    #[must_use]
    pub fn package(&self, library: &Library) -> Option<&str> {
        self.packages.get(library).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIBC: &str = "8e5252c4b87e3d588e2d15e624502277c5d3bfb382fec7a5199ae752080b372c";

    #[test]
    fn a_package_is_found_by_path_and_sha256() {
        let sysroot = Sysroot::parse(&format!("libc6-dev {LIBC}  usr/lib/libc.a\n")).unwrap();
        let found = libraries(&format!("{LIBC}  usr/lib/libc.a\n")).unwrap();
        assert_eq!(found.iter().map(|library| sysroot.package(library)).collect::<Vec<_>>(), [Some("libc6-dev")]);
        let other = Library { sha256: LIBC.replace('8', "9"), path: "usr/lib/libc.a".into() };
        assert_eq!(sysroot.package(&other), None);
        let elsewhere = Library { sha256: LIBC.into(), path: "usr/lib/libm.a".into() };
        assert_eq!(sysroot.package(&elsewhere), None);
    }

    #[test]
    fn an_invalid_line_is_rejected() {
        assert_eq!(libraries("libc.a"), Err(ParseLibraryError("libc.a".into())));
        assert_eq!(Sysroot::parse("libc6-dev"), Err(ParseSysrootError::Package("libc6-dev".into())));
        assert!(matches!(Sysroot::parse("libc6-dev libc.a"), Err(ParseSysrootError::File(_))));
    }
}
