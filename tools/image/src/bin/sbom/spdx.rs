//! The elements of SPDX 2.3 documents in JSON.

use serde::Serialize;
use serde_json::{Value, json};

use crate::licence::Expression;
use crate::package::Package;

pub(crate) const DOCUMENT: &str = "SPDXRef-DOCUMENT";
const NO_ASSERTION: &str = "NOASSERTION";

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Relationship {
    pub(crate) spdx_element_id: String,
    pub(crate) relationship_type: Kind,
    pub(crate) related_spdx_element: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub(crate) enum Kind {
    Describes,
    Contains,
    StaticLink,
}

pub(crate) fn package(package: &Package) -> Value {
    let mut element = element(&package.id(), &package.name, &package.licence);
    element["versionInfo"] = json!(package.version);
    element["externalRefs"] = json!([{
        "referenceCategory": "PACKAGE-MANAGER",
        "referenceType": "purl",
        "referenceLocator": package.purl(),
    }]);
    if let Some(sha256) = &package.sha256 {
        element["checksums"] = checksums(sha256);
    }
    element
}

/// A file of the image that contains packages.
pub(crate) fn program(id: &str, path: &str, sha256: &str, licence: &Expression) -> Value {
    let mut element = element(id, path, licence);
    element["packageFileName"] = json!(path);
    element["checksums"] = checksums(sha256);
    element
}

fn element(id: &str, name: &str, licence: &Expression) -> Value {
    json!({
        "SPDXID": id,
        "name": name,
        "downloadLocation": NO_ASSERTION,
        "filesAnalyzed": false,
        "licenseConcluded": NO_ASSERTION,
        "licenseDeclared": licence.to_string(),
        "copyrightText": NO_ASSERTION,
    })
}

fn checksums(sha256: &str) -> Value {
    json!([{"algorithm": "SHA256", "checksumValue": sha256}])
}

/// Reference to the texts of a licence without an SPDX name. The texts are stored next to the document.
pub(crate) fn extracted(package: &Package) -> Value {
    let files: Vec<_> = package.texts.texts.iter().map(|name| format!("/usr/share/licenses/{name}.txt")).collect();
    json!({
        "licenseId": package.licence.to_string(),
        "name": format!("Licence of Debian package {}", package.name),
        "extractedText": format!("See {}.", files.join(", ")),
    })
}
