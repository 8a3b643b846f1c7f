//! The disk that firmware boots from, and the firmware's variables: files of one run.

use rustix::fs::{SeekFrom, ioctl_ficlone, seek};
use rustix::io::Errno;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use units::Bytes;

/// What is read at once.
const STEP: u64 = 1 << 20;
/// So many zeros in a row are a hole of the copy.
const HOLE: usize = 64 << 10;

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
    /// Makes a copy of a file, with `more` behind its end that reads as zeros.
    ///
    /// Where both are on one file system that can (XFS with `reflink`, Btrfs), the copy shares the blocks of the file: it
    /// is made at once, and takes room for what is written to it later, by nobody else. Elsewhere it takes room for what
    /// is not zero, in blocks of 64 KiB, and no hole is read. Nothing is synced: the copy does not outlive the machine.
    ///
    /// # Errors
    /// [`CopyError`]: there is no copy. A file that is there already is refused, and is as it was.
    ///
    /// `FICLONE`, Linux 4.5, ioctl_ficlone(2); `SEEK_DATA`, Linux 3.1, lseek(2).
    pub(crate) fn of(from: &Path, to: PathBuf, more: Bytes) -> Result<Self, CopyError> {
        let failed = |source| CopyError { from: from.into(), to: to.clone(), source };
        let original = File::open(from).map_err(failed)?;
        let file = File::options().write(true).create_new(true).open(&to).map_err(failed)?;
        let copy = Self { path: to.clone() };
        fill(&original, &file, more).map_err(failed)?;
        Ok(copy)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Leaves the file there.
    pub(crate) fn keep(self) {
        // Without its `Drop`, which removes the name.
        std::mem::forget(self);
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        _ = fs::remove_file(&self.path);
    }
}

/// The copy is new and empty.
fn fill(from: &File, to: &File, more: Bytes) -> io::Result<()> {
    let metadata = from.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file"));
    }
    let length = metadata.len();
    // Why it cannot be (another file system, one that never can) does not matter: what is in the way of any copy ends the
    // other way, too.
    let cloned = rustix::io::retry_on_intr(|| ioctl_ficlone(to, from)).is_ok();
    if !cloned {
        // A clone that failed in the middle has left what it had.
        to.set_len(0)?;
    }
    to.set_len(length.saturating_add(more.get()))?;
    if cloned { Ok(()) } else { copy_data(from, to, length) }
}

/// Copies all of the first `length` bytes that are not zero to a file that has none but zeros.
fn copy_data(from: &File, to: &File, length: u64) -> io::Result<()> {
    let mut buffer = vec![0; STEP as usize];
    let mut at = 0;
    while let Some((start, end)) = data(from, at, length)? {
        at = start;
        while at < end {
            let step = &mut buffer[..STEP.min(end - at) as usize];
            from.read_exact_at(step, at)?;
            // The image is sparse, but a cache that it came through may have filled its holes.
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

/// The first data that are not before `at`, from their beginning to their end.
fn data(file: &File, at: u64, length: u64) -> io::Result<Option<(u64, u64)>> {
    if at >= length {
        return Ok(None);
    }
    match seek(file, SeekFrom::Data(at)) {
        Ok(start) => Ok(Some((start, seek(file, SeekFrom::Hole(start))?.min(length)))),
        // There is nothing but a hole.
        Err(Errno::NXIO) => Ok(None),
        // The file system knows no holes.
        Err(Errno::INVAL) => Ok(Some((at, length))),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
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

    fn read(path: &Path, length: u64) -> Vec<u8> {
        let mut found = vec![0; length as usize];
        File::open(path).unwrap().read_exact_at(&mut found, 0).unwrap();
        found
    }

    /// What a file takes of its file system, stat(2).
    fn room(path: &Path) -> u64 {
        path.metadata().unwrap().blocks() * 512
    }

    #[test]
    fn a_copy_has_the_same_bytes_without_the_holes_and_room_behind_them() {
        let directory = tempfile::tempdir().unwrap();
        let length = (64 << 20) + 1;
        let image = image(&directory, length, &[(0, 1), (32 << 20, 2), (64 << 20, 3)]);
        let copy = Copy::of(&image, directory.path().join("copy"), MORE).unwrap();
        assert_eq!(copy.path().metadata().unwrap().len(), length + MORE.get());
        assert!(room(copy.path()) <= 4 * HOLE as u64, "{} bytes", room(copy.path()));
        assert!(read(copy.path(), length) == read(&image, length));
        assert!(read(copy.path(), length + 8192)[length as usize..].iter().all(|byte| *byte == 0));
        drop(copy);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_is_written_to_a_copy_is_not_written_to_the_original() {
        let directory = tempfile::tempdir().unwrap();
        let image = image(&directory, 3 << 20, &[(0, 1), (2 << 20, 2)]);
        let copy = Copy::of(&image, directory.path().join("copy"), MORE).unwrap();
        File::options().write(true).open(copy.path()).unwrap().write_all_at(&[7; 4096], 2 << 20).unwrap();
        let original = read(&image, 3 << 20);
        assert_eq!((original[0], original[2 << 20], original[(2 << 20) + 1]), (1, 2, 0));
        assert_eq!(read(copy.path(), 3 << 20)[0], 1);
    }

    /// As a cache leaves them.
    #[test]
    fn zeros_that_are_no_hole_are_one_in_a_copy_that_shares_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let mut bytes = vec![0; 3 << 20];
        bytes[1 << 20] = 1;
        bytes.push(2);
        let (image, copy) = (directory.path().join("image"), directory.path().join("copy"));
        fs::write(&image, &bytes).unwrap();
        let to = File::create_new(&copy).unwrap();
        to.set_len(bytes.len() as u64).unwrap();
        copy_data(&File::open(&image).unwrap(), &to, bytes.len() as u64).unwrap();
        assert!(room(&copy) <= 2 * HOLE as u64 + (8 << 10), "{} bytes", room(&copy));
        assert!(fs::read(&copy).unwrap() == bytes);
    }

    #[test]
    fn a_file_that_is_there_is_refused_and_kept() {
        let directory = tempfile::tempdir().unwrap();
        let (image, there) = (image(&directory, 4096, &[(0, 1)]), directory.path().join("copy"));
        fs::write(&there, "kept").unwrap();
        let error = Copy::of(&image, there.clone(), MORE).unwrap_err();
        assert_eq!(error.source.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(there).unwrap(), "kept");
    }

    #[test]
    fn nothing_is_left_of_a_copy_that_failed() {
        let directory = tempfile::tempdir().unwrap();
        let absent = directory.path().join("absent");
        let error = Copy::of(&absent, directory.path().join("copy"), MORE).unwrap_err();
        assert_eq!(error.source.kind(), io::ErrorKind::NotFound);
        // It can be opened.
        let error = Copy::of(directory.path(), directory.path().join("copy"), MORE).unwrap_err();
        assert_eq!(error.source.kind(), io::ErrorKind::InvalidInput);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn wherever_the_data_are_they_are_copied(
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
