//! The fields of SPDX 2.3 in JSON that this program writes.

use serde::Serialize;

use crate::licence::Expression;
use crate::package::Package;

pub(crate) const DOCUMENT: &str = "SPDXRef-DOCUMENT";

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Document {
    pub(crate) spdx_version: &'static str,
    pub(crate) data_license: &'static str,
    #[serde(rename = "SPDXID")]
    pub(crate) spdx_id: &'static str,
    pub(crate) name: String,
    pub(crate) document_namespace: String,
    pub(crate) creation_info: Creation,
    pub(crate) packages: Vec<Described>,
    pub(crate) has_extracted_licensing_infos: Vec<Extracted>,
    pub(crate) relationships: Vec<Relationship>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Creation {
    pub(crate) created: &'static str,
    pub(crate) creators: [&'static str; 1],
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Described {
    #[serde(rename = "SPDXID")]
    pub(crate) spdx_id: String,
    pub(crate) name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) version_info: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) package_file_name: Option<String>,
    pub(crate) download_location: &'static str,
    pub(crate) files_analyzed: bool,
    pub(crate) license_concluded: &'static str,
    pub(crate) license_declared: String,
    pub(crate) copyright_text: &'static str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) checksums: Vec<Checksum>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) external_refs: Vec<ExternalRef>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Checksum {
    algorithm: &'static str,
    checksum_value: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ExternalRef {
    reference_category: &'static str,
    reference_type: &'static str,
    reference_locator: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Extracted {
    license_id: String,
    name: String,
    extracted_text: String,
}

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

const NO_ASSERTION: &str = "NOASSERTION";

impl Described {
    pub(crate) fn package(package: &Package) -> Self {
        let purl = ExternalRef {
            reference_category: "PACKAGE-MANAGER",
            reference_type: "purl",
            reference_locator: package.purl(),
        };
        Self {
            name: package.name.clone(),
            version_info: Some(package.version.clone()),
            checksums: package.sha256.as_deref().into_iter().map(Checksum::sha256).collect(),
            external_refs: vec![purl],
            ..Self::new(package.id(), &package.licence)
        }
    }

    /// A file of the image that contains packages.
    pub(crate) fn program(id: String, path: &str, sha256: &str, licence: &Expression) -> Self {
        Self {
            name: path.to_owned(),
            package_file_name: Some(path.to_owned()),
            checksums: vec![Checksum::sha256(sha256)],
            ..Self::new(id, licence)
        }
    }

    fn new(id: String, licence: &Expression) -> Self {
        Self {
            spdx_id: id,
            name: String::new(),
            version_info: None,
            package_file_name: None,
            download_location: NO_ASSERTION,
            files_analyzed: false,
            license_concluded: NO_ASSERTION,
            license_declared: licence.to_string(),
            copyright_text: NO_ASSERTION,
            checksums: vec![],
            external_refs: vec![],
        }
    }
}

impl Checksum {
    fn sha256(value: &str) -> Self {
        Self { algorithm: "SHA256", checksum_value: value.to_owned() }
    }
}

impl Extracted {
    /// Reference to the texts of a licence without an SPDX name, which are stored beside the document.
    pub(crate) fn elsewhere(package: &Package) -> Self {
        let files: Vec<_> = package.texts.texts.iter().map(|name| format!("/usr/share/licenses/{name}.txt")).collect();
        Self {
            license_id: package.licence.to_string(),
            name: format!("Licence of Debian package {}", package.name),
            extracted_text: format!("See {}.", files.join(", ")),
        }
    }
}
