//! What a volume is on the node's data disk: shared by the provisioner, which makes and deletes volumes, and by the
//! CSI plugin, which opens them.
//!
//! Below the volumes directory:
//!
//! | name | what |
//! |---|---|
//! | `pending/ID` | the [`Record`] of a volume without a PV: written before anything else of it |
//! | `records/ID` | the record after it was announced; removed after everything else |
//! | `staging/ID` | the directory while it is made |
//! | `live/ID` | the directory while it may be used; it always has its limits |
//! | `trash/ID` | the directory while it is removed |
//!
//! A block volume's directory holds a file `image`, the bytes of its disk. A pure plan decides what is left to do,
//! [`Store`] looks and acts. The limits are project quotas of XFS, so the data disk is mounted with `prjquota`.
//!
//! Refused: adopting, emptying or deleting anything without a record that can be read.
//!
//! Linux 5.14 (`quotactl_fd`). README.md tells what outlives a power cut, and why.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod acting;
mod drift;
mod error;
mod files;
mod group;
mod id;
mod image;
mod index;
mod ledger;
mod opened;
mod plan;
mod published;
mod record;
mod request;
mod seen;
mod settings;
mod store;
mod survey;
mod turns;

pub use cluster::{DRIVER_NAME, FINALIZER, Overcommit, PROVISIONED_BY, TOPOLOGY_KEY};
pub use drift::{DriftError, Drifted};
pub use error::{ActError, Error, ListError, LookError, OpenError, StartError, UsageError};
pub use id::{VolumeId, VolumeIdError};
pub use ledger::Space;
pub use opened::{Access, Announced, Opened};
pub use plan::{Refusal, Step};
pub use record::{Allocation, Claim, Mode, Record, RecordError, State};
pub use request::Request;
pub use seen::Where;
pub use settings::{Neighbours, Settings};
pub use store::Store;
pub use survey::{Records, Strays, VolumeUsage};

/// The names of the store's own directories.
fn fixed(name: &'static str) -> dir::Name {
    dir::Name::try_from(name).expect("the store's own names are names")
}

/// What lies in a directory of the store under the name of a volume. What cut runs left beside (`.ID.new`, `.ID.1`) is
/// none.
fn volumes_in(dir: &dir::Dir) -> Result<Vec<VolumeId>, dir::Error> {
    let volume = |name: dir::Name| name.to_str().and_then(|text| text.parse().ok());
    Ok(dir.names()?.into_iter().filter_map(volume).collect())
}
