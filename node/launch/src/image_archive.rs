//! Archives of container images, as `skopeo copy` and `docker save` write them, and OCI layouts, which are directories.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use units::Bytes;

#[derive(Debug, thiserror::Error)]
pub enum ImageArchiveError {
    #[error("it cannot be read; name a file or a directory that you may read with --image")]
    Read(#[source] io::Error),
    #[error(
        "it is neither an OCI layout nor an uncompressed tar file with `index.json` (OCI) or `manifest.json` (Docker); create one with \
         `skopeo copy docker://NAME:TAG oci-archive:FILE:NAME:TAG` or `docker save --output FILE NAME:TAG`"
    )]
    Format,
}

/// Checks only the headers. containerd verifies the content.
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

/// Path of the archive. For a directory, [`pack`] creates the archive at `packed`.
pub(crate) fn archive(path: &Path, packed: PathBuf) -> PathBuf {
    if path.is_dir() { packed } else { path.to_owned() }
}

pub(crate) fn pack(directory: &Path, packed: &Path) -> io::Result<()> {
    let mut archive = tar::Builder::new(File::create(packed)?);
    archive.append_dir_all("", directory)?;
    archive.into_inner().map(drop)
}

/// Total size of the files of a directory, which [`pack`] copies. Zero for an archive.
pub(crate) fn packed_size(path: &Path) -> io::Result<Bytes> {
    let mut size = Bytes::ZERO;
    if path.is_dir() {
        for entry in fs::read_dir(path)? {
            let path = entry?.path();
            let more = if path.is_dir() { packed_size(&path)? } else { Bytes::new(path.metadata()?.len()) };
            size = size.saturating_add(more);
        }
    }
    Ok(size)
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
        let packed = directory.path().join("image.tar");
        assert_eq!(archive(&layout, packed.clone()), packed);
        assert_eq!(packed_size(&layout).unwrap(), Bytes::new(4));
        pack(&layout, &packed).unwrap();
        check(&packed).unwrap();
        assert_eq!(archive(&packed, PathBuf::new()), packed, "not copied");
        assert_eq!(packed_size(&packed).unwrap(), Bytes::ZERO);
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
        assert_eq!(
            missing.unwrap_err().to_string(),
            "it cannot be read; name a file or a directory that you may read with --image"
        );
    }
}
