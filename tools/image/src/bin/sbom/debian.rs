//! Licence texts of Debian packages.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::PathBuf;

/// Directory of the unpacked copyright files and common licences: `copyright/PACKAGE`, `common/NAME`.
#[derive(Debug)]
pub(crate) struct Documents(pub(crate) PathBuf);

impl Documents {
    /// The copyright file of a package, and the common licences that it references.
    pub(crate) fn of(&self, package: &str) -> io::Result<Vec<Vec<u8>>> {
        let copyright = fs::read(self.0.join("copyright").join(package))?;
        let names = common(&String::from_utf8_lossy(&copyright));
        let mut texts = vec![copyright];
        for name in names {
            match fs::read(self.0.join("common").join(name)) {
                Ok(text) => texts.push(text),
                // Some copyright files also reference names that Debian no longer uses.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(texts)
    }
}

/// Names of common licences that a copyright file references.
fn common(copyright: &str) -> BTreeSet<String> {
    let behind = copyright.split("/usr/share/common-licenses/").skip(1);
    let names = behind.map(|text| {
        let end = text.find(|letter: char| !letter.is_ascii_alphanumeric() && !"-.".contains(letter));
        text[..end.unwrap_or(text.len())].trim_end_matches(['.', '-']).to_owned()
    });
    names.filter(|name| !name.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_to_common_licences_are_found_in_text() {
        let text = "found in `/usr/share/common-licenses/GPL-2'.\nOr /usr/share/common-licenses/LGPL-2.1.\n in /usr/share/common-licenses/ too";
        assert_eq!(common(text), ["GPL-2".to_owned(), "LGPL-2.1".to_owned()].into());
    }
}
