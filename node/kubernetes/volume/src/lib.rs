//! Volumes on the node's data disk: shared by the provisioner, which creates and deletes them, and by the
//! CSI plugin, which opens them.
//!
//! Below the volumes directory:
//!
//! | name | content |
//! |---|---|
//! | `pending/ID` | the [`Record`] of a volume without a PV; the store writes it before all other parts |
//! | `records/ID` | the record of an announced volume; the store removes it after all other parts |
//! | `staging/ID` | the directory of a volume during its creation |
//! | `live/ID` | the directory of a volume that may be used; it always has its limits |
//! | `trash/ID` | the directory of a volume during its removal |
//!
//! A block volume's directory contains a file `image`, the bytes of its disk. A pure plan computes the remaining steps;
//! [`Store`] reads the state and executes the steps. The limits are project quotas of XFS, so the data disk is mounted
//! with `prjquota`.
//!
//! The store never adopts, empties or deletes an entry without a readable record.
//!
//! Linux 5.14 (`quotactl_fd`). README.md describes what is durable, and why.
#![forbid(unsafe_code)]

mod anchor;
mod calls;
mod clone;
mod copy;
mod creation;
mod disk_state;
mod drift;
mod duty_cycle;
mod error;
mod execution;
mod expansion;
mod fault;
mod files;
mod flush;
mod freezing;
mod group;
mod id;
mod image;
mod image_file;
mod index;
mod io_limits;
mod lease;
mod ledger;
mod live;
mod locks;
mod opened;
mod parameters;
mod passes;
mod plan;
mod published;
mod record;
mod releases;
mod removal;
mod request;
mod rollback;
mod settings;
mod snapshot;
mod snapshot_group;
mod snapshot_parameters;
mod start;
mod store;
mod survey;
mod throttle;
mod tree;
mod volume_mode;
mod volumes;

pub use calls::{Operation, PodPause, VolumeCalls};
pub use cluster::{ALMOST_FULL, DRIVER_NAME, FINALIZER, Overcommit, PROVISIONED_BY, TOPOLOGY_KEY};
pub use disk_state::Where;
pub use drift::{DriftError, Drifted};
pub use error::{ActError, Error, ListError, LookError, OpenError, RollbackError, SourceError, StartError, UsageError};
pub use fault::{DiskFault, DiskObserver};
pub use freezing::{DEFAULT_PAUSE, FreezeError, FrozenPods, PodFreezer};
pub use id::{VolumeId, VolumeIdError};
pub use io_limits::{IoLimits, IoRejection, IoThrottle, ThrottleError};
pub use ledger::Space;
pub use live::{LiveVolume, LiveVolumeError};
pub use locks::{VolumeGuard, VolumeLocks};
pub use opened::{Access, Announced, Opened};
pub use parameters::{InodeRatio, ParameterError, Parameters};
pub use passes::{Copying, IdlePasses, SourcePauses, Taken};
pub use plan::{Step, VolumeRefusal};
pub use record::{Allocation, Claim, Cloning, EncodeError, Mode, Owner, Record, RecordError, Rollback, Sharing, State};
pub use request::{BLOCK, Request};
pub use rollback::RollbackRequest;
pub use settings::{Neighbours, Settings};
pub use snapshot::SnapshotRequest;
pub use snapshot_group::GroupRequest;
pub use snapshot_parameters::{MAX_PAUSE, SnapshotParameterError, SnapshotParameters, THIN};
pub use store::Store;
pub use survey::{Records, Strays, VolumeUsage};
pub use volume_mode::VolumeMode;
pub use volumes::Volumes;
