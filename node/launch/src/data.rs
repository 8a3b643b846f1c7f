//! The data disk's file.

use crate::options::Data;
use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use units::Bytes;

/// The data disk cannot be made.
#[derive(Debug, thiserror::Error)]
#[error("cannot make data disk {path} of {size}")]
pub struct DataError {
    path: PathBuf,
    size: Bytes,
    #[source]
    source: io::Error,
}

/// The file of the data disk; made here, if it was missing.
#[derive(Debug)]
pub(crate) struct DataDisk {
    path: PathBuf,
    kept: bool,
}

impl DataDisk {
    /// Opens or makes it; `temporary` is where temporary data go. A file of the caller's that is there is not touched.
    pub(crate) fn prepare(data: &Data, size: Bytes, temporary: PathBuf) -> Result<Self, DataError> {
        let disk = match data {
            Data::Temporary => Self { path: temporary, kept: false },
            Data::File(path) => Self { path: path.clone(), kept: true },
        };
        match OpenOptions::new().write(true).create_new(true).open(&disk.path) {
            Ok(file) => {
                if let Err(source) = file.set_len(size.get()) {
                    // Nothing half-made: the next run would take it for a small disk.
                    _ = fs::remove_file(&disk.path);
                    return Err(DataError { path: disk.path.clone(), size, source });
                }
            }
            Err(error) if disk.kept && error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(source) => return Err(DataError { path: disk.path.clone(), size, source }),
        }
        Ok(disk)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it is there after the guest's end.
    pub(crate) fn is_kept(&self) -> bool {
        self.kept
    }
}

/// Takes the name of a temporary disk away. QEMU holds the file open by then, so that it is gone with
/// QEMU, however both end.
impl Drop for DataDisk {
    fn drop(&mut self) {
        if !self.kept {
            _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: Bytes = Bytes::new(8 << 30);

    #[test]
    fn a_temporary_disk_is_sparse_and_leaves_no_name() {
        use std::os::unix::fs::MetadataExt;
        let directory = tempfile::tempdir().unwrap();
        let disk = DataDisk::prepare(&Data::Temporary, SIZE, directory.path().join("data.img")).unwrap();
        let metadata = fs::metadata(disk.path()).unwrap();
        assert_eq!((metadata.len(), metadata.blocks()), (SIZE.get(), 0));
        drop(disk);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_file_that_is_there_keeps_its_content() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kept.img");
        fs::write(&path, "content").unwrap();
        drop(DataDisk::prepare(&Data::File(path.clone()), SIZE, directory.path().join("data.img")).unwrap());
        assert_eq!(fs::read_to_string(path).unwrap(), "content");
    }

    #[test]
    fn a_missing_file_is_made_and_kept() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("new.img");
        drop(DataDisk::prepare(&Data::File(path.clone()), SIZE, directory.path().join("data.img")).unwrap());
        assert_eq!(fs::metadata(path).unwrap().len(), SIZE.get());
    }
}
