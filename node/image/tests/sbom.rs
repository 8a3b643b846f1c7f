//! The bill of materials and the texts of licences are complete, and true.

use std::collections::{BTreeMap, BTreeSet};

use buildinfo::program::Program;
use image::Parts;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

/// What /usr/share/sbom and /usr/share/licenses may weigh.
const LIMIT: usize = 4 << 20;

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_else(|| panic!("no {field}: {value}"))
}

fn list<'a>(value: &'a Value, field: &str) -> &'a [Value] {
    value[field].as_array().unwrap_or_else(|| panic!("no {field}"))
}

/// The document's packages by their names, and its relationships.
struct Bill {
    document: Value,
    named: BTreeMap<String, Value>,
    related: BTreeSet<(String, String, String)>,
}

impl Bill {
    fn of(parts: &Parts) -> Self {
        let document = parts.json("sbom/granary.spdx.json");
        let mut named = BTreeMap::new();
        for package in list(&document, "packages") {
            let version = package["versionInfo"].as_str().unwrap_or_default();
            let old =
                named.insert(format!("{} {version}", text(package, "name")).trim_end().to_owned(), package.clone());
            assert_eq!(old, None, "two are named alike");
        }
        let related = list(&document, "relationships").iter().map(|relationship| {
            let field = |name| text(relationship, name).to_owned();
            (field("spdxElementId"), field("relationshipType"), field("relatedSpdxElement"))
        });
        Self { related: related.collect(), named, document }
    }

    fn package(&self, name: &str) -> &Value {
        self.named.get(name).unwrap_or_else(|| panic!("{name} is not in the document"))
    }

    fn is_linked(&self, program: &str, package: &str) -> bool {
        let id = |name| text(self.package(name), "SPDXID").to_owned();
        self.related.contains(&(id(program), "STATIC_LINK".into(), id(package)))
    }
}

#[test]
fn the_document_has_the_form_of_spdx() {
    let Bill { document, related, .. } = Bill::of(&Parts::built());
    assert_eq!(text(&document, "spdxVersion"), "SPDX-2.3");
    assert_eq!(text(&document, "dataLicense"), "CC0-1.0");
    assert_eq!(text(&document, "SPDXID"), "SPDXRef-DOCUMENT");
    assert!(text(&document, "documentNamespace").starts_with("https://"));
    assert_eq!(text(&document["creationInfo"], "created"), "1970-01-01T00:00:00Z", "the time of a build");
    assert!(!list(&document["creationInfo"], "creators").is_empty());

    let mut ids: BTreeSet<&str> = ["SPDXRef-DOCUMENT"].into();
    for package in list(&document, "packages") {
        let id = text(package, "SPDXID");
        let letters = id.strip_prefix("SPDXRef-").unwrap_or_default();
        assert!(!letters.is_empty() && letters.chars().all(|c| c.is_ascii_alphanumeric() || ".-".contains(c)), "{id}");
        assert!(ids.insert(id), "{id} twice");
        for field in ["name", "downloadLocation", "licenseConcluded", "licenseDeclared", "copyrightText"] {
            assert!(!text(package, field).is_empty(), "{id}: {field}");
        }
        assert_eq!(package["filesAnalyzed"], false, "{id}");
    }
    for (from, kind, to) in &related {
        assert!(ids.contains(&**from) && ids.contains(&**to), "{from} {kind} {to}");
    }
    let described: Vec<_> = related.iter().filter(|(_, kind, _)| kind == "DESCRIBES").collect();
    assert_eq!(described.len(), 1, "{described:?}");
}

#[test]
fn every_licence_is_named_or_has_a_text() {
    let document = Bill::of(&Parts::built()).document;
    let extracted: BTreeSet<&str> =
        list(&document, "hasExtractedLicensingInfos").iter().map(|info| text(info, "licenseId")).collect();
    let mut used = BTreeSet::new();
    for package in list(&document, "packages") {
        let licence = text(package, "licenseDeclared");
        assert!(!["NOASSERTION", "NONE"].contains(&licence), "{package}");
        used.extend(licence.split([' ', '(', ')']).filter(|word| word.starts_with("LicenseRef-")));
    }
    assert_eq!(used, extracted);
}

#[test]
fn every_program_of_the_image_is_there_with_all_that_is_in_it() {
    let parts = Parts::built();
    let bill = Bill::of(&parts);
    let sysroot = parts.sysroot();
    for (path, bytes) in parts.programs() {
        assert_eq!(bill.package(&path)["checksums"][0]["checksumValue"], sha256(&bytes), "{path}");
        let program = Program::read(&bytes).unwrap();
        for module in program.go.iter().flat_map(|info| &info.modules) {
            let name = format!("{} {}", module.module, module.version);
            assert!(bill.is_linked(&path, &name), "{path}: {name}");
        }
        let linked = program.packages(&sysroot).unwrap();
        for (name, package) in &bill.named {
            let debian = text(package, "SPDXID").starts_with("SPDXRef-Debian-");
            let wanted = linked.contains(text(package, "name"));
            assert!(!debian || bill.is_linked(&path, name) == wanted, "{path}: {name}");
        }
    }
    // Ring is C too; the standard library is in everything that is Rust; macros are in nothing.
    let init = |package: &str| {
        bill.named.keys().filter(|name| name.starts_with(package)).any(|name| bill.is_linked("/init", name))
    };
    assert!(init("ring ") && init("tokio ") && init("rust-std "));
    assert!(!bill.named.keys().any(|name| name.starts_with("serde_derive ")));
}

#[test]
fn every_package_of_debian_is_there_with_its_digest() {
    let parts = Parts::built();
    let bill = Bill::of(&parts);
    for package in parts.installed() {
        let found = bill.package(&format!("{} {}", package.package, package.version));
        assert_eq!(found["checksums"][0]["checksumValue"], package.sha256);
    }
}

#[test]
fn every_package_has_its_texts_and_every_text_is_of_one() {
    let parts = Parts::built();
    let index = parts.json("licenses/index.json");
    let texts = parts.texts();
    for (name, bytes) in &texts {
        assert_eq!(*name, sha256(bytes));
    }
    let mut used = BTreeSet::new();
    for package in list(&Bill::of(&parts).document, "packages") {
        let Some(purl) = package["externalRefs"][0]["referenceLocator"].as_str() else { continue };
        let entry = &index[purl];
        assert_eq!(text(entry, "licence"), text(package, "licenseDeclared"), "{purl}");
        assert!(
            !list(entry, "texts").is_empty() || entry["remark"].is_string(),
            "{purl} has neither a text nor a reason"
        );
        used.extend(list(entry, "texts").iter().map(|name| name.as_str().unwrap().to_owned()));
    }
    assert_eq!(used, texts.keys().cloned().collect());
}

#[test]
fn they_stay_small() {
    let parts = Parts::built();
    let texts: usize = parts.texts().values().map(Vec::len).sum();
    let all = texts
        + parts.json("sbom/granary.spdx.json").to_string().len()
        + parts.json("licenses/index.json").to_string().len();
    assert!(all < LIMIT, "{all} bytes");
}
