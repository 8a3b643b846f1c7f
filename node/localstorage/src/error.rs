//! What can go wrong with the node's disks and directories.

use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;

use nix::errno::Errno;
use units::Bytes;

use crate::boot_disk::BootDiskError;
use crate::content::LABEL;
use crate::gpt::TableState;
use crate::plan::MINIMUM;
use crate::probe::ProbeError;
use crate::program::RunError;
use crate::signature::Signature;

/// No disk can be taken for the data, and none was touched.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Nothing to choose from.
    #[error("no disk for the data{}; give the machine an empty one, of {MINIMUM} or more", but(foreign))]
    None {
        /// Disks that hold something else.
        foreign: Vec<String>,
    },
    /// More than one to choose from.
    #[error(
        "disks {} could all be for the data; leave only one, or name one in the configuration, or, if nothing \
         designates one of them yet, give one that holds the node's data the serial number \"data\"",
        disks.join(", ")
    )]
    Several {
        /// Which.
        disks: Vec<String>,
    },
    /// The one that there is holds something that we did not make.
    #[error(
        "disk {disk} holds {what}, and not our file system (a complete XFS with the label {LABEL:?}); \
         wipe it to let the node format it, or give the machine another disk"
    )]
    Foreign {
        /// Which disk.
        disk: String,
        /// What is on it.
        what: Signature,
    },
    /// The one that there is has no room.
    #[error("disk {disk} is too small: it has {size}, the data needs {MINIMUM} or more")]
    TooSmall {
        /// Which disk.
        disk: String,
        /// Its size.
        size: Bytes,
    },
    /// The one that is designated cannot be written.
    #[error("disk {disk} is for the data, but it can only be read; attach it writable")]
    ReadOnly {
        /// Which disk.
        disk: String,
    },
    /// A partition for data is in a table that nobody can rely on.
    #[error(
        "the partition table of disk {disk} has a partition for the data, but {}; \
         repair the table with sfdisk or gdisk, or give the machine another disk",
        wrong(*state)
    )]
    Table {
        /// Which disk.
        disk: String,
        /// What is wrong.
        state: TableState,
    },
    /// A partition for data is in a table, but the kernel does not show it there.
    #[error(
        "partition {number} of disk {disk} is for the data, but the kernel does not show it as the partition \
         table says; restart the machine"
    )]
    NotShown {
        /// Which disk.
        disk: String,
        /// Number of the partition.
        number: u32,
    },
    /// Nobody looked at the one that there is.
    #[error("it is not known what is on disk {disk}")]
    Unexamined {
        /// Which disk.
        disk: String,
    },
}

fn wrong(state: TableState) -> &'static str {
    match state {
        TableState::LastOnly => "its first copy is damaged, and the kernel takes no other",
        TableState::Different => "its two copies differ",
        TableState::Whole | TableState::FirstOnly => "it is not usable",
    }
}

fn but(foreign: &[String]) -> String {
    if foreign.is_empty() {
        String::new()
    } else {
        let foreign = foreign.join(", ");
        format!(" (there is other data on {foreign}; without these the free space behind the system would be taken)")
    }
}

/// [`DataDisk::find`](crate::DataDisk::find) failed.
#[derive(Debug, thiserror::Error)]
pub enum FindError {
    /// The disks are known, and none is fit.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The partition for data on the boot disk could not be made, or made longer.
    #[error("cannot use the free space of the boot disk")]
    BootDisk(#[from] BootDiskError),
    /// A disk could not be looked at.
    #[error("cannot {step} {}", path.display())]
    Look {
        /// What was tried.
        step: &'static str,
        /// With what.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// It is not known what is on a disk. Nothing is formatted then.
    #[error("cannot find out what is on {}", device.display())]
    Probe {
        /// Which disk.
        device: PathBuf,
        /// Why not.
        #[source]
        source: ProbeError,
    },
    /// The kernel's description of a disk is not as expected.
    #[error("{} does not hold a number", path.display())]
    Malformed {
        /// Which description.
        path: PathBuf,
    },
}

/// A tree could not be mounted.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The disk cannot be looked at once more. Nothing was written to it.
    #[error("cannot look at {} again before it is used", device.display())]
    Again {
        /// Which disk.
        device: PathBuf,
        /// Why not.
        #[source]
        source: FindError,
    },
    /// The disk holds something else than when it was chosen. Nothing was written to it.
    #[error("{} holds something else than when it was chosen, and was left alone; choose again", device.display())]
    Changed {
        /// Which disk.
        device: PathBuf,
    },
    /// `mkfs.xfs` could not be started, or did not end within 10 minutes and was killed.
    #[error("cannot run {} to format {}", program.display(), device.display())]
    Program {
        /// The program.
        program: PathBuf,
        /// What it was to format.
        device: PathBuf,
        /// Why not.
        #[source]
        source: RunError,
    },
    /// `mkfs.xfs` gave up.
    #[error("cannot format {}: {} ended with {status}: {said}", device.display(), program.display())]
    Format {
        /// The program.
        program: PathBuf,
        /// What it was to format.
        device: PathBuf,
        /// How it ended.
        status: ExitStatus,
        /// What it wrote.
        said: String,
    },
    /// The new file system did not get its label.
    #[error("cannot label the new file system on {}", path.display())]
    Label {
        /// Where it is mounted.
        path: PathBuf,
        /// What the kernel said.
        #[source]
        source: Errno,
    },
    /// The disk did not write what it has in its cache.
    #[error("cannot sync {}", device.display())]
    Flush {
        /// Which disk.
        device: PathBuf,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// The kernel refused the file system.
    #[error(transparent)]
    Mount(#[from] mount::FilesystemError),
    /// What is mounted cannot be looked at.
    #[error("cannot look at the mount of {}", path.display())]
    Look {
        /// Where.
        path: PathBuf,
        /// Why not.
        #[source]
        source: mount::LookError,
    },
    /// Another file system is mounted at the place, or with other flags.
    #[error("{} is not mounted with nosuid, nodev and noexec, writable", path.display())]
    Flags {
        /// Where.
        path: PathBuf,
    },
    /// Something else is mounted there.
    #[error("something else is mounted on {} already", path.display())]
    Occupied {
        /// Where.
        path: PathBuf,
    },
    /// Project quotas are not on.
    #[error("{} has no project quotas", path.display())]
    Quota {
        /// Where.
        path: PathBuf,
        /// Why not.
        #[source]
        source: fsquota::FsError,
    },
    /// An enlarged disk could not be used as a whole.
    #[error("cannot grow the file system on {}", path.display())]
    Grow {
        /// Where it is mounted.
        path: PathBuf,
        /// What the kernel said.
        #[source]
        source: Errno,
    },
    /// The size of the file system is not known.
    #[error("cannot read the size of {}", path.display())]
    Size {
        /// Where it is mounted.
        path: PathBuf,
        /// What the kernel said.
        #[source]
        source: Errno,
    },
    /// No random numbers for project IDs.
    #[error("cannot get random numbers for the project IDs of {}", path.display())]
    Random {
        /// Where the disk is mounted.
        path: PathBuf,
        /// What the kernel said.
        #[source]
        source: getrandom::Error,
    },
    /// A project ID could not be looked up.
    #[error("cannot read the projects of {}", path.display())]
    Project {
        /// Which directory.
        path: PathBuf,
        /// Why not.
        #[source]
        source: fsquota::FsError,
    },
    /// A part of the disk did not get its project ID.
    #[error("cannot move {} to its project; the next start continues", path.display())]
    Transfer {
        /// Which.
        path: PathBuf,
        /// Why not.
        #[source]
        source: fsquota::TransferError,
    },
    /// A part of the disk could not be limited.
    #[error("cannot limit {}", path.display())]
    Limit {
        /// Which.
        path: PathBuf,
        /// Why not.
        #[source]
        source: fsquota::SetError,
    },
    /// A directory could not be opened, made or made durable.
    #[error("cannot {step} {}", path.display())]
    Directory {
        /// What was tried.
        step: &'static str,
        /// Which.
        path: PathBuf,
        /// Why not.
        #[source]
        source: dir::Error,
    },
    /// The mode of the root of a tree could not be set.
    #[error("cannot set the mode of {}", path.display())]
    Mode {
        /// Which.
        path: PathBuf,
        /// What the kernel said.
        #[source]
        source: Errno,
    },
    /// The tree itself is wrong: a name that is no path component.
    #[error("{} is no name for a directory", path.display())]
    Name {
        /// Which.
        path: PathBuf,
        /// Why not.
        #[source]
        source: dir::NameError,
    },
}

/// A directory of a mounted tree could not be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot open {}", path.display())]
pub struct OpenError {
    /// Which.
    pub path: PathBuf,
    /// Why not.
    #[source]
    pub source: dir::Error,
}
