//! Archives of container images, as `skopeo copy` and `docker save` write them, and OCI layouts, which are directories.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

#[derive(Debug, thiserror::Error)]
pub enum ImageArchiveError {
    #[error("it cannot be read")]
    Read(#[source] io::Error),
    #[error(
        "it is neither an OCI layout nor an uncompressed tar file with `index.json` (OCI) or `manifest.json` (Docker); create one with \
         `skopeo copy docker://NAME:TAG oci-archive:FILE:NAME:TAG` or `docker save --output FILE NAME:TAG`"
    )]
    Format,
}

/// Reads the headers only. containerd verifies the content.
pub(crate) fn check(path: &Path) -> Result<(), ImageArchiveError> {
    let file = File::open(path).map_err(ImageArchiveError::Read)?;
    let kind = file.metadata().map_err(ImageArchiveError::Read)?.file_type();
    if kind.is_dir() && path.join("index.json").is_file() {
        return Ok(());
    }
    if !kind.is_file() {
        return Err(ImageArchiveError::Format);
    }
    let mut archive = tar::Archive::new(file);
    for entry in archive.entries_with_seek().map_err(ImageArchiveError::Read)? {
        let entry = entry.map_err(|_| ImageArchiveError::Format)?;
        let name = entry.path_bytes();
        if matches!(name.strip_prefix(b"./").unwrap_or(&name), b"index.json" | b"manifest.json") {
            return Ok(());
        }
    }
    Err(ImageArchiveError::Format)
}

/// The path of the archive. That of a directory is created, as `packed`.
pub(crate) fn packed(path: &Path, packed: PathBuf) -> io::Result<PathBuf> {
    if !path.is_dir() {
        return Ok(path.to_owned());
    }
    let mut archive = tar::Builder::new(File::create(&packed)?);
    archive.append_dir_all("", path)?;
    archive.into_inner()?;
    Ok(packed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archives_of_images_contain_a_list() {
        let directory = tempfile::tempdir().unwrap();
        for (names, is_archive) in [
            (&["oci-layout", "blobs/sha256/aa", "index.json"][..], true),
            (&["aa.json", "./manifest.json"], true),
            (&["blobs/index.json"], false),
            (&[], false),
        ] {
            let path = directory.path().join("a.tar");
            let mut archive = tar::Builder::new(File::create(&path).unwrap());
            for name in names {
                let mut header = tar::Header::new_gnu();
                header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
                header.set_size(3);
                header.set_cksum();
                archive.append(&header, &b"{}\n"[..]).unwrap();
            }
            archive.into_inner().unwrap();
            assert_eq!(check(&path).is_ok(), is_archive, "{names:?}");
        }
    }

    #[test]
    fn a_layout_is_packed() {
        let directory = tempfile::tempdir().unwrap();
        let layout = directory.path().join("layout");
        std::fs::create_dir_all(layout.join("blobs/sha256")).unwrap();
        std::fs::write(layout.join("blobs/sha256/aa"), "{}").unwrap();
        assert!(matches!(check(&layout), Err(ImageArchiveError::Format)));
        std::fs::write(layout.join("index.json"), "{}").unwrap();
        check(&layout).unwrap();
        let archive = directory.path().join("image.tar");
        assert_eq!(packed(&layout, archive.clone()).unwrap(), archive);
        check(&archive).unwrap();
        assert_eq!(packed(&archive, PathBuf::new()).unwrap(), archive, "not copied");
    }

    #[test]
    fn other_files_are_rejected() {
        let directory = tempfile::tempdir().unwrap();
        let text = directory.path().join("a.tar");
        std::fs::write(&text, vec![b'a'; 2048]).unwrap();
        for path in [directory.path(), &text] {
            assert!(matches!(check(path), Err(ImageArchiveError::Format)), "{}", path.display());
        }
        let missing = check(&directory.path().join("missing.tar"));
        assert!(matches!(missing, Err(ImageArchiveError::Read(_))));
    }
}
