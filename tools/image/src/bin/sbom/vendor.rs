//! Licences of Go modules, from archives of their sources.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};

use crate::texts::is_text;

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Vendor(BTreeMap<String, Vec<u8>>);

impl Vendor {
    /// Reads the licence texts below `root` from an archive. `root` is empty or ends in a slash, and is removed from
    /// the paths.
    pub(crate) fn read(archive: impl Read, root: &str) -> io::Result<Self> {
        let mut texts = BTreeMap::new();
        for entry in tar::Archive::new(archive).entries()? {
            let mut entry = entry?;
            let path = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
            let Some(path) = path.strip_prefix("./").unwrap_or(&path).strip_prefix(root) else { continue };
            let path = path.to_owned();
            if entry.header().entry_type().is_file() && is_text(path.rsplit('/').next().unwrap_or_default()) {
                let mut text = Vec::new();
                entry.read_to_end(&mut text)?;
                texts.insert(path, text);
            }
        }
        Ok(Self(texts))
    }

    /// Texts of `module`, without those of nested modules in `modules`.
    pub(crate) fn of<'a>(&'a self, module: &str, modules: &BTreeSet<&str>) -> Vec<(&'a str, &'a [u8])> {
        let owner = |path: &str| -> Option<String> {
            let mut directory = path;
            while let Some((parent, _)) = directory.rsplit_once('/') {
                if modules.contains(parent) {
                    return Some(parent.to_owned());
                }
                directory = parent;
            }
            None
        };
        let own = self.0.iter().filter(|(path, _)| owner(path).as_deref() == Some(module));
        own.map(|(path, text)| (&**path, &**text)).collect()
    }

    pub(crate) fn top(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.0.iter().filter(|(path, _)| !path.contains('/')).map(|(path, text)| (&**path, &**text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn archive(files: &[(&str, &str)]) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        for (path, text) in files {
            let mut header = tar::Header::new_gnu();
            header.set_size(text.len() as u64);
            builder.append_data(&mut header, path, text.as_bytes()).unwrap();
        }
        builder.into_inner().unwrap()
    }

    #[test]
    fn a_text_belongs_to_the_innermost_module() {
        let archive = archive(&[
            ("./vendor/example.org/a/LICENSE", "a"),
            ("./vendor/example.org/a/inner/NOTICE", "inner"),
            ("./vendor/example.org/a/api/LICENSE", "api"),
            ("./vendor/example.org/a/main.go", "package main"),
            ("./LICENSE", "above"),
        ]);
        let vendor = Vendor::read(&*archive, "vendor/").unwrap();
        let modules = ["example.org/a", "example.org/a/api"].into();
        let texts = |module| vendor.of(module, &modules).into_iter().map(|(_, text)| text).collect::<Vec<_>>();
        assert_eq!(texts("example.org/a"), [&b"a"[..], b"inner"]);
        assert_eq!(texts("example.org/a/api"), [b"api"]);
        assert_eq!(texts("example.org/b"), [] as [&[u8]; 0]);
    }

    #[test]
    fn the_licence_of_the_toolchain_is_in_its_root() {
        let vendor = Vendor::read(&*archive(&[("./LICENSE", "go"), ("./src/LICENSE", "src")]), "").unwrap();
        assert_eq!(vendor.top().collect::<Vec<_>>(), [("LICENSE", &b"go"[..])]);
    }
}
