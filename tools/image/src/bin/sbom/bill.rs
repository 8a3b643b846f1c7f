//! The bill of materials: packages and programs of the image.

use std::collections::{BTreeMap, BTreeSet};

use image::sha256;
use serde::Serialize;
use serde_json::{Value, json};

use crate::licence::{Expression, identifier};
use crate::package::{Ecosystem, Package, Texts};
use crate::spdx::{self, DOCUMENT, Kind, Relationship};

#[derive(Debug)]
pub(crate) struct Bill {
    image: Package,
    packages: BTreeMap<String, Package>,
    programs: BTreeMap<String, Value>,
    relationships: BTreeSet<Relationship>,
}

/// Error for two different packages or programs with the same identifier.
#[derive(Debug, thiserror::Error)]
#[error("{0} and {1} have the same identifier")]
pub(crate) struct AmbiguousError(String, String);

#[derive(Debug, Serialize)]
pub(crate) struct Entry {
    licence: String,
    #[serde(flatten)]
    texts: Texts,
}

impl Bill {
    pub(crate) fn new(image: Package) -> Self {
        let relationships = [relationship(DOCUMENT, Kind::Describes, &image.id())].into();
        let packages = [(image.id(), image.clone())].into();
        Self { image, packages, programs: BTreeMap::new(), relationships }
    }

    pub(crate) fn install(&mut self, package: Package) -> Result<(), AmbiguousError> {
        let id = self.add(package)?;
        self.relationships.insert(relationship(&self.image.id(), Kind::Contains, &id));
        Ok(())
    }

    /// Adds a program with its linked packages. Its licence combines theirs, and includes `own` if the program has its
    /// own code.
    pub(crate) fn program(
        &mut self,
        path: &str,
        program: &[u8],
        own: Option<&Expression>,
        linked: Vec<Package>,
    ) -> Result<(), AmbiguousError> {
        let id = format!("SPDXRef-Program-{}", identifier(path.trim_start_matches('/')));
        let all = linked.iter().map(|package| package.licence.clone()).chain(own.cloned());
        let licence = Expression::all(all).unwrap_or_else(|| self.image.licence.clone());
        for package in linked {
            let to = self.add(package)?;
            self.relationships.insert(relationship(&id, Kind::StaticLink, &to));
        }
        self.relationships.insert(relationship(&self.image.id(), Kind::Contains, &id));
        let element = spdx::program(&id, path, &sha256(program), &licence);
        match self.programs.insert(id, element) {
            Some(other) => Err(AmbiguousError(other["name"].as_str().unwrap_or_default().to_owned(), path.to_owned())),
            None => Ok(()),
        }
    }

    fn add(&mut self, package: Package) -> Result<String, AmbiguousError> {
        let id = package.id();
        match self.packages.get(&id) {
            Some(other) if *other != package => Err(AmbiguousError(other.purl(), package.purl())),
            _ => {
                self.packages.insert(id.clone(), package);
                Ok(id)
            }
        }
    }

    /// Licences and texts of each package, by package URL.
    pub(crate) fn index(&self) -> BTreeMap<String, Entry> {
        let entry = |package: &Package| Entry { licence: package.licence.to_string(), texts: package.texts.clone() };
        self.packages.values().map(|package| (package.purl(), entry(package))).collect()
    }

    /// Creates the document. It contains no time, and its namespace is a hash of its content, so it is reproducible.
    pub(crate) fn document(self) -> Value {
        let debian = self.packages.values().filter(|package| package.ecosystem == Ecosystem::Debian);
        let mut document = json!({
            "spdxVersion": "SPDX-2.3",
            "dataLicense": "CC0-1.0",
            "SPDXID": DOCUMENT,
            "name": format!("{}-{}", self.image.name, self.image.version),
            "creationInfo": {"created": "1970-01-01T00:00:00Z", "creators": ["Tool: granary-sbom"]},
            "hasExtractedLicensingInfos": debian.map(spdx::extracted).collect::<Vec<_>>(),
            "packages": self.packages.values().map(spdx::package).chain(self.programs.into_values()).collect::<Vec<_>>(),
            "relationships": self.relationships,
        });
        let digest = sha256(document.to_string().as_bytes());
        document["documentNamespace"] = json!(format!("https://granary.invalid/sbom/{digest}"));
        document
    }
}

fn relationship(from: &str, kind: Kind, to: &str) -> Relationship {
    Relationship { spdx_element_id: from.to_owned(), relationship_type: kind, related_spdx_element: to.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, licence: &str) -> Package {
        Package::new(Ecosystem::Go, name, "v1", licence.parse().unwrap(), Texts::default())
    }

    #[test]
    fn the_licence_of_a_program_combines_those_of_its_packages() {
        let mut bill = Bill::new(package("image", "Apache-2.0"));
        let own = "Apache-2.0".parse().unwrap();
        bill.program("/init", b"ELF", Some(&own), vec![package("a", "MIT"), package("b", "ISC OR MIT")]).unwrap();
        let document = bill.document();
        let elements = document["packages"].as_array().unwrap();
        let program = elements.iter().find(|element| element["name"] == "/init").unwrap();
        assert_eq!(program["licenseDeclared"], "Apache-2.0 AND (ISC OR MIT) AND MIT");
        let linked = json!(relationship("SPDXRef-Program-init", Kind::StaticLink, "SPDXRef-Go-a-v1"));
        assert!(document["relationships"].as_array().unwrap().contains(&linked), "{document}");
    }

    #[test]
    fn a_package_in_two_programs_is_listed_once() {
        let mut bill = Bill::new(package("image", "MIT"));
        bill.program("/a", b"1", None, vec![package("a", "MIT")]).unwrap();
        bill.program("/b", b"2", None, vec![package("a", "MIT")]).unwrap();
        assert_eq!(bill.index().len(), 2);
    }

    #[test]
    fn ambiguous_identifiers_are_rejected() {
        let mut bill = Bill::new(package("image", "MIT"));
        bill.install(package("a_b", "MIT")).unwrap();
        assert!(bill.install(package("a-b", "MIT")).is_err());
        bill.program("/a-b", b"", None, vec![]).unwrap();
        assert!(bill.program("/a/b", b"", None, vec![]).is_err());
    }
}
