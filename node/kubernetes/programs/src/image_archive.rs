//! Images of an archive, as `ctr images import` names them, and the question whether containerd has them.
//!
//! The node asks containerd, because a record of its own could survive a power cut that containerd's data did not.
//! `ctr images check --quiet` prints an image whose manifest and configuration can be read, whose layers are recorded,
//! and whose snapshot is recorded. containerd records a snapshot after it has synced the file system with the unpacked
//! files (`--sync-fs`) and with all blobs that it stored before. It opens no layer: pods use the snapshot.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use serde::Deserialize;

/// Label of images that the garbage collection keeps.
pub(crate) const PINNED: (&str, &str) = ("io.cri-containerd.pinned", "pinned");

/// Annotations with the name of an image; the first one has precedence. An import uses the second one only if it is a
/// full name.
const NAME: &str = "io.containerd.image.name";
const REFERENCE: &str = "org.opencontainers.image.ref.name";

/// Maximum size of an index. An archive with a larger one is always imported.
const LONGEST: u64 = 1 << 20;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ArchivedImage {
    name: String,
    digest: String,
}

#[derive(Deserialize)]
struct Index {
    manifests: Vec<Descriptor>,
}

#[derive(Deserialize)]
struct Descriptor {
    digest: String,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

/// Reads the index of an OCI layout. Returns no images if the archive has another format, or an image without a full
/// name: containerd names such an image after the day of the import. Waits for the disk.
pub(crate) fn images(archive: &Path) -> io::Result<Vec<ArchivedImage>> {
    let (mut is_layout, mut index) = (false, Vec::new());
    let mut archive = tar::Archive::new(File::open(archive)?);
    // Without `raw`, the crate reads entries with long names into memory, whose size the archive states.
    for entry in archive.entries_with_seek()?.raw(true) {
        let entry = entry?;
        let name = entry.path_bytes().into_owned();
        match name.strip_prefix(b"./").unwrap_or(&name) {
            b"oci-layout" => is_layout = true,
            b"index.json" => {
                index.clear();
                entry.take(LONGEST).read_to_end(&mut index)?;
            }
            _ => {}
        }
    }
    Ok(if is_layout { images_of(&index) } else { Vec::new() })
}

fn images_of(index: &[u8]) -> Vec<ArchivedImage> {
    let Ok(Index { manifests }) = serde_json::from_slice(index) else { return Vec::new() };
    // The filter contains the text in quotes.
    let is_plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\'));
    let image = |Descriptor { digest, mut annotations }: Descriptor| {
        let name = annotations.remove(NAME).filter(|name| !name.is_empty());
        let reference = annotations.remove(REFERENCE).filter(|name| name.contains(['/', ':', '@']));
        let name = name.or(reference)?;
        let hash = digest.strip_prefix("sha256:")?;
        let is_hash = hash.bytes().all(|byte| byte.is_ascii_alphanumeric());
        (is_plain(&name) && is_hash).then_some(ArchivedImage { name, digest })
    };
    manifests.into_iter().map(image).collect::<Option<_>>().unwrap_or_default()
}

impl ArchivedImage {
    /// Path of the manifest in containerd's directory. Without this file, containerd does not have the image.
    pub(crate) fn manifest(&self) -> PathBuf {
        Path::new("io.containerd.content.v1.content/blobs").join(self.digest.replace(':', "/"))
    }

    /// Filter of containerd for the pinned image.
    pub(crate) fn filter(&self) -> String {
        let (Self { name, digest }, (label, value)) = (self, PINNED);
        format!(r#"name=="{name}",target.digest=="{digest}",labels."{label}"=="{value}""#)
    }
}

/// Whether `ctr images check --quiet` with the filters of these images printed all of them. An archive with two images
/// of one name is imported again.
pub(crate) fn are_listed<'a>(images: &[ArchivedImage], lines: impl Iterator<Item = &'a str>) -> bool {
    let listed: BTreeSet<&str> = lines.collect();
    let names: BTreeSet<&str> = images.iter().map(|image| image.name.as_str()).collect();
    names.len() == images.len() && names.is_subset(&listed)
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::{Value, json};

    use super::*;

    pub(crate) const APP: &str = "registry.example/app:1";

    /// The index of one image.
    fn index(annotations: &Value) -> Vec<u8> {
        json!({"manifests": [{"digest": "sha256:aa", "annotations": annotations}]}).to_string().into_bytes()
    }

    fn app() -> ArchivedImage {
        ArchivedImage { name: APP.into(), digest: "sha256:aa".into() }
    }

    /// Writes an archive with these files.
    fn write(path: &Path, files: &[(&str, &[u8])]) {
        let mut archive = tar::Builder::new(File::create(path).unwrap());
        for (name, content) in files {
            let mut header = tar::Header::new_gnu();
            header.set_size(content.len().try_into().unwrap());
            header.set_mode(0o644);
            archive.append_data(&mut header, name, *content).unwrap();
        }
        archive.into_inner().unwrap();
    }

    /// Writes an OCI layout with the image [`APP`].
    pub(crate) fn write_layout(path: &Path) {
        let index = index(&json!({NAME: APP}));
        let blob = b"{}".as_slice();
        write(path, &[("blobs/sha256/aa", blob), ("index.json", index.as_slice()), ("oci-layout", blob)]);
    }

    #[test]
    fn only_an_oci_layout_has_known_images() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("app.tar");
        write_layout(&path);
        assert_eq!(images(&path).unwrap(), [app()]);
        write(&path, &[("manifest.json", b"[]".as_slice())]);
        assert_eq!(images(&path).unwrap(), []);
        write(&path, &[("index.json", index(&json!({NAME: APP})).as_slice())]);
        assert_eq!(images(&path).unwrap(), []);
        let mut long_name = tar::Header::new_gnu();
        long_name.set_entry_type(tar::EntryType::GNULongName);
        long_name.set_path("././@LongLink").unwrap();
        long_name.set_size(11);
        long_name.set_cksum();
        let mut archive = tar::Builder::new(File::create(&path).unwrap());
        archive.append(&long_name, b"index.json\0".as_slice()).unwrap();
        let content = index(&json!({NAME: APP}));
        for (name, content) in [("other", content.as_slice()), ("oci-layout", b"{}".as_slice())] {
            let mut header = tar::Header::new_gnu();
            header.set_size(content.len().try_into().unwrap());
            archive.append_data(&mut header, name, content).unwrap();
        }
        archive.into_inner().unwrap();
        assert_eq!(images(&path).unwrap(), [], "an entry with a long name");
        std::fs::write(&path, [0x1f_u8; 2048]).unwrap();
        assert!(images(&path).is_err(), "compressed");
    }

    #[test]
    fn an_image_has_the_name_that_the_import_uses() {
        assert_eq!(images_of(&index(&json!({NAME: APP, REFERENCE: "1"}))), [app()]);
        assert_eq!(images_of(&index(&json!({REFERENCE: APP}))), [app()]);
        for unknown in [json!({REFERENCE: "1"}), json!({}), json!({NAME: "a\",b"})] {
            assert_eq!(images_of(&index(&unknown)), [], "{unknown}");
        }
        assert_eq!(images_of(b"{"), []);
    }

    #[test]
    fn an_archive_is_present_if_all_its_images_are() {
        let other = ArchivedImage { name: "other:1".into(), ..app() };
        assert!(are_listed(&[app(), other.clone()], ["other:1", APP].into_iter()));
        assert!(!are_listed(&[app(), other], [APP].into_iter()));
        assert!(!are_listed(&[app(), app()], [APP].into_iter()), "the digests may differ");
    }

    #[test]
    fn a_filter_selects_the_pinned_image_with_the_digest() {
        let image = r#"name=="registry.example/app:1",target.digest=="sha256:aa""#;
        assert_eq!(app().filter(), format!(r#"{image},labels."io.cri-containerd.pinned"=="pinned""#));
    }
}
