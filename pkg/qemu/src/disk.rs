//! A disk of the guest.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use nix::errno::Errno;

/// Serial number of a disk, `[a-z0-9-]{1,20}`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Serial(Box<str>);

/// The text is not a serial number.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a serial number of a disk: 1 to 20 lower-case letters, digits and '-'")]
pub struct SerialError {
    /// The text.
    pub text: String,
}

impl Serial {
    /// Length of a serial number in the virtio-blk device, `VIRTIO_BLK_ID_BYTES`.
    const LIMIT: usize = 20;

    /// The text itself.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Serial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Serial {
    type Err = SerialError;

    fn from_str(text: &str) -> Result<Self, SerialError> {
        let known = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        if text.is_empty() || text.len() > Self::LIMIT || !text.bytes().all(known) {
            return Err(SerialError { text: text.to_owned() });
        }
        Ok(Self(text.into()))
    }
}

/// A disk with the content of a raw file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    /// Its name in the guest and in [`Vm::block_stats`](crate::Vm::block_stats).
    pub serial: Serial,
    /// The file; its length is the disk's size.
    pub path: PathBuf,
    /// The device that the guest sees.
    pub model: DiskModel,
    /// May the guest write?
    pub access: Access,
    /// Where writes go.
    pub cache: Cache,
    /// Layer between the guest and the file.
    pub wrap: Wrap,
}

impl Disk {
    /// A virtio disk that the guest may write to, in the host's page cache until the guest flushes.
    pub fn new(serial: Serial, path: impl Into<PathBuf>) -> Self {
        Self {
            serial,
            path: path.into(),
            model: DiskModel::default(),
            access: Access::ReadWrite,
            cache: Cache::WriteBack,
            wrap: Wrap::None,
        }
    }
}

/// The device that the guest sees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DiskModel {
    /// virtio-blk, the fastest.
    #[default]
    Virtio,
    /// NVMe, one controller for each disk.
    Nvme,
    /// SATA, on the machine's AHCI controller with six ports. It cannot be read-only, nor attached while the guest runs.
    Ahci,
}

impl DiskModel {
    pub(crate) const fn driver(self) -> &'static str {
        match self {
            Self::Virtio => "virtio-blk-pci",
            Self::Nvme => "nvme",
            Self::Ahci => "ide-hd",
        }
    }
}

/// May the guest write?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Yes. The file is locked against other VMs.
    ReadWrite,
    /// No. Several VMs may use the file.
    ReadOnly,
}

/// Where the guest's writes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cache {
    /// To the host's page cache; a flush of the guest is an `fdatasync`.
    WriteBack,
    /// To the host's page cache; flushes do nothing. All is there after the end of QEMU, not of the host.
    Unsafe,
}

/// Layer between the guest and the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wrap {
    /// Nothing.
    None,
    /// Some requests fail (blkdebug).
    Errors(Vec<IoError>),
    /// Writes go to this qcow2 file, made by [`overlay`](crate::overlay); the disk's file is not changed and may be used
    /// by several VMs.
    Overlay(PathBuf),
    /// Each write and flush is also recorded in this file, in the format of dm-log-writes (blklogwrites).
    WriteLog(PathBuf),
}

/// Requests that fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoError {
    /// Which kind.
    pub operation: Operation,
    /// Error of the request; the guest only sees that it failed.
    pub errno: Errno,
    /// Only requests that touch this sector of 512 bytes; any if absent.
    pub sector: Option<u64>,
    /// How often.
    pub times: Times,
}

/// A kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// Flushes.
    Flush,
    /// Discards.
    Discard,
}

/// How often something happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Times {
    /// The first time only.
    Once,
    /// Always.
    Always,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_serial_number_fits_the_device() {
        for text in ["system", "data", "scratch-0", "12345678901234567890"] {
            assert_eq!(text.parse::<Serial>().unwrap().as_str(), text);
        }
        for text in ["", "123456789012345678901", "Data", "a,b", "a b", "ä"] {
            assert_eq!(text.parse::<Serial>(), Err(SerialError { text: text.into() }));
        }
    }
}
