//! Copies of sparse files.

use nix::errno::Errno;
use nix::unistd::{Whence, lseek};
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// Copies a sparse file to a new file with mode 0600, and keeps the holes. A control plane's disk contains the key of
/// the cluster's CA. If `to` exists, the function fails and leaves it unchanged. Nothing is synced.
///
/// `SEEK_DATA`, Linux 3.1, lseek(2).
pub(crate) fn sparse(from: &Path, to: &Path) -> io::Result<()> {
    let from = File::open(from)?;
    let copy = File::options().write(true).create_new(true).mode(0o600).open(to)?;
    copy_data(&from, &copy).inspect_err(|_| _ = fs::remove_file(to))
}

fn copy_data(mut from: &File, mut to: &File) -> io::Result<()> {
    to.set_len(from.metadata()?.len())?;
    let mut end = 0;
    loop {
        let start = match lseek(from, end, Whence::SeekData) {
            Ok(start) => start,
            // The rest of the file is a hole.
            Err(Errno::ENXIO) => return Ok(()),
            Err(errno) => return Err(errno.into()),
        };
        end = lseek(from, start, Whence::SeekHole)?;
        lseek(from, start, Whence::SeekSet)?;
        lseek(to, start, Whence::SeekSet)?;
        io::copy(&mut from.by_ref().take((end - start).cast_unsigned()), &mut to)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _};

    #[test]
    fn a_copy_has_the_data_and_the_holes() {
        let directory = tempfile::tempdir().unwrap();
        let [original, copy] = ["original", "copy"].map(|name| directory.path().join(name));
        let file = File::create_new(&original).unwrap();
        let length = (64 << 20) + 1;
        file.set_len(length).unwrap();
        for (at, byte) in [(0, 1), (32 << 20, 2), (64 << 20, 3)] {
            file.write_all_at(&[byte], at).unwrap();
        }
        sparse(&original, &copy).unwrap();
        assert_eq!(copy.metadata().unwrap().len(), length);
        assert_eq!(copy.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert!(copy.metadata().unwrap().blocks() * 512 <= 1 << 20);
        assert!(fs::read(&copy).unwrap() == fs::read(&original).unwrap());
    }

    #[test]
    fn an_existing_file_is_kept_and_a_failed_copy_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let [original, copy] = ["original", "copy"].map(|name| directory.path().join(name));
        fs::write(&copy, "kept").unwrap();
        assert_eq!(sparse(&original, &copy).unwrap_err().kind(), io::ErrorKind::NotFound);
        fs::write(&original, "data").unwrap();
        assert_eq!(sparse(&original, &copy).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(&copy).unwrap(), "kept");
        fs::remove_file(&copy).unwrap();
        // A directory can be opened, but not copied.
        sparse(directory.path(), &copy).unwrap_err();
        assert!(!copy.exists());
    }
}
