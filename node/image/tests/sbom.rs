//! The bill of materials and the texts of licences are complete and correct.

use std::collections::{BTreeMap, BTreeSet};

use image::parts::{CRATE, Parts};
use image::program::Program;
use image::sha256;
use serde_json::Value;

/// Maximum size of /usr/share/sbom and /usr/share/licenses.
const LIMIT: usize = 4 << 20;

/// Crates without a licence text in their package, and the text that the image has instead.
const WITHOUT_TEXT: [(&str, &str); 7] = [
    ("crc-catalog", APACHE),
    ("kube", APACHE),
    ("kube-client", APACHE),
    ("kube-core", APACHE),
    ("kube-runtime", APACHE),
    ("maud", APACHE),
    ("tonic-prost", "nothing: its repository has the MIT licence at the top, outside of the crate"),
];
const APACHE: &str = "the text of Apache-2.0, which is the licence or a choice";

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_else(|| panic!("no {field}: {value}"))
}

fn list<'a>(value: &'a Value, field: &str) -> &'a [Value] {
    value[field].as_array().unwrap_or_else(|| panic!("no {field}"))
}

fn named_crates(program: &[u8], locked: &BTreeMap<String, String>) -> BTreeSet<String> {
    let starts = program.windows(CRATE.len()).enumerate().filter(|(_, bytes)| *bytes == CRATE.as_bytes());
    let names = starts.map(|(start, _)| {
        let path = &program[start + CRATE.len()..];
        let end = path.iter().position(|byte| *byte == b'/').expect("a path of a source file");
        str::from_utf8(&path[..end]).expect("the directory of a crate")
    });
    names.map(|name| locked.get(name).unwrap_or_else(|| panic!("{name} is not in Cargo.lock")).clone()).collect()
}

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

    /// The crates of a registry that are linked into a program, as `NAME VERSION`.
    fn crates(&self, program: &str) -> BTreeSet<String> {
        let of_cargo = |package: &Value| text(package, "SPDXID").starts_with("SPDXRef-Cargo-");
        let linked = self.named.iter().filter(|(name, package)| of_cargo(package) && self.is_linked(program, name));
        linked.map(|(name, _)| name.clone()).collect()
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
fn the_bill_has_all_programs_with_their_packages() {
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
    // Rust programs contain the standard library, and no procedural macro.
    assert!(bill.named.keys().any(|name| name.starts_with("rust-std ") && bill.is_linked("/init", name)));
    assert!(!bill.named.keys().any(|name| name.starts_with("serde_derive ")));
}

#[test]
fn every_crate_that_is_linked_is_in_the_bill() {
    let parts = Parts::built();
    let bill = Bill::of(&parts);
    let locked = parts.locked_crates();
    let linked = parts.linked_crates(&locked);
    for (path, bytes) in parts.programs() {
        let listed = bill.crates(&path);
        assert_eq!(listed, linked[&path], "{path}: differs from the crates that the build links");
        // Panic messages contain the paths of all compiled crates.
        let compiled = named_crates(&bytes, &locked);
        assert!(listed.is_superset(&compiled), "{path}: {:?}", compiled.difference(&listed).collect::<Vec<_>>());
        let is_rust = Program::read(&bytes).unwrap().with.iter().any(|name| name.starts_with("rustc "));
        assert_eq!(is_rust, !compiled.is_empty(), "{path}: {compiled:?}");
    }
}

#[test]
fn the_bill_has_all_debian_packages_with_digests() {
    let parts = Parts::built();
    let bill = Bill::of(&parts);
    for package in parts.installed() {
        let found = bill.package(&format!("{} {}", package.package, package.version));
        assert_eq!(found["checksums"][0]["checksumValue"], package.sha256);
    }
}

#[test]
fn packages_and_licence_texts_match() {
    let parts = Parts::built();
    let index = parts.json("licenses/index.json");
    let texts = parts.texts();
    for (name, bytes) in &texts {
        assert_eq!(*name, sha256(bytes));
    }
    let programs: BTreeSet<String> = parts.programs().map(|(path, _)| path).collect();
    let without_text = BTreeMap::from(WITHOUT_TEXT);
    let mut used = BTreeSet::new();
    let mut remarked = BTreeSet::new();
    let bill = Bill::of(&parts);
    for package in list(&bill.document, "packages") {
        let name = text(package, "name");
        if programs.contains(name) {
            continue;
        }
        let purl = package["externalRefs"][0]["referenceLocator"].as_str();
        let purl = purl.unwrap_or_else(|| panic!("{name} has no package URL"));
        let entry = &index[purl];
        assert_eq!(text(entry, "licence"), text(package, "licenseDeclared"), "{purl}");
        let found = list(entry, "texts");
        if entry["remark"].is_null() {
            assert!(!found.is_empty(), "{purl} has no text");
        } else {
            let instead = without_text.get(name).unwrap_or_else(|| panic!("{purl}: {}", entry["remark"]));
            assert_eq!(!found.is_empty(), *instead == APACHE, "{purl}: {instead}");
            remarked.insert(name);
        }
        used.extend(found.iter().map(|name| name.as_str().unwrap().to_owned()));
    }
    assert_eq!(remarked, without_text.into_keys().collect(), "remove crates that have a text from the list");
    assert_eq!(used, texts.keys().cloned().collect());
}

#[test]
fn the_documents_are_small() {
    let parts = Parts::built();
    let texts: usize = parts.texts().values().map(Vec::len).sum();
    let all = texts
        + parts.json("sbom/granary.spdx.json").to_string().len()
        + parts.json("licenses/index.json").to_string().len();
    assert!(all < LIMIT, "{all} bytes");
}
