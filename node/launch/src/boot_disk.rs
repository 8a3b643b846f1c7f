//! The disk that firmware boots from, and the firmware's variables: files of one run.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use units::Bytes;

/// A file of one run cannot be made.
#[derive(Debug, thiserror::Error)]
#[error("cannot copy {from} to {to}")]
pub struct CopyError {
    from: PathBuf,
    to: PathBuf,
    #[source]
    source: io::Error,
}

/// A copy whose name is gone when this is dropped. QEMU holds the file open by then, so that it is gone
/// with QEMU, however both end.
#[derive(Debug)]
pub(crate) struct Copy {
    path: PathBuf,
}

impl Copy {
    /// Copies a file, without what is zero in it, and makes the copy longer.
    pub(crate) fn of(from: &Path, to: PathBuf, more: Bytes) -> Result<Self, CopyError> {
        let copied = sparse(from, &to, more);
        let copy = Self { path: to };
        match copied {
            Ok(()) => Ok(copy),
            Err(source) => Err(CopyError { from: from.into(), to: copy.path.clone(), source }),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        _ = fs::remove_file(&self.path);
    }
}

/// The image is sparse, but a cache that it came through may have filled its holes.
fn sparse(from: &Path, to: &Path, more: Bytes) -> io::Result<()> {
    const HOLE: usize = 64 << 10;
    let (mut from, to) = (File::open(from)?, File::create(to)?);
    to.set_len(from.metadata()?.len().saturating_add(more.get()))?;
    let mut buffer = vec![0; 16 * HOLE];
    let mut at = 0;
    loop {
        let length = from.read(&mut buffer)?;
        if length == 0 {
            return Ok(());
        }
        for chunk in buffer[..length].chunks(HOLE) {
            if chunk.iter().any(|byte| *byte != 0) {
                to.write_all_at(chunk, at)?;
            }
            at += chunk.len() as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn a_copy_has_the_same_bytes_without_the_zeros_and_room_behind_them() {
        let directory = tempfile::tempdir().unwrap();
        let image = directory.path().join("image");
        let mut bytes = vec![0; 3 << 20];
        bytes[1 << 20] = 1;
        bytes.push(2);
        fs::write(&image, &bytes).unwrap();
        let copy = Copy::of(&image, directory.path().join("copy"), Bytes::new(1 << 30)).unwrap();
        let metadata = fs::metadata(copy.path()).unwrap();
        assert_eq!(metadata.len(), (1 << 30) + bytes.len() as u64);
        assert!(metadata.blocks() * 512 <= 2 * (64 << 10) + (8 << 10), "{} blocks", metadata.blocks());
        let mut found = vec![0; bytes.len()];
        File::open(copy.path()).unwrap().read_exact_at(&mut found, 0).unwrap();
        assert!(found == bytes);
        drop(copy);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn nothing_is_left_of_a_copy_that_failed() {
        let directory = tempfile::tempdir().unwrap();
        let from = directory.path().join("absent");
        let error = Copy::of(&from, directory.path().join("copy"), Bytes::ZERO).unwrap_err();
        assert_eq!(error.source.kind(), io::ErrorKind::NotFound);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}
