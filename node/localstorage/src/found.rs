//! A disk of the machine as the node found it.

use std::path::PathBuf;

use units::Bytes;

use crate::content::Content;

/// Purpose of a disk. Candidates for the data are the disks with the highest role.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// The system or an archive of images: never selected for the data.
    System,
    Unnamed,
    /// Designated for the data by the serial number.
    Data,
    /// A partition on any disk, designated for the data by its type.
    Partition,
}

/// A disk of the machine, or a data partition, which counts as a separate disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundDisk {
    /// Kernel name: `vda`, `vda3`.
    pub name: String,
    pub device: PathBuf,
    pub role: Role,
    pub read_only: bool,
    pub size: Bytes,
    pub content: Content,
}
