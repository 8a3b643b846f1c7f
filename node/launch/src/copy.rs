//! Copies of files for one run: the disk that firmware boots from, and the firmware's variables.

use rustix::fs::{SeekFrom, ioctl_ficlone, seek};
use rustix::io::Errno;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use units::Bytes;

use crate::error::StepError;

const STEP: u64 = 1 << 20;
/// Blocks of zeros of this size become holes of the copy.
const HOLE: usize = 64 << 10;

/// A copy whose name is removed on drop. QEMU has the file open by then, so the file is removed when QEMU ends.
#[derive(Debug)]
pub(crate) struct Copy {
    path: PathBuf,
}

impl Copy {
    /// Copies a file and adds `more` zeros. An existing file is an error and is not changed.
    ///
    /// If both are on one file system with reflinks (XFS, Btrfs), the copy shares the blocks of the file. Otherwise, blocks
    /// of zeros are not allocated, and holes are not read. Nothing is synced.
    ///
    /// `FICLONE`, Linux 4.5, ioctl_ficlone(2); `SEEK_DATA`, Linux 3.1, lseek(2).
    pub(crate) fn of(from: &Path, to: PathBuf, more: Bytes) -> Result<Self, StepError> {
        let step = format!("copy {} to {}", from.display(), to.display());
        let copy = || {
            let original = File::open(from)?;
            let file = File::options().write(true).create_new(true).open(&to)?;
            let copy = Self { path: to };
            fill(&original, &file, more).map(|()| copy)
        };
        copy().map_err(StepError::of(step))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn keep(self) {
        // Skips `Drop`, which removes the name.
        std::mem::forget(self);
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        _ = fs::remove_file(&self.path);
    }
}

fn fill(from: &File, to: &File, more: Bytes) -> io::Result<()> {
    let metadata = from.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    let length = metadata.len();
    // The reason for a failure is ignored: an error that affects every copy affects the next steps, too.
    let cloned = rustix::io::retry_on_intr(|| ioctl_ficlone(to, from)).is_ok();
    if !cloned {
        // A clone that failed may have left some blocks.
        to.set_len(0)?;
    }
    to.set_len(length.saturating_add(more.get()))?;
    if cloned { Ok(()) } else { copy_data(from, to, length) }
}

/// Copies the blocks of the first `length` bytes that are not zero to a file of zeros.
fn copy_data(from: &File, to: &File, length: u64) -> io::Result<()> {
    let mut buffer = vec![0; STEP as usize];
    let mut at = 0;
    while let Some((start, end)) = data(from, at, length)? {
        at = start;
        while at < end {
            let step = &mut buffer[..STEP.min(end - at) as usize];
            from.read_exact_at(step, at)?;
            // The image is sparse, but a cache may have filled its holes.
            for block in step.chunks(HOLE) {
                if block.iter().any(|byte| *byte != 0) {
                    to.write_all_at(block, at)?;
                }
                at += block.len() as u64;
            }
        }
    }
    Ok(())
}

/// Start and end of the first data at or after `at`.
fn data(file: &File, at: u64, length: u64) -> io::Result<Option<(u64, u64)>> {
    if at >= length {
        return Ok(None);
    }
    match seek(file, SeekFrom::Data(at)) {
        Ok(start) => Ok(Some((start, seek(file, SeekFrom::Hole(start))?.min(length)))),
        // Only a hole is left.
        Err(Errno::NXIO) => Ok(None),
        // The file system does not support holes.
        Err(Errno::INVAL) => Ok(Some((at, length))),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::error::Error as _;
    use std::os::unix::fs::MetadataExt;
    use tempfile::TempDir;

    const MORE: Bytes = Bytes::new(1 << 30);

    /// A file with these bytes at these places, and holes between them.
    fn image(directory: &TempDir, length: u64, bytes: &[(u64, u8)]) -> PathBuf {
        let path = directory.path().join("image");
        let file = File::create_new(&path).unwrap();
        file.set_len(length).unwrap();
        for (at, byte) in bytes {
            file.write_all_at(&[*byte], *at).unwrap();
        }
        path
    }

    fn kind(error: &StepError) -> io::ErrorKind {
        error.source().and_then(|cause| cause.downcast_ref::<io::Error>()).expect("an I/O error").kind()
    }

    fn read(path: &Path, length: u64) -> Vec<u8> {
        let mut found = vec![0; length as usize];
        File::open(path).unwrap().read_exact_at(&mut found, 0).unwrap();
        found
    }

    fn allocated(path: &Path) -> u64 {
        path.metadata().unwrap().blocks() * 512
    }

    #[test]
    fn a_copy_is_sparse_and_larger() {
        let directory = tempfile::tempdir().unwrap();
        let length = (64 << 20) + 1;
        let image = image(&directory, length, &[(0, 1), (32 << 20, 2), (64 << 20, 3)]);
        let copy = Copy::of(&image, directory.path().join("copy"), MORE).unwrap();
        assert_eq!(copy.path().metadata().unwrap().len(), length + MORE.get());
        assert!(allocated(copy.path()) <= 4 * HOLE as u64, "{} bytes", allocated(copy.path()));
        assert!(read(copy.path(), length) == read(&image, length));
        assert!(read(copy.path(), length + 8192)[length as usize..].iter().all(|byte| *byte == 0));
        drop(copy);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn writes_to_a_copy_do_not_change_the_original() {
        let directory = tempfile::tempdir().unwrap();
        let image = image(&directory, 3 << 20, &[(0, 1), (2 << 20, 2)]);
        let copy = Copy::of(&image, directory.path().join("copy"), MORE).unwrap();
        File::options().write(true).open(copy.path()).unwrap().write_all_at(&[7; 4096], 2 << 20).unwrap();
        let original = read(&image, 3 << 20);
        assert_eq!((original[0], original[2 << 20], original[(2 << 20) + 1]), (1, 2, 0));
        assert_eq!(read(copy.path(), 3 << 20)[0], 1);
    }

    #[test]
    fn zeros_become_holes_of_a_copy_without_reflinks() {
        let directory = tempfile::tempdir().unwrap();
        let mut bytes = vec![0; 3 << 20];
        bytes[1 << 20] = 1;
        bytes.push(2);
        let (image, copy) = (directory.path().join("image"), directory.path().join("copy"));
        fs::write(&image, &bytes).unwrap();
        let to = File::create_new(&copy).unwrap();
        to.set_len(bytes.len() as u64).unwrap();
        copy_data(&File::open(&image).unwrap(), &to, bytes.len() as u64).unwrap();
        assert!(allocated(&copy) <= 2 * HOLE as u64 + (8 << 10), "{} bytes", allocated(&copy));
        assert!(fs::read(&copy).unwrap() == bytes);
    }

    #[test]
    fn an_existing_file_is_rejected_and_kept() {
        let directory = tempfile::tempdir().unwrap();
        let (image, existing) = (image(&directory, 4096, &[(0, 1)]), directory.path().join("copy"));
        fs::write(&existing, "kept").unwrap();
        let error = Copy::of(&image, existing.clone(), MORE).unwrap_err();
        assert_eq!(kind(&error), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(existing).unwrap(), "kept");
    }

    #[test]
    fn a_failed_copy_leaves_no_file() {
        let directory = tempfile::tempdir().unwrap();
        let absent = directory.path().join("absent");
        let error = Copy::of(&absent, directory.path().join("copy"), MORE).unwrap_err();
        assert_eq!(kind(&error), io::ErrorKind::NotFound);
        // A directory can be opened.
        let error = Copy::of(directory.path(), directory.path().join("copy"), MORE).unwrap_err();
        assert_eq!(kind(&error), io::ErrorKind::InvalidInput);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn all_data_are_copied(
            length in 0..4_u64 << 20,
            bytes in prop::collection::vec((any::<prop::sample::Index>(), 1..=u8::MAX), 0..8),
        ) {
            let directory = tempfile::tempdir().unwrap();
            let bytes: Vec<(u64, u8)> = match length {
                0 => Vec::new(),
                _ => bytes.iter().map(|(at, byte)| (at.index(length as usize) as u64, *byte)).collect(),
            };
            let image = image(&directory, length, &bytes);
            let path = directory.path().join("copy");
            let to = File::create_new(&path).unwrap();
            to.set_len(length).unwrap();
            copy_data(&File::open(&image).unwrap(), &to, length).unwrap();
            prop_assert!(read(&path, length) == read(&image, length));
        }
    }
}
