//! The data disk's file.

use crate::boot_disk::{Copy, CopyError};
use crate::options::Data;
use qemu::{Cache, Disk, Serial, Wrap};
use std::fs::{self, OpenOptions};
use std::io;
use std::path::PathBuf;
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

/// The data disk of a saved node cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// No overlay.
    #[error("cannot create {path}, an overlay of the saved node's data disk")]
    Overlay {
        /// The file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// No copy.
    #[error("cannot copy the saved node's data disk")]
    Copy(#[from] CopyError),
}

/// The file of the data disk; made here, if it was missing.
#[derive(Debug)]
pub(crate) struct DataDisk {
    path: PathBuf,
    /// The file below, if this one is an overlay.
    base: Option<PathBuf>,
    kept: bool,
}

impl DataDisk {
    /// Opens or makes it; `temporary` is where temporary data go. A file of the caller's that is there is not touched.
    pub(crate) fn prepare(data: &Data, size: Bytes, temporary: PathBuf) -> Result<Self, DataError> {
        let disk = match data {
            Data::Temporary => Self { path: temporary, base: None, kept: false },
            Data::File(path) => Self { path: path.clone(), base: None, kept: true },
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

    /// Makes a disk with the content of a saved node's one, which does not change. A file must not exist.
    pub(crate) fn restore(data: &Data, saved: PathBuf, temporary: PathBuf) -> Result<Self, RestoreError> {
        match data {
            Data::Temporary => {
                let size = fs::metadata(&saved).map(|metadata| Bytes::new(metadata.len()));
                let made = size.and_then(|size| qemu::overlay(&temporary, size));
                made.map_err(|source| RestoreError::Overlay { path: temporary.clone(), source })?;
                Ok(Self { path: temporary, base: Some(saved), kept: false })
            }
            Data::File(path) => {
                Copy::of(&saved, path.clone(), Bytes::ZERO)?.keep();
                Ok(Self { path: path.clone(), base: None, kept: true })
            }
        }
    }

    /// For QEMU.
    pub(crate) fn disk(&self, serial: Serial) -> Disk {
        let mut disk = Disk::new(serial, self.base.as_ref().unwrap_or(&self.path));
        if self.base.is_some() {
            disk.wrap = Wrap::Overlay(self.path.clone());
        }
        // A temporary disk is not needed after a crash of the machine.
        disk.cache = if self.kept { Cache::WriteBack } else { Cache::Unsafe };
        disk
    }

    #[cfg(test)]
    pub(crate) fn path(&self) -> &std::path::Path {
        &self.path
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

    #[test]
    fn a_saved_disk_is_read_through_an_overlay_or_copied_to_a_file() {
        let directory = tempfile::tempdir().unwrap();
        let saved = directory.path().join("saved.img");
        fs::write(&saved, vec![7; 1 << 20]).unwrap();
        let serial = || "data".parse().unwrap();
        let changes = directory.path().join("data.qcow2");
        let overlay = DataDisk::restore(&Data::Temporary, saved.clone(), changes.clone()).unwrap();
        let disk = overlay.disk(serial());
        assert_eq!((disk.path, disk.wrap), (saved.clone(), Wrap::Overlay(changes.clone())));
        drop(overlay);
        assert!(saved.exists() && !changes.exists());

        let path = directory.path().join("data.img");
        let file = Data::File(path.clone());
        let copy = DataDisk::restore(&file, saved.clone(), PathBuf::new()).unwrap();
        let disk = copy.disk(serial());
        assert_eq!((disk.path, disk.wrap, disk.cache), (path.clone(), Wrap::None, Cache::WriteBack));
        drop(copy);
        assert_eq!(fs::read(&path).unwrap(), vec![7; 1 << 20]);
        assert!(matches!(DataDisk::restore(&file, saved, PathBuf::new()), Err(RestoreError::Copy(_))));
    }
}
