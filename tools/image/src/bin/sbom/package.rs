//! Packages in the image.

use std::collections::BTreeSet;

use serde::Serialize;

use crate::licence::{Expression, identifier};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Package {
    pub(crate) ecosystem: Ecosystem,
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) licence: Expression,
    /// SHA-256 of the fetched file.
    pub(crate) sha256: Option<String>,
    pub(crate) texts: Texts,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Ecosystem {
    Cargo,
    Debian,
    Go,
    Generic,
}

/// Licence texts of a package, by SHA-256.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Texts {
    pub(crate) texts: BTreeSet<String>,
    /// Reason why the package has no text of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) remark: Option<&'static str>,
}

impl Package {
    pub(crate) fn new(ecosystem: Ecosystem, name: &str, version: &str, licence: Expression, texts: Texts) -> Self {
        Self { ecosystem, name: name.to_owned(), version: version.to_owned(), licence, sha256: None, texts }
    }

    pub(crate) fn id(&self) -> String {
        let kind = match self.ecosystem {
            Ecosystem::Cargo => "Cargo",
            Ecosystem::Debian => "Debian",
            Ecosystem::Go => "Go",
            Ecosystem::Generic => "Package",
        };
        format!("SPDXRef-{kind}-{}-{}", identifier(&self.name), identifier(&self.version))
    }

    pub(crate) fn purl(&self) -> String {
        let version = encode(&self.version);
        match self.ecosystem {
            Ecosystem::Cargo => format!("pkg:cargo/{}@{version}", encode(&self.name)),
            Ecosystem::Debian => format!("pkg:deb/debian/{}@{version}?arch=amd64&distro=bookworm", encode(&self.name)),
            // Package URLs use lower case for Go modules.
            Ecosystem::Go => format!("pkg:golang/{}@{version}", encode(&self.name.to_lowercase())),
            Ecosystem::Generic => format!("pkg:generic/{}@{version}", encode(&self.name)),
        }
    }
}

/// Percent-encoding of package URLs; slashes separate namespaces and are kept.
fn encode(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        match byte {
            b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' | b'-' | b'.' | b'_' | b'~' | b'/' | b':' => {
                encoded.push(byte.into())
            }
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(ecosystem: Ecosystem, name: &str, version: &str) -> Package {
        Package::new(ecosystem, name, version, "MIT".parse().unwrap(), Texts::default())
    }

    #[test]
    fn each_ecosystem_has_a_package_url() {
        let purl = |ecosystem, name, version| package(ecosystem, name, version).purl();
        assert_eq!(purl(Ecosystem::Cargo, "ring", "0.17.14"), "pkg:cargo/ring@0.17.14");
        assert_eq!(
            purl(Ecosystem::Go, "github.com/Microsoft/hcsshim", "v2.0.0+incompatible"),
            "pkg:golang/github.com/microsoft/hcsshim@v2.0.0%2Bincompatible"
        );
        assert_eq!(
            purl(Ecosystem::Debian, "libc6-dev", "2.36-9+deb12u14"),
            "pkg:deb/debian/libc6-dev@2.36-9%2Bdeb12u14?arch=amd64&distro=bookworm"
        );
    }

    #[test]
    fn identifiers_contain_only_characters_of_spdx() {
        assert_eq!(package(Ecosystem::Go, "example.org/a_b", "v1.0.0+x").id(), "SPDXRef-Go-example.org-a-b-v1.0.0-x");
    }
}
