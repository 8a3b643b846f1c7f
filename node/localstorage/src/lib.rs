#![doc = include_str!("../README.md")]
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
