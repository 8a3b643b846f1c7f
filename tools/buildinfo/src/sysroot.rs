//! The libraries that are linked into static programs, and the packages that they are of.

use std::collections::BTreeMap;

/// A file that the linker read: a line of a program's section `.granary.libraries`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Library {
    /// Of the file.
    pub sha256: String,
    /// Below the sysroot.
    pub path: String,
}

/// A line that names no file.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not SHA-256 and path")]
pub struct ParseLibraryError(String);

/// The lines of a section: as sha256sum prints them.
///
/// # Errors
/// A line of another form.
pub fn libraries(section: &str) -> Result<Vec<Library>, ParseLibraryError> {
    let lines = section.lines().map(|line| match line.split_once("  ") {
        Some((sha256, path)) if sha256.len() == 64 && !path.is_empty() => {
            Ok(Library { sha256: sha256.to_owned(), path: path.to_owned() })
        }
        _ => Err(ParseLibraryError(line.to_owned())),
    });
    lines.collect()
}

/// The sysroot's own list of its libraries.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Sysroot {
    /// File -> package.
    packages: BTreeMap<Library, String>,
}

/// The sysroot's list cannot be read.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseSysrootError {
    /// The line has no package.
    #[error("`{0}` names no package")]
    Package(String),
    /// The line has no file.
    #[error(transparent)]
    File(#[from] ParseLibraryError),
}

impl Sysroot {
    /// Reads the list: package, SHA-256 and path on each line.
    ///
    /// # Errors
    /// A line of another form.
    pub fn parse(text: &str) -> Result<Self, ParseSysrootError> {
        let mut packages = BTreeMap::new();
        for line in text.lines() {
            let (package, file) = line.split_once(' ').ok_or_else(|| ParseSysrootError::Package(line.to_owned()))?;
            packages.extend(libraries(file)?.into_iter().map(|library| (library, package.to_owned())));
        }
        Ok(Self { packages })
    }

    /// The package that has exactly this file.
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
    fn a_file_is_of_the_package_that_has_the_same_bytes_under_the_same_path() {
        let sysroot = Sysroot::parse(&format!("libc6-dev {LIBC}  usr/lib/libc.a\n")).unwrap();
        let found = libraries(&format!("{LIBC}  usr/lib/libc.a\n")).unwrap();
        assert_eq!(found.iter().map(|library| sysroot.package(library)).collect::<Vec<_>>(), [Some("libc6-dev")]);
        let other = Library { sha256: LIBC.replace('8', "9"), path: "usr/lib/libc.a".into() };
        assert_eq!(sysroot.package(&other), None);
        let elsewhere = Library { sha256: LIBC.into(), path: "usr/lib/libm.a".into() };
        assert_eq!(sysroot.package(&elsewhere), None);
    }

    #[test]
    fn a_line_of_another_form_is_refused() {
        assert_eq!(libraries("libc.a"), Err(ParseLibraryError("libc.a".into())));
        assert_eq!(Sysroot::parse("libc6-dev"), Err(ParseSysrootError::Package("libc6-dev".into())));
        assert!(matches!(Sysroot::parse("libc6-dev libc.a"), Err(ParseSysrootError::File(_))));
    }
}
