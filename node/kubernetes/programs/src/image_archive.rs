//! Images of an archive, as `ctr images import` names them, and the question whether containerd has them.
//!
//! The node asks containerd, because a record of its own could survive a power cut that containerd's data did not.
//! `ctr images check --quiet` prints an image whose manifest and configuration can be read, whose layers are recorded,
//! and whose snapshot is recorded. containerd records a snapshot after it has synced the file system with the unpacked
//! files (`--sync-fs`) and with all blobs that it stored before. It opens no layer: pods use the snapshot.
//!
//! An archive of Docker has no manifests. containerd writes one for each image, whose digest depends on the layers that
//! containerd had before. The digest of the configuration identifies the image: the configuration has the digests of
//! the uncompressed layers.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use sha2::{Digest as _, Sha256};
use tar::Entry;

use crate::registries::HUB;

/// Label of images that the garbage collection keeps.
pub(crate) const PINNED: (&str, &str) = ("io.cri-containerd.pinned", "pinned");

/// Label of a manifest with the digest of its configuration. An import sets it for the garbage collection.
const CONFIG: &str = "containerd.io/gc.ref.content.config";

/// Annotations with the name of an image; the first one has precedence.
const NAME: &str = "io.containerd.image.name";
const REFERENCE: &str = "org.opencontainers.image.ref.name";

/// Maximum size of a list of images and of a configuration. An archive with a larger one is always imported.
const LONGEST: u64 = 1 << 20;

/// Maximum number of images whose presence is compared: the kubelet waits for the programs that the node starts for
/// this. An archive with more images is always imported.
const MOST: usize = 256;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ArchivedImage {
    name: Name,
    digest: Digest,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Name {
    Full(String),
    /// Reference that is not a full name. An import adds `import-YYYY-MM-DD:` with its day.
    Tag(String),
}

/// Digest of a blob, beginning with `sha256:`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Digest {
    /// Of the manifest, or of an index of manifests.
    Manifest(String),
    Config(String),
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

/// Image in the list of an archive of Docker.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DockerImage {
    /// Path in the archive.
    config: String,
    repo_tags: Option<Vec<String>>,
}

/// Reads the list of an OCI layout, or of an archive of Docker that is not an OCI layout, like containerd. Omits images
/// without any name, which containerd does not store. Returns each image once. Returns no images if the node cannot
/// compare all others, or if it could read another file than containerd. Waits for the disk.
pub(crate) fn images(archive: &Path) -> io::Result<Vec<ArchivedImage>> {
    let (mut is_layout, mut index, mut list) = (false, Vec::new(), Vec::new());
    let is_plain = visit(archive, |name, entry| {
        match name {
            b"oci-layout" => is_layout = true,
            b"index.json" => index = read(entry)?.unwrap_or_default(),
            b"manifest.json" => list = read(entry)?.unwrap_or_default(),
            _ => {}
        }
        Ok(())
    })?;
    if !is_plain {
        return Ok(Vec::new());
    }
    if is_layout {
        return Ok(images_of(&index).unwrap_or_default());
    }
    let Ok(list) = serde_json::from_slice::<Vec<DockerImage>>(&list) else { return Ok(Vec::new()) };
    if list.iter().flat_map(|image| image.repo_tags.iter().flatten()).count() > MOST {
        return Ok(Vec::new());
    }
    let files: BTreeSet<&[u8]> = list.iter().map(|image| image.config.as_bytes()).collect();
    // The names of the files are arbitrary, although most programs use the digests.
    let mut digests = BTreeMap::new();
    visit(archive, |name, entry| {
        if files.contains(name) {
            let digest = read(entry)?.map(|content| digest_of(&content));
            // Of several entries, an import uses the last file, but a symbolic link instead of any file.
            digests.entry(name.to_owned()).and_modify(|found| *found = None).or_insert(digest);
        }
        Ok(())
    })?;
    Ok(docker_images(&list, &digests).unwrap_or_default())
}

/// Passes each entry with its name to `each`. Returns `false` if an import cleans the name of a file to another one.
fn visit(archive: &Path, mut each: impl FnMut(&[u8], &mut Entry<'_, File>) -> io::Result<()>) -> io::Result<bool> {
    let mut archive = tar::Archive::new(File::open(archive)?);
    let mut is_plain = true;
    // Without `raw`, the crate reads entries with long names into memory, whose size the archive states.
    for entry in archive.entries_with_seek()?.raw(true) {
        let mut entry = entry?;
        let name = entry.path_bytes().into_owned();
        let name = name.strip_prefix(b"./").unwrap_or(&name);
        let is_file = entry.header().entry_type().is_file();
        is_plain &= !is_file || name.split(|byte| *byte == b'/').all(|part| !matches!(part, b"" | b"." | b".."));
        each(name, &mut entry)?;
    }
    Ok(is_plain)
}

/// `None` if the entry is not a regular file, or is larger than [`LONGEST`].
fn read(entry: &mut Entry<'_, File>) -> io::Result<Option<Vec<u8>>> {
    if !entry.header().entry_type().is_file() || entry.size() > LONGEST {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    entry.read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}

fn digest_of(content: &[u8]) -> String {
    format!("sha256:{:x}", Sha256::digest(content))
}

fn is_digest(text: &str) -> bool {
    text.strip_prefix("sha256:").is_some_and(|hash| hash.bytes().all(|byte| byte.is_ascii_alphanumeric()))
}

fn images_of(index: &[u8]) -> Option<Vec<ArchivedImage>> {
    let Index { manifests } = serde_json::from_slice(index).ok()?;
    let image = |Descriptor { digest, mut annotations }: Descriptor| {
        let mut text = |key: &str| annotations.remove(key).filter(|text| !text.is_empty());
        let name = match (text(NAME), text(REFERENCE)) {
            (Some(name), _) => Name::Full(name),
            (None, Some(reference)) if reference.contains(['/', ':', '@']) => Name::Full(reference),
            (None, Some(tag)) => Name::Tag(tag),
            (None, None) => return None,
        };
        Some(ArchivedImage::new(name, Digest::Manifest(digest)))
    };
    if manifests.len() > MOST {
        return None;
    }
    distinct(manifests.into_iter().filter_map(image).collect::<Option<_>>()?)
}

/// Each image once. `None` if two different images have the same name: containerd stores one of them.
fn distinct(mut images: Vec<ArchivedImage>) -> Option<Vec<ArchivedImage>> {
    images.sort_unstable();
    images.dedup();
    let names = images.iter().map(|image| &image.name).collect::<BTreeSet<_>>().len();
    (names == images.len()).then_some(images)
}

fn docker_images(list: &[DockerImage], digests: &BTreeMap<Vec<u8>, Option<String>>) -> Option<Vec<ArchivedImage>> {
    let mut images = Vec::new();
    for DockerImage { config, repo_tags } in list {
        let digest = digests.get(config.as_bytes())?.as_ref()?;
        for tag in repo_tags.iter().flatten() {
            images.push(ArchivedImage::new(Name::Full(normalized(tag)), Digest::Config(digest.clone()))?);
        }
    }
    distinct(images)
}

/// Full name of an image of Docker, like `ParseDockerRef` of Go's module `distribution/reference`. An import rejects
/// invalid names.
fn normalized(name: &str) -> String {
    let is_domain =
        |text: &str| text == "localhost" || text.bytes().any(|byte| matches!(byte, b'.' | b':' | b'A'..=b'Z'));
    let (domain, path) = match name.split_once('/') {
        Some(("index.docker.io", path)) => (HUB, path),
        Some((domain, path)) if is_domain(domain) => (domain, path),
        _ => (HUB, name),
    };
    let library = if domain == HUB && !path.contains('/') { "library/" } else { "" };
    let tag = if path.contains(':') { "" } else { ":latest" };
    format!("{domain}/{library}{path}{tag}")
}

impl ArchivedImage {
    /// `None` if the filters of containerd cannot contain these texts.
    fn new(name: Name, digest: Digest) -> Option<Self> {
        let is_plain = match &name {
            // In quotes.
            Name::Full(name) => name.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\')),
            // In a regular expression.
            Name::Tag(tag) => tag.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte)),
        };
        let (Digest::Manifest(text) | Digest::Config(text)) = &digest;
        (is_plain && is_digest(text)).then_some(Self { name, digest })
    }

    /// Whether containerd has at most one image with this name. An import on another day adds one for a tag.
    pub(crate) fn has_full_name(&self) -> bool {
        matches!(self.name, Name::Full(_))
    }

    /// Path of the manifest or configuration in containerd's directory. Without this file, containerd does not have the
    /// image.
    pub(crate) fn blob(&self) -> PathBuf {
        let (Digest::Manifest(digest) | Digest::Config(digest)) = &self.digest;
        Path::new("io.containerd.content.v1.content/blobs").join(digest.replace(':', "/"))
    }

    /// Filter of containerd for the manifests with the configuration. `None` if the digest of the manifest is given.
    pub(crate) fn manifests(&self) -> Option<String> {
        match &self.digest {
            Digest::Manifest(_) => None,
            Digest::Config(digest) => Some(format!(r#"labels."{CONFIG}"=="{digest}""#)),
        }
    }

    /// Filters of containerd for the pinned image. `listed` has the lines of `ctr content list --quiet` with the filter
    /// [`Self::manifests`]. Empty if containerd does not have the image.
    pub(crate) fn filters<'a>(&self, listed: impl Iterator<Item = &'a str>) -> Vec<String> {
        let (label, value) = PINNED;
        let name = match &self.name {
            Name::Full(name) => format!(r#"name=="{name}""#),
            Name::Tag(tag) => format!(r#"name~="^import-[0-9-]+:{}$""#, tag.replace('.', "[.]")),
        };
        let filter = |manifest: &str| format!(r#"{name},target.digest=="{manifest}",labels."{label}"=="{value}""#);
        match &self.digest {
            Digest::Manifest(digest) => vec![filter(digest)],
            Digest::Config(_) => listed.filter(|line| is_digest(line)).map(filter).collect(),
        }
    }

    /// Whether `ctr images check --quiet` printed this image. Its arguments are the filters of this image and of images
    /// with other names.
    pub(crate) fn is_listed<'a>(&self, mut lines: impl Iterator<Item = &'a str>) -> bool {
        lines.any(|line| match &self.name {
            Name::Full(name) => line == name,
            Name::Tag(tag) => {
                let reference = line.strip_prefix("import-").and_then(|rest| rest.split_once(':'));
                reference.is_some_and(|(_, found)| found == tag)
            }
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::{Value, json};
    use tar::EntryType;

    use super::*;

    pub(crate) const APP: &str = "registry.example/app:1";
    pub(crate) const OTHER: &str = "registry.example/app:2";

    /// The index of one image.
    fn index(annotations: &Value) -> Vec<u8> {
        json!({"manifests": [{"digest": "sha256:aa", "annotations": annotations}]}).to_string().into_bytes()
    }

    fn app() -> ArchivedImage {
        ArchivedImage { name: Name::Full(APP.into()), digest: Digest::Manifest("sha256:aa".into()) }
    }

    fn tagged(tag: &str) -> ArchivedImage {
        ArchivedImage { name: Name::Tag(tag.into()), ..app() }
    }

    fn of_docker(name: &str, config: &[u8]) -> ArchivedImage {
        ArchivedImage { name: Name::Full(name.into()), digest: Digest::Config(digest_of(config)) }
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

    /// Writes an archive of Docker with an image that has the names [`APP`] and [`OTHER`]. Returns the path of its
    /// configuration in containerd's directory.
    pub(crate) fn write_docker(path: &Path) -> PathBuf {
        let list = json!([{"Config": "config.json", "RepoTags": [APP, OTHER], "Layers": []}]).to_string();
        write(path, &[("config.json", b"{}".as_slice()), ("manifest.json", list.as_bytes())]);
        of_docker(APP, b"{}").blob()
    }

    #[test]
    fn an_archive_of_docker_has_the_names_of_its_import_and_the_digests_of_its_configurations() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("app.tar");
        let list = json!([
            {"Config": "blobs/sha256/aa", "RepoTags": ["app:1", "other"], "Layers": []},
            {"Config": "bb.json", "RepoTags": [APP]},
            {"Config": "bb.json", "RepoTags": null},
        ]);
        let list = list.to_string();
        let [one, two] = [b"one", b"two"].map(<[u8; 3]>::as_slice);
        write(&path, &[("manifest.json", list.as_bytes()), ("blobs/sha256/aa", one), ("bb.json", two)]);
        let expected = [
            of_docker("docker.io/library/app:1", one),
            of_docker("docker.io/library/other:latest", one),
            of_docker(APP, two),
        ];
        assert_eq!(images(&path).unwrap(), expected);
        write(&path, &[("manifest.json", list.as_bytes()), ("blobs/sha256/aa", one)]);
        assert_eq!(images(&path).unwrap(), [], "a missing configuration");
        let index = index(&json!({NAME: APP}));
        let layout = ("oci-layout", b"{}".as_slice());
        write(&path, &[layout, ("index.json", index.as_slice()), ("manifest.json", list.as_bytes())]);
        assert_eq!(images(&path).unwrap(), [app()], "Docker 25 writes both lists, and containerd reads the index");
    }

    /// Regression: a `manifest.json` with many short names started a program for each of them at each boot.
    #[test]
    fn an_archive_with_too_many_images_has_no_known_images() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("app.tar");
        for (count, known) in [(MOST, MOST), (MOST + 1, 0)] {
            let tags: Vec<String> = (0..count).map(|number| format!("app:{number}")).collect();
            let list = json!([{"Config": "config.json", "RepoTags": tags}]).to_string();
            write(&path, &[("config.json", b"{}".as_slice()), ("manifest.json", list.as_bytes())]);
            assert_eq!(images(&path).unwrap().len(), known, "Docker, {count}");
            let manifest = |tag: &String| json!({"digest": "sha256:aa", "annotations": {NAME: tag}});
            let index = json!({"manifests": tags.iter().map(manifest).collect::<Vec<_>>()}).to_string();
            write(&path, &[("index.json", index.as_bytes()), ("oci-layout", b"{}".as_slice())]);
            assert_eq!(images(&path).unwrap().len(), known, "OCI layout, {count}");
        }
    }

    #[test]
    fn an_image_is_returned_once_and_two_images_of_one_name_are_not_known() {
        assert_eq!(distinct(vec![app(), tagged("1"), app()]), Some(vec![app(), tagged("1")]));
        assert_eq!(distinct(vec![app(), of_docker(APP, b"{}")]), None);
    }

    /// Regression: the node computed the digest of another file than the configuration that containerd reads.
    #[test]
    fn an_archive_of_docker_with_an_ambiguous_configuration_has_no_known_images() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("app.tar");
        let list = json!([{"Config": "config.json", "RepoTags": [APP]}]).to_string();
        let longest = vec![b' '; usize::try_from(LONGEST).unwrap()];
        let larger = [longest.as_slice(), b" "].concat();
        let write = |entries: &[(&str, EntryType, &[u8])]| {
            let mut archive = tar::Builder::new(File::create(&path).unwrap());
            let first = [("manifest.json", EntryType::Regular, list.as_bytes())];
            for (name, kind, content) in first.iter().chain(entries) {
                let mut header = tar::Header::new_gnu();
                // `Header::set_path` rejects `..`.
                header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
                header.set_entry_type(*kind);
                header.set_size(content.len().try_into().unwrap());
                header.set_mode(0o644);
                header.set_cksum();
                archive.append(&header, *content).unwrap();
            }
            archive.into_inner().unwrap();
        };
        let known = |config: &[u8]| vec![of_docker(APP, config)];
        let regular = |content| ("config.json", EntryType::Regular, content);
        let config = regular(b"{}".as_slice());
        let link = ("config.json", EntryType::Symlink, b"".as_slice());
        let directory = ("layer/", EntryType::Directory, b"".as_slice());
        let file = |name| (name, EntryType::Regular, b"other".as_slice());
        for (case, entries, expected) in [
            ("one file", vec![config], known(b"{}")),
            ("a directory", vec![config, directory], known(b"{}")),
            ("the longest file", vec![regular(longest.as_slice())], known(&longest)),
            ("a larger file", vec![regular(larger.as_slice())], vec![]),
            ("a link before the file", vec![link, config], vec![]),
            ("a link", vec![link], vec![]),
            ("two files", vec![config, file("config.json")], vec![]),
            ("a parent", vec![config, file("layer/../config.json")], vec![]),
            ("an empty component", vec![config, file(".//config.json")], vec![]),
        ] {
            write(&entries);
            assert_eq!(images(&path).unwrap(), expected, "{case}");
        }
    }

    #[test]
    fn a_name_of_docker_is_completed_as_the_import_does() {
        for (name, full) in [
            ("app", "docker.io/library/app:latest"),
            ("app:1", "docker.io/library/app:1"),
            ("team/app", "docker.io/team/app:latest"),
            ("docker.io/app:1", "docker.io/library/app:1"),
            ("index.docker.io/team/app:1", "docker.io/team/app:1"),
            ("localhost/app:1", "localhost/app:1"),
            ("localhost:5000/app", "localhost:5000/app:latest"),
            ("Registry/app:1", "Registry/app:1"),
            ("registry.example/team/app:1", "registry.example/team/app:1"),
        ] {
            assert_eq!(normalized(name), full);
        }
    }

    #[test]
    fn the_manifests_of_an_archive_of_docker_are_searched_by_the_configuration() {
        let image = of_docker(APP, b"{}");
        let digest = digest_of(b"{}");
        assert_eq!(digest, "sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a");
        assert_eq!(image.manifests().unwrap(), format!(r#"labels."containerd.io/gc.ref.content.config"=="{digest}""#));
        let filters = image.filters(["sha256:bb", "a warning", "sha256:cc"].into_iter());
        let filter = |hash: &str| {
            let target = format!(r#"name=="{APP}",target.digest=="sha256:{hash}""#);
            format!(r#"{target},labels."io.cri-containerd.pinned"=="pinned""#)
        };
        assert_eq!(filters, [filter("bb"), filter("cc")]);
        assert!(image.filters(std::iter::empty()).is_empty());
        assert_eq!(app().manifests(), None);
    }

    #[test]
    fn other_archives_have_no_known_images() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("app.tar");
        write_layout(&path);
        assert_eq!(images(&path).unwrap(), [app()]);
        write(&path, &[("manifest.json", b"{".as_slice())]);
        assert_eq!(images(&path).unwrap(), []);
        write(&path, &[("index.json", index(&json!({NAME: APP})).as_slice())]);
        assert_eq!(images(&path).unwrap(), []);
        let mut long_name = tar::Header::new_gnu();
        long_name.set_entry_type(EntryType::GNULongName);
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
        assert_eq!(images_of(&index(&json!({NAME: APP, REFERENCE: "1"}))).unwrap(), [app()]);
        assert_eq!(images_of(&index(&json!({REFERENCE: APP}))).unwrap(), [app()]);
        assert_eq!(images_of(&index(&json!({REFERENCE: "1.0"}))).unwrap(), [tagged("1.0")]);
        assert_eq!(images_of(&index(&json!({}))).unwrap(), [], "containerd does not store it");
        for unknown in [json!({REFERENCE: "1*"}), json!({NAME: "a\",b"})] {
            assert_eq!(images_of(&index(&unknown)), None, "{unknown}");
        }
        assert_eq!(images_of(b"{"), None);
    }

    #[test]
    fn an_image_is_listed_under_its_name_or_the_day_of_an_import() {
        assert!(app().is_listed(["a warning", APP].into_iter()));
        assert!(!app().is_listed(["other:1"].into_iter()));
        assert!(tagged("1.0").is_listed(["import-2026-01-31:1.0"].into_iter()));
        assert!(!tagged("1.0").is_listed(["import-2026-01-31:2", "1.0"].into_iter()));
    }

    #[test]
    fn a_filter_selects_the_pinned_image_with_the_digest() {
        let rest = r#"target.digest=="sha256:aa",labels."io.cri-containerd.pinned"=="pinned""#;
        let filters = |image: &ArchivedImage| image.filters(std::iter::empty());
        assert_eq!(filters(&app()), [format!(r#"name=="registry.example/app:1",{rest}"#)]);
        assert_eq!(filters(&tagged("1.0")), [format!(r#"name~="^import-[0-9-]+:1[.]0$",{rest}"#)]);
    }
}
