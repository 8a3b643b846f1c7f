//! What a volume is on the node's data disk: shared by the provisioner, which makes and deletes volumes, and by the
//! CSI plugin, which opens them.
//!
//! Below the volumes directory:
//!
//! | name | what |
//! |---|---|
//! | `records/ID` | the [`Record`]: written before anything else of the volume, removed after everything else |
//! | `staging/ID` | the directory while it is made |
//! | `live/ID` | the directory while it may be used; it always has its limits |
//! | `trash/ID` | the directory while it is removed |
//!
//! [`plan`] decides what is left to do, [`Store`] looks and acts. The limits are project quotas of XFS, so the data
//! disk is mounted with `prjquota`.
//!
//! Refused: adopting, emptying or deleting anything without a record. Block volumes and expansion are not served yet.
//!
//! Linux 5.14 (`quotactl_fd`).
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod id;
mod ledger;
pub mod plan;
pub mod record;
mod store;
mod turns;

pub use id::{VolumeId, VolumeIdError};
pub use ledger::Space;
pub use plan::{Refusal, Request};
pub use record::{Claim, Mode, Record, RecordError, State};
pub use store::{ActError, Error, ListError, LookError, OpenError, Settings, StartError, Store};

/// The name of the CSI driver and provisioner, everywhere.
pub const DRIVER_NAME: &str = "local.granary.dev";

/// The label that names a node, in PVs and in CSI topologies.
pub const TOPOLOGY_KEY: &str = "kubernetes.io/hostname";
