//! OCI image layout (image specification 1.1) with layers, configuration, manifest and index, and the archive of Docker
//! with the same layers and configuration.

use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::PathBuf;
use tar::{Builder, EntryType, Header};

const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
const ARCHITECTURE: &str = "amd64";
const OS: &str = "linux";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Description {
    format: Format,
    /// Full name with a tag, like `granary.invalid/pause:1`.
    reference: String,
    /// Uncompressed tar archives, the lowest first.
    pub(crate) layers: Vec<PathBuf>,
    /// Program of the uppermost layer.
    pub(crate) program: Option<Program>,
    entrypoint: Vec<String>,
    /// Arguments of the entry point if the container has none.
    arguments: Vec<String>,
    /// Variables as `NAME=VALUE`.
    environment: Vec<String>,
    /// `UID:GID` in digits, because the image has no user list. `None` for root.
    user: Option<String>,
}

#[derive(Clone, Copy, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum Format {
    Oci,
    /// Archive with a `manifest.json`. containerd ignores this file if the archive also has an OCI index.
    Docker,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Program {
    /// Absolute path in the image.
    path: String,
    pub(crate) file: PathBuf,
}

/// Contents of the files that a description names.
#[derive(Default)]
pub(crate) struct Contents {
    pub(crate) layers: Vec<Vec<u8>>,
    pub(crate) program: Vec<u8>,
}

/// Error for an invalid description or a failed write.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LayoutError {
    #[error("reference {0:?} has no tag; use NAME:TAG")]
    NoTag(String),
    #[error("program path {0:?} must be absolute and without `.` and `..`, like /usr/bin/program")]
    Path(String),
    #[error("cannot write the image layer")]
    Layer(#[source] io::Error),
}

pub(crate) struct Layout {
    format: Format,
    /// List of the images: `index.json` or `manifest.json`.
    index: Vec<u8>,
    /// Blobs by digest, without `sha256:`.
    blobs: BTreeMap<String, Vec<u8>>,
}

pub(crate) fn layout(image: &Description, contents: Contents) -> Result<Layout, LayoutError> {
    let tag = match image.reference.rsplit_once(':') {
        Some((_, tag)) if !tag.contains('/') => tag.to_owned(),
        _ => return Err(LayoutError::NoTag(image.reference.clone())),
    };
    let mut layout = Layout { format: image.format, index: Vec::new(), blobs: BTreeMap::new() };
    let mut layers: Vec<_> = contents.layers.into_iter().map(|content| layout.add(LAYER, content)).collect();
    if let Some(program) = &image.program {
        layers.push(layout.add(LAYER, layer(&program.path, &contents.program)?));
    }
    let mut process = json!({});
    for (field, words) in [("Entrypoint", &image.entrypoint), ("Cmd", &image.arguments), ("Env", &image.environment)] {
        if !words.is_empty() {
            process[field] = json!(words);
        }
    }
    if let Some(user) = &image.user {
        process["User"] = json!(user);
    }
    // The layers are not compressed, so their digests equal those of the content (`diff_id`).
    let diff_ids: Vec<&Value> = layers.iter().map(|layer| &layer["digest"]).collect();
    let config = layout.add_json(
        CONFIG,
        &json!({
            "architecture": ARCHITECTURE,
            "os": OS,
            "config": process,
            "rootfs": {"type": "layers", "diff_ids": diff_ids},
        }),
    );
    if image.format == Format::Docker {
        let path = |blob: &Value| format!("blobs/{}", blob["digest"].as_str().unwrap_or_default().replace(':', "/"));
        let layers: Vec<String> = layers.iter().map(path).collect();
        let image = json!({"Config": path(&config), "RepoTags": [image.reference], "Layers": layers});
        layout.index = json!([image]).to_string().into_bytes();
        return Ok(layout);
    }
    let manifest = json!({"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": layers});
    let mut manifest = layout.add_json(MANIFEST, &manifest);
    manifest["platform"] = json!({"architecture": ARCHITECTURE, "os": OS});
    // containerd reads the full name from the first annotation, other programs read the tag from the second.
    manifest["annotations"] = json!({
        "io.containerd.image.name": image.reference,
        "org.opencontainers.image.ref.name": tag,
    });
    let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [manifest]});
    layout.index = index.to_string().into_bytes();
    Ok(layout)
}

/// A tar archive of the program and its parent directories.
fn layer(path: &str, program: &[u8]) -> Result<Vec<u8>, LayoutError> {
    let plain = path.strip_prefix('/').filter(|rest| rest.split('/').all(|name| !matches!(name, "" | "." | "..")));
    let path = plain.ok_or_else(|| LayoutError::Path(path.to_owned()))?;
    let mut archive = Builder::new(Vec::new());
    let written = path
        .match_indices('/')
        .try_for_each(|(end, _)| append(&mut archive, EntryType::Directory, &path[..=end], 0o755, &[]))
        .and_then(|()| append(&mut archive, EntryType::Regular, path, 0o755, program))
        .and_then(|()| archive.into_inner());
    written.map_err(LayoutError::Layer)
}

/// Appends an entry without time or owner, so that archives are reproducible.
fn append(archive: &mut Builder<impl Write>, kind: EntryType, path: &str, mode: u32, content: &[u8]) -> io::Result<()> {
    let mut header = Header::new_ustar();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(content.len() as u64);
    archive.append_data(&mut header, path, content)
}

impl Layout {
    /// Adds a blob, and returns its descriptor.
    fn add(&mut self, media_type: &str, content: Vec<u8>) -> Value {
        let hex = image::sha256(&content);
        let descriptor = json!({"mediaType": media_type, "digest": format!("sha256:{hex}"), "size": content.len()});
        self.blobs.insert(hex, content);
        descriptor
    }

    fn add_json(&mut self, media_type: &str, content: &Value) -> Value {
        self.add(media_type, content.to_string().into_bytes())
    }

    pub(crate) fn write(&self, output: impl Write) -> io::Result<()> {
        let mut archive = Builder::new(output);
        let mut file = |path: &str, content: &[u8]| append(&mut archive, EntryType::Regular, path, 0o644, content);
        match self.format {
            Format::Oci => {
                file("oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#)?;
                file("index.json", &self.index)?;
            }
            Format::Docker => file("manifest.json", &self.index)?,
        }
        for (digest, content) in &self.blobs {
            file(&format!("blobs/sha256/{digest}"), content)?;
        }
        archive.into_inner()?.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;

    fn pause() -> Description {
        Description {
            format: Format::Oci,
            reference: "granary.invalid/pause:1".into(),
            layers: Vec::new(),
            program: Some(Program { path: "/usr/bin/pause".into(), file: PathBuf::new() }),
            entrypoint: vec!["/usr/bin/pause".into()],
            arguments: Vec::new(),
            environment: Vec::new(),
            user: Some("65535:65535".into()),
        }
    }

    fn program(content: &[u8]) -> Contents {
        Contents { layers: Vec::new(), program: content.to_vec() }
    }

    /// Configuration and manifest of a layout.
    fn parsed(layout: &Layout) -> [Value; 2] {
        let index: Value = serde_json::from_slice(&layout.index).unwrap();
        let manifest: Value = serde_json::from_slice(blob(layout, &index["manifests"][0])).unwrap();
        [serde_json::from_slice(blob(layout, &manifest["config"])).unwrap(), manifest]
    }

    fn blob<'a>(layout: &'a Layout, descriptor: &Value) -> &'a [u8] {
        let digest = descriptor["digest"].as_str().unwrap().strip_prefix("sha256:").unwrap();
        let content = &layout.blobs[digest];
        assert_eq!(descriptor["size"], content.len());
        content
    }

    #[test]
    fn the_index_references_the_program() {
        let layout = layout(&pause(), program(b"program")).unwrap();
        let [config, manifest] = parsed(&layout);
        assert_eq!(config["rootfs"]["diff_ids"][0], manifest["layers"][0]["digest"]);
        assert_eq!(config["config"], json!({"Entrypoint": ["/usr/bin/pause"], "User": "65535:65535"}));

        let mut layer = tar::Archive::new(blob(&layout, &manifest["layers"][0]));
        let entries: Vec<(String, u32)> = layer
            .entries()
            .unwrap()
            .map(|entry| {
                let entry = entry.unwrap();
                let header = entry.header();
                (entry.path().unwrap().display().to_string(), header.mode().unwrap())
            })
            .collect();
        let expected = [("usr/", 0o755), ("usr/bin/", 0o755), ("usr/bin/pause", 0o755)];
        assert_eq!(entries, expected.map(|(path, mode)| (path.to_owned(), mode)));
    }

    #[test]
    fn layers_are_below_the_program() {
        let shell = Description {
            entrypoint: Vec::new(),
            arguments: vec!["sh".into()],
            environment: vec!["PATH=/bin".into()],
            user: None,
            ..pause()
        };
        let contents =
            || Contents { layers: vec![b"lowest".to_vec(), b"second".to_vec()], program: b"program".to_vec() };
        let layers = |layout: &Layout| {
            let [config, manifest] = parsed(layout);
            let digests = manifest["layers"].as_array().unwrap().iter().map(|layer| layer["digest"].clone()).collect();
            assert_eq!(config["rootfs"]["diff_ids"], Value::Array(digests));
            assert_eq!(config["config"], json!({"Cmd": ["sh"], "Env": ["PATH=/bin"]}));
            manifest["layers"].as_array().unwrap().iter().map(|layer| blob(layout, layer).to_vec()).collect::<Vec<_>>()
        };
        let with_program = layers(&layout(&shell, contents()).unwrap());
        assert_eq!(with_program.len(), 3);
        assert_eq!(with_program[..2], contents().layers);
        let without = Description { program: None, ..shell };
        assert_eq!(layers(&layout(&without, contents()).unwrap()), contents().layers);
    }

    #[test]
    fn the_index_has_the_full_name_for_containerd() {
        let index: Value = serde_json::from_slice(&layout(&pause(), program(b"")).unwrap().index).unwrap();
        let annotations = &index["manifests"][0]["annotations"];
        assert_eq!(annotations["io.containerd.image.name"], "granary.invalid/pause:1");
        assert_eq!(annotations["org.opencontainers.image.ref.name"], "1");
    }

    #[test]
    fn a_docker_archive_lists_its_files_without_an_oci_index() {
        let mut bytes = Vec::new();
        let image = Description { format: Format::Docker, ..pause() };
        layout(&image, program(b"program")).unwrap().write(&mut bytes).unwrap();
        let mut files = BTreeMap::new();
        let mut archive = tar::Archive::new(&*bytes);
        for entry in archive.entries().unwrap() {
            let mut entry = entry.unwrap();
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            files.insert(entry.path().unwrap().display().to_string(), content);
        }
        let list: Value = serde_json::from_slice(&files.remove("manifest.json").unwrap()).unwrap();
        let image = &list[0];
        assert_eq!(image["RepoTags"], json!(["granary.invalid/pause:1"]));
        let config: Value = serde_json::from_slice(&files[image["Config"].as_str().unwrap()]).unwrap();
        assert_eq!(config["config"]["Entrypoint"], json!(["/usr/bin/pause"]));
        assert!(files.contains_key(image["Layers"][0].as_str().unwrap()), "{image}");
        assert_eq!(files.len(), 2, "{:?}", files.keys());
    }

    #[test]
    fn blobs_are_named_by_their_digests() {
        let mut layout = Layout { format: Format::Oci, index: Vec::new(), blobs: BTreeMap::new() };
        let empty = layout.add(LAYER, Vec::new());
        assert_eq!(empty["digest"], "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    }

    #[test]
    fn archives_are_reproducible() {
        let archive = || {
            let mut bytes = Vec::new();
            layout(&pause(), program(b"program")).unwrap().write(&mut bytes).unwrap();
            bytes
        };
        assert_eq!(archive(), archive());
        let mut reader = tar::Archive::new(io::Cursor::new(archive()));
        for entry in reader.entries().unwrap() {
            let entry = entry.unwrap();
            let header = entry.header();
            assert_eq!((header.mtime().unwrap(), header.uid().unwrap(), header.gid().unwrap()), (0, 0, 0));
        }
    }

    #[test]
    fn a_reference_without_a_tag_is_rejected() {
        let image = Description { reference: "registry.invalid:5000/pause".into(), ..pause() };
        assert!(matches!(layout(&image, Contents::default()), Err(LayoutError::NoTag(_))));
    }

    #[test]
    fn a_path_that_leaves_the_image_is_rejected() {
        let outside = Program { path: "/../pause".into(), file: PathBuf::new() };
        let image = Description { program: Some(outside), ..pause() };
        assert!(matches!(layout(&image, Contents::default()), Err(LayoutError::Path(_))));
    }
}
