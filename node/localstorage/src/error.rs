//! Errors of disks and directories.

use std::io;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::process::ExitStatus;

use gpt::{Guid, TableState};
use nix::errno::Errno;
use units::Bytes;

use crate::content::{DATA_PARTITION, LABEL, MINIMUM};
use crate::probe::ProbeError;
use crate::program::RunError;
use crate::signature::Signature;

/// No disk is suitable for the data. No disk was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoDataDisk {
    #[error("no data disk{}; attach an empty disk of at least {MINIMUM}", other_disks(foreign))]
    None { foreign: Vec<String> },
    #[error(
        "disks {} are all candidates for the data disk; leave only one attached, or name one in the configuration, \
         or, if none is designated yet, give the disk with the node's data the serial number \"data\"",
        disks.join(", ")
    )]
    Several { disks: Vec<String> },
    #[error(
        "disk {disk} contains {what} instead of the node's file system (a complete XFS with the label {LABEL:?}); \
         wipe the disk so that the node formats it, or attach another disk"
    )]
    Foreign { disk: String, what: Signature },
    #[error("disk {disk} is too small: it has {size}, a data disk needs at least {MINIMUM}")]
    TooSmall { disk: String, size: Bytes },
    #[error("data disk {disk} is read-only; attach it writable, or name another disk in `storage`")]
    ReadOnly { disk: String },
    #[error(
        "the partition table of disk {disk} has a data partition, but {}; \
         repair the table with sfdisk or gdisk, or attach another disk",
        table_fault(*state)
    )]
    Table { disk: String, state: TableState },
    #[error(
        "the kernel does not show data partition {number} of disk {disk} as the partition table defines it; \
         restart the machine"
    )]
    NotShown { disk: String, number: u32 },
    #[error("the content of disk {disk} is unknown")]
    Unexamined { disk: String },
}

fn table_fault(state: TableState) -> &'static str {
    match state {
        TableState::LastOnly => "its first copy is damaged, and the kernel reads no other copy",
        TableState::Different => "its two copies differ",
        TableState::Whole | TableState::FirstOnly => "it is not usable",
    }
}

fn other_disks(foreign: &[String]) -> String {
    if foreign.is_empty() {
        String::new()
    } else {
        let foreign = foreign.join(", ");
        format!(" (disks with other data: {foreign}; without them, the node would use the free space of the boot disk)")
    }
}

/// The partition table of the boot disk could not be changed. The disk has either the former or the new table.
#[derive(Debug, thiserror::Error)]
pub enum BootDiskError {
    #[error("cannot {step} {}", path.display())]
    Disk { step: &'static str, path: PathBuf, source: io::Error },
    #[error(
        "the former partition table of disk {} has partition {number} of {size} at {start}, after the system; \
         the table is unchanged; {}",
        path.display(), remedy(*kind)
    )]
    Former { path: PathBuf, number: u32, start: Bytes, size: Bytes, kind: Guid },
    #[error("the kernel rejected partition {number} of the new table of {}; restart the machine", path.display())]
    Shown { path: PathBuf, number: NonZeroU32, source: Errno },
}

fn remedy(kind: Guid) -> &'static str {
    if kind == DATA_PARTITION {
        "the partition has a node's data: write an image that ends where the former one did to the disk, or, if the \
         data is not needed, zeros over the last MiB of the disk"
    } else {
        "if the partition is not needed, write zeros over the last MiB of the disk"
    }
}

/// [`DataDisk::find`](crate::DataDisk::find) failed.
#[derive(Debug, thiserror::Error)]
pub enum FindError {
    #[error(transparent)]
    Refused(#[from] NoDataDisk),
    #[error("cannot use the free space of the boot disk")]
    BootDisk(#[from] BootDiskError),
    #[error("cannot {step} {}", path.display())]
    Look { step: &'static str, path: PathBuf, source: io::Error },
    /// The content of a disk is unknown. The node formats nothing in this case.
    #[error("cannot determine the content of {}", device.display())]
    Probe { device: PathBuf, source: ProbeError },
    #[error("{} does not contain a number", path.display())]
    Malformed { path: PathBuf },
}

#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The second check of the disk failed. Nothing was written to the disk.
    #[error("cannot check {} again before its use", device.display())]
    Again { device: PathBuf, source: FindError },
    /// The content of the disk has changed since its selection. Nothing was written to the disk.
    #[error(
        "the content of {} has changed since the disk was selected, nothing was written; select a disk again",
        device.display()
    )]
    Changed { device: PathBuf },
    #[error("cannot run {} to format {}", program.display(), device.display())]
    Program { program: PathBuf, device: PathBuf, source: RunError },
    #[error("cannot format {}: {} ended with {status}: {said}", device.display(), program.display())]
    Format { program: PathBuf, device: PathBuf, status: ExitStatus, said: String },
    #[error("cannot label the new file system on {}", path.display())]
    Label { path: PathBuf, source: Errno },
    #[error("cannot sync {}", device.display())]
    Flush { device: PathBuf, source: io::Error },
    #[error(transparent)]
    Mount(#[from] mount::FilesystemError),
    #[error("cannot inspect the mount of {}", path.display())]
    Look { path: PathBuf, source: mount::LookError },
    #[error("{} is not mounted writable with nosuid, nodev and noexec", path.display())]
    Flags { path: PathBuf },
    #[error("another file system is already mounted on {}", path.display())]
    Occupied { path: PathBuf },
    #[error("{} has no project quotas", path.display())]
    Quota { path: PathBuf, source: fsquota::FsError },
    #[error("cannot read the size of {}", path.display())]
    Size { path: PathBuf, source: Errno },
    #[error("cannot get random numbers for the project IDs of {}", path.display())]
    Random { path: PathBuf, source: getrandom::Error },
    #[error("cannot read the projects of {}", path.display())]
    Project { path: PathBuf, source: fsquota::FsError },
    #[error("cannot move {} to its project; the next start continues", path.display())]
    Transfer { path: PathBuf, source: fsquota::TransferError },
    #[error("cannot set the limit of {}", path.display())]
    Limit { path: PathBuf, source: fsquota::SetError },
    #[error("cannot {step} {}", path.display())]
    Directory { step: &'static str, path: PathBuf, source: dir::Error },
    #[error("cannot set the mode of {}", path.display())]
    Mode { path: PathBuf, source: Errno },
    #[error("{} is not a valid name for a directory", path.display())]
    Name { path: PathBuf, source: dir::NameError },
}

/// A directory of a mounted tree could not be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot open {}", path.display())]
pub struct OpenError {
    pub path: PathBuf,
    pub source: dir::Error,
}
