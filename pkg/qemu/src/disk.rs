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

    /// The serial number as text.
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
    /// Serial number, which identifies the disk in the guest and in [`Vm::block_stats`](crate::Vm::block_stats).
    pub serial: Serial,
    /// The file; its length is the disk's size.
    pub path: PathBuf,
    /// The device that the guest sees.
    pub model: DiskModel,
    /// Whether the guest may write.
    pub access: Access,
    /// Durability of writes.
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
    /// virtio-blk with one queue for all CPUs: concurrent flushes end in the order in which they began.
    VirtioOneQueue,
    /// NVMe, one controller for each disk.
    Nvme {
        /// Critical warnings in the SMART log of the controller: NVM Express Base Specification 2.0, figure 207, byte 0.
        /// QEMU supports the lowest five.
        warnings: u8,
    },
    /// SATA, on the machine's AHCI controller with six ports. The disk cannot be read-only, and cannot be attached
    /// while the guest runs.
    Ahci,
}

impl DiskModel {
    pub(crate) const fn driver(self) -> &'static str {
        match self {
            Self::Virtio | Self::VirtioOneQueue => "virtio-blk-pci",
            Self::Nvme { .. } => "nvme",
            Self::Ahci => "ide-hd",
        }
    }
}

/// Whether the guest may write to a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The guest may write. QEMU locks the file against other VMs.
    ReadWrite,
    /// The guest may not write. Several VMs may use the file.
    ReadOnly,
}

/// Durability of the writes of the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cache {
    /// Writes go to the host's page cache; a flush of the guest is an `fdatasync`.
    WriteBack,
    /// Writes go to the host's page cache; flushes do nothing. The writes survive the end of QEMU, but not a crash of
    /// the host.
    Unsafe,
}

/// Layer between the guest and the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wrap {
    /// No layer.
    None,
    /// Some requests fail (blkdebug).
    Errors(Vec<IoError>),
    /// Writes go to this qcow2 file, created by [`overlay`](crate::overlay). The file of the disk is not changed, and
    /// several VMs may use it.
    Overlay(PathBuf),
    /// Each write and flush is also recorded in this file, in the format of dm-log-writes (blklogwrites).
    WriteLog(PathBuf),
}

/// A rule by which requests fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoError {
    /// Kind of request.
    pub operation: Operation,
    /// Error of the request; the guest only sees that it failed.
    pub errno: Errno,
    /// Sector of 512 bytes. Only requests that touch it fail; all requests of the kind if absent.
    pub sector: Option<u64>,
    /// Number of failures.
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

/// Number of failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Times {
    /// Only the first matching request fails.
    Once,
    /// All matching requests fail.
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
