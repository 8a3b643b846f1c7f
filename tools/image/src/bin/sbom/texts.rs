//! Licence texts without duplicates.

use std::collections::BTreeMap;

use image::sha256;

#[derive(Debug, Default)]
pub(crate) struct Texts(BTreeMap<String, Vec<u8>>);

impl Texts {
    pub(crate) fn add(&mut self, text: Vec<u8>) -> String {
        let name = sha256(&text);
        self.0.entry(name.clone()).or_insert(text);
        name
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.0.iter().map(|(name, text)| (&**name, &**text))
    }
}

/// Whether a file name indicates a licence text or notice.
pub(crate) fn is_text(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    let starts = ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE", "PATENTS"];
    let source = [".RS", ".GO", ".DOCS", ".PY", ".H", ".C", ".TOML", ".JSON"];
    starts.iter().any(|start| name.starts_with(start)) && !source.iter().any(|end| name.ends_with(end))
}

/// Whether a file name indicates a licence rather than a notice.
pub(crate) fn is_licence(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    ["LICENSE", "LICENCE", "COPYING", "UNLICENSE"].iter().any(|start| name.starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duplicate_text_is_stored_once() {
        let mut texts = Texts::default();
        let names = [texts.add(b"a".to_vec()), texts.add(b"b".to_vec()), texts.add(b"a".to_vec())];
        assert_eq!(names[0], names[2]);
        assert_eq!(
            texts.iter().map(|(_, text)| text).collect::<std::collections::BTreeSet<_>>(),
            [b"a", b"b"].map(|text| &text[..]).into()
        );
    }

    #[test]
    fn names_of_licence_files_are_recognized() {
        assert!(
            ["LICENSE", "LICENSE-MIT", "licence.md", "COPYING", "NOTICE", "LICENSES", "PATENTS"]
                .into_iter()
                .all(is_text)
        );
        assert!(!["license.go", "licensing.rs", "README.md", "LICENSE.docs"].into_iter().any(is_text));
        assert!(is_licence("LICENSE.libyaml") && !is_licence("NOTICE"));
    }
}
