//! Backing files of devices.

use std::fmt;
use std::os::fd::AsFd;

use nix::sys::stat::{SFlag, fstat};

use crate::error::BackingError;
use crate::number::DeviceNumber;
use crate::sys;

/// Identity of a file. While a device is attached, the kernel holds its backing file open, so that no other file gets
/// the same numbers, even if the file was deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId {
    /// Device number of the file system, as `stat` returns it.
    pub device: DeviceNumber,
    /// Inode number on the file system.
    pub inode: u64,
}

/// Backing file of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Backing {
    /// A regular file.
    File(FileId),
    /// Another block device, identified independently of the node that was opened.
    Device(DeviceNumber),
}

impl Backing {
    /// The identity of an open file as a backing file. `file` may be opened with `O_PATH`.
    ///
    /// # Errors
    /// [`BackingError::NotAFile`] for anything but a regular file or a block device.
    pub fn of(file: impl AsFd) -> Result<Self, BackingError> {
        let stat = fstat(file).map_err(BackingError::system("fstat"))?;
        let kind = SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT;
        if kind == SFlag::S_IFREG {
            Ok(Self::File(FileId { device: DeviceNumber::from_stat(stat.st_dev), inode: stat.st_ino }))
        } else if kind == SFlag::S_IFBLK {
            Ok(Self::Device(DeviceNumber::from_stat(stat.st_rdev)))
        } else {
            Err(BackingError::NotAFile)
        }
    }

    /// Converts the status of a device. A regular file has no device number of its own.
    pub(crate) fn from_kernel(info: &sys::LoopInfo) -> Self {
        match info.rdevice {
            0 => Self::File(FileId { device: DeviceNumber::from_kernel(info.device), inode: info.inode }),
            device => Self::Device(DeviceNumber::from_kernel(device)),
        }
    }
}

impl fmt::Display for Backing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(file) => write!(f, "inode {} of file system {}", file.inode, file.device),
            Self::Device(device) => write!(f, "block device {device}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn a_file_is_known_by_its_inode() {
        let file = tempfile::tempfile().unwrap();
        let stat = file.metadata().unwrap();
        let Ok(Backing::File(id)) = Backing::of(&file) else { panic!("it is a regular file") };
        assert_eq!((id.device, id.inode), (DeviceNumber::from_stat(stat.dev()), stat.ino()));
    }

    #[test]
    fn a_directory_a_pipe_and_a_character_device_carry_nothing() {
        assert_eq!(Backing::of(File::open("/").unwrap()), Err(BackingError::NotAFile));
        assert_eq!(Backing::of(File::open("/dev/null").unwrap()), Err(BackingError::NotAFile));
        assert_eq!(Backing::of(std::io::pipe().unwrap().0), Err(BackingError::NotAFile));
    }
}
