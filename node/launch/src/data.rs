//! Disk files that the guest writes to.

use crate::copy;
use crate::error::StepError;
use crate::options::{Data, Options};
use qemu::{Cache, Disk, Serial, Wrap};
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use units::Bytes;

/// File of a disk. Drop removes a temporary file.
#[derive(Debug)]
pub(crate) struct DataDisk {
    path: PathBuf,
    /// Base file of an overlay at `path`.
    base: Option<PathBuf>,
    kept: bool,
}

impl DataDisk {
    /// Creates the file if it is missing, or enlarges it to a requested size. `temporary` is the path of a temporary
    /// disk.
    pub(crate) fn prepare(data: &Data, requested: Option<Bytes>, temporary: PathBuf) -> Result<Self, StepError> {
        let size = requested.unwrap_or(Options::DATA_SIZE);
        let disk = match data {
            Data::Temporary => Self { path: temporary, base: None, kept: false },
            Data::File(path) => Self { path: path.clone(), base: None, kept: true },
        };
        // Mode 0600: a control plane's disk contains the key of the cluster's CA.
        let created = match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&disk.path) {
            // Remove an incomplete file. The next run would use it as a small disk.
            Ok(file) => file.set_len(size.get()).inspect_err(|_| _ = fs::remove_file(&disk.path)),
            Err(error) if disk.kept && error.kind() == io::ErrorKind::AlreadyExists => {
                requested.map_or(Ok(()), |size| grow(&disk.path, size))
            }
            Err(error) => Err(error),
        };
        created.map_err(StepError::of(format!("create data disk {} of {size}", disk.path.display())))?;
        Ok(disk)
    }

    /// Creates a disk with the content of a saved node's disk. Fails if a kept file exists.
    pub(crate) fn restore(data: &Data, saved: PathBuf, temporary: PathBuf) -> Result<Self, StepError> {
        match data {
            Data::Temporary => Self::overlay(saved, Bytes::ZERO, temporary),
            Data::File(path) => {
                let step = format!("copy {} to {}", saved.display(), path.display());
                copy::sparse(&saved, path).map_err(StepError::of(step))?;
                Ok(Self { path: path.clone(), base: None, kept: true })
            }
        }
    }

    /// Creates a temporary overlay of `base` that is larger by `more`.
    pub(crate) fn overlay(base: PathBuf, more: Bytes, path: PathBuf) -> Result<Self, StepError> {
        let size = fs::metadata(&base).map(|metadata| more.saturating_add(Bytes::new(metadata.len())));
        let created = size.and_then(|size| qemu::overlay(&path, size));
        created.map_err(StepError::of(format!("create {}, an overlay of {}", path.display(), base.display())))?;
        Ok(Self { path, base: Some(base), kept: false })
    }

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
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

/// Enlarges a file; the node's next boot enlarges the file system. Preflight checks reject smaller sizes, and a file
/// never shrinks.
fn grow(path: &Path, size: Bytes) -> io::Result<()> {
    let file = OpenOptions::new().write(true).open(path)?;
    let metadata = file.metadata()?;
    if metadata.is_file() && metadata.len() < size.get() { file.set_len(size.get()) } else { Ok(()) }
}

/// QEMU keeps the removed file open, so the kernel frees its space when QEMU ends.
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

    const SIZE: Option<Bytes> = Some(Bytes::new(4 << 30));

    #[test]
    fn a_temporary_disk_is_sparse_and_is_removed() {
        use std::os::unix::fs::MetadataExt;
        let directory = tempfile::tempdir().unwrap();
        let disk = DataDisk::prepare(&Data::Temporary, SIZE, directory.path().join("data.img")).unwrap();
        let metadata = fs::metadata(disk.path()).unwrap();
        assert_eq!((metadata.len(), metadata.blocks()), (SIZE.unwrap().get(), 0));
        drop(disk);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    /// Regression test: with `--data`, other users of the machine could read the disk.
    #[test]
    fn only_the_owner_can_read_a_new_disk() {
        use std::os::unix::fs::PermissionsExt as _;
        let directory = tempfile::tempdir().unwrap();
        for data in [Data::Temporary, Data::File(directory.path().join("kept.img"))] {
            let disk = DataDisk::prepare(&data, SIZE, directory.path().join("data.img")).unwrap();
            let mode = fs::metadata(disk.path()).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{data:?}");
        }
    }

    #[test]
    fn an_existing_file_keeps_its_content() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kept.img");
        fs::write(&path, "content").unwrap();
        drop(DataDisk::prepare(&Data::File(path.clone()), None, directory.path().join("data.img")).unwrap());
        assert_eq!(fs::read_to_string(path).unwrap(), "content");
    }

    #[test]
    fn an_existing_file_grows_and_never_shrinks() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kept.img");
        fs::write(&path, "content").unwrap();
        for (requested, size) in [(3 << 20, 3 << 20), (1 << 20, 3 << 20)] {
            let data = Data::File(path.clone());
            drop(DataDisk::prepare(&data, Some(Bytes::new(requested)), PathBuf::new()).unwrap());
            assert_eq!(fs::metadata(&path).unwrap().len(), size);
        }
        assert!(fs::read(path).unwrap().starts_with(b"content"));
    }

    #[test]
    fn a_missing_file_is_created_and_kept() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("new.img");
        drop(DataDisk::prepare(&Data::File(path.clone()), None, directory.path().join("data.img")).unwrap());
        assert_eq!(fs::metadata(path).unwrap().len(), Options::DATA_SIZE.get());
    }

    #[test]
    fn a_saved_disk_gets_an_overlay_or_is_copied() {
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
        let error = DataDisk::restore(&file, saved, PathBuf::new()).unwrap_err();
        assert!(error.to_string().starts_with("cannot copy "), "{error}");
    }
}
