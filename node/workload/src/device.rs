//! Block devices.

use crate::CheckError;
use crate::fill;
use crate::finding::{Device, Tried};
use nix::libc::O_DIRECT;
use nix::sys::stat::{major, minor};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// A buffer for direct I/O, aligned for any device.
#[repr(C, align(4096))]
struct Block([u8; 4096]);

/// Reads the properties of the device from sysfs, without ioctl.
pub(crate) fn look(path: &Path) -> Result<Device, CheckError> {
    let metadata = fs::metadata(path).map_err(CheckError::of("stat", path))?;
    if !metadata.file_type().is_block_device() {
        return Err(CheckError::of("use as a block device", path)(io::Error::from(io::ErrorKind::InvalidInput)));
    }
    let number = metadata.rdev();
    let kernel = PathBuf::from(format!("/sys/dev/block/{}:{}", major(number), minor(number)));
    // The kernel always reports units of 512 bytes, Documentation/ABI/stable/sysfs-block.
    let sectors = attribute(&kernel.join("size"))?;
    Ok(Device {
        size: sectors * 512,
        logical_block: attribute(&kernel.join("queue/logical_block_size"))?,
        read_only: attribute(&kernel.join("ro"))? == 1,
        direct: attribute(&kernel.join("loop/dio")).ok().map(|flag| flag == 1),
        number: format!("{}:{}", major(number), minor(number)),
        uid: metadata.uid(),
        gid: metadata.gid(),
    })
}

fn attribute(path: &Path) -> Result<u64, CheckError> {
    let text = fs::read_to_string(path).map_err(CheckError::of("read", path))?;
    let wrong = |error| io::Error::new(io::ErrorKind::InvalidData, error);
    text.trim().parse().map_err(|error| CheckError::of("understand", path)(wrong(error)))
}

/// Writes the first block with direct I/O, and reads it back with direct I/O.
pub(crate) fn direct(path: &Path) -> Result<Tried, CheckError> {
    let mut options = OpenOptions::new();
    let device: File = options
        .read(true)
        .write(true)
        .custom_flags(O_DIRECT)
        .open(path)
        .map_err(CheckError::of("open for direct I/O", path))?;
    let written = Block([0x5a; 4096]);
    let mut read = Block([0; 4096]);
    let result = device.write_all_at(&written.0, 0).and_then(|()| device.read_exact_at(&mut read.0, 0));
    match result {
        Ok(()) if read.0 == written.0 => Ok(Tried { errno: None }),
        Ok(()) => {
            Err(CheckError::of("read back what was written to", path)(io::Error::from(io::ErrorKind::InvalidData)))
        }
        Err(error) => Ok(Tried { errno: Some(fill::name(&error)) }),
    }
}

/// Creates and writes a file, or writes the first block of a device.
pub(crate) fn try_write(path: &Path) -> Tried {
    let mut options = OpenOptions::new();
    let written = options.write(true).create(true).truncate(false).open(path).and_then(|file| {
        file.write_all_at(&[0x3c; 4096], 0)?;
        file.sync_all()
    });
    Tried { errno: written.err().map(|error| fill::name(&error)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_not_a_device() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = look(file.path()).unwrap_err().to_string();
        assert!(error.starts_with("cannot use as a block device "), "{error}");
    }

    #[test]
    fn what_can_be_written_has_no_error_and_what_cannot_names_it() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(try_write(&directory.path().join("note")), Tried { errno: None });
        assert_eq!(try_write(&directory.path().join("no/note")), Tried { errno: Some("ENOENT".into()) });
    }
}
