//! The node's directories, and the disk that has most of them.
//!
//! [`Root`] is the directory tree as types, defined in `tree.rs`; all other crates of the node take their paths from
//! there. A [`Mounted`] tree exists: only [`DataDisk::mount`] and [`mount_ephemeral`] return one, after they have
//! mounted the file system with the right options and created all directories.
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
//! The node selects the first of these that exists:
//!
//! 1. a partition of the type [`DATA_PARTITION`] on any disk;
//! 2. the disk with the serial number `data`;
//! 3. the disk that this node formatted before;
//! 4. the only empty disk;
//! 5. a new partition in the free space at the end of the boot disk.
//!
//! If another disk has data of this node too, the node rejects both disks.
//! A disk is empty if its first and last MiB are zeros and `blkid` finds no signature; any other disk is rejected,
//! never formatted. The content between the ends is not read: raw data there, with zeros around it, is overwritten. A
//! format that a power cut interrupted starts again. If the disk was enlarged, the file system grows while it is
//! mounted, and so does the partition at the end of the boot disk. The README has the rules as a table, and the steps
//! after a rejection.
//!
//! Directories to which others than the node write ([`Part`]) have limits, by project quotas, before they have content.
//! [`Budget`] computes the limits; the rest of the disk is reserved for volumes.
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
mod found;
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

pub use budget::{Budget, Part};
pub use content::{Content, DATA_PARTITION, Ends, Geometry, LABEL, MINIMUM};
pub use disk::{ARCHIVE_SERIALS, DataDisk, disks, disks_among, examine};
pub use ephemeral::mount_ephemeral;
pub use error::{BootDiskError, FindError, MountError, NoDataDisk, OpenError};
pub use found::{FoundDisk, Role};
pub use gpt::{Guid, PartitionTable, TableState};
pub use mounted::Mounted;
pub use plan::{Decision, plan};
pub use probe::ProbeError;
pub use program::{Programs, RunError};
pub use signature::{MalformedLine, Mark, Signature, Usage};
pub use smart::SmartWarnings;
pub use tree::{Cni, ContainerdState, Data, Directory, Entry, Ephemeral, File, Kubelet, Log, Passage, Root, Tree};
