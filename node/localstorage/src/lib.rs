//! The node's own directories: which there are, and the disk that most of them are on.
//!
//! [`Root`] is the tree as types, read top to bottom in `tree.rs`; every other part of the node takes
//! its paths from there. A [`Mounted`] tree is one that exists: only [`DataDisk::mount`] and
//! [`mount_ephemeral`] make one, after the file system is there with the right options and all
//! directories in it.
//!
//! ```no_run
//! use localstorage::{DataDisk, Root, Tree as _, mount_ephemeral};
//!
//! let root = Root::at("/");
//! let ephemeral = mount_ephemeral(root.ephemeral)?;
//! let data = DataDisk::find()?.mount(root.data)?;
//! let volumes = data.open(|data| &data.volumes)?;
//! println!("containerd listens on {}", ephemeral.containerd.socket.path().display());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The data disk
//! A partition of the type [`DATA_PARTITION`] on any disk, else the disk with the serial number `data`,
//! else the one that this node formatted before, else the one empty disk, else a new partition in the
//! free space at the end of the disk that the node was started from. A disk of this node beside the chosen
//! one is refused with it. Empty is a disk whose first and
//! last MiB are zeros and on which `blkid` finds no signature; any other is rejected, never formatted. No other process
//! reads what is between: raw data there, with zeros around it, is taken for nothing and overwritten. A
//! format that a power cut ended is begun again. A disk that was enlarged is grown while it is mounted, and
//! so is the partition at its end if the node was started from it.
//! The README has the rules as a table, and what to do after a refusal.
//!
//! Directories that others than the node write to ([`Part`]) have limits, by project quotas, before anything is in
//! them. [`Budget`] computes them; the rest is reserved for volumes.
//!
//! Needs Linux 5.14, see `fsquota`.
#![deny(unsafe_code)]

mod boot_disk;
mod budget;
mod content;
mod disk;
mod ephemeral;
mod error;
mod format;
mod mounted;
mod plan;
mod prepare;
mod probe;
mod program;
mod project_ids;
mod projects;
mod signature;
mod smart;
#[expect(unsafe_code, reason = "the ioctls of XFS, partitions and NVMe have no wrapper in nix")]
mod sys;
pub mod sysfs;
mod tree;

pub use boot_disk::{BootDiskError, DATA_PARTITION};
pub use budget::{Budget, Part};
pub use content::{Content, Ends, Geometry, LABEL};
pub use disk::{ARCHIVE_SERIALS, DataDisk, FoundDisk, Role, disks, disks_among, examine};
pub use ephemeral::mount_ephemeral;
pub use error::{FindError, MountError, NoDataDisk, OpenError};
pub use gpt::{Guid, PartitionTable, TableState};
pub use mounted::Mounted;
pub use plan::{Decision, MINIMUM, plan};
pub use probe::ProbeError;
pub use program::{Programs, RunError};
pub use signature::{MalformedLine, Mark, Signature, Usage};
pub use smart::SmartWarnings;
pub use tree::{Cni, ContainerdState, Data, Directory, Entry, Ephemeral, File, Kubelet, Log, Passage, Root, Tree};
