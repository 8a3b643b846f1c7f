#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod cluster;
mod denials;
mod eventually;
mod fakevolumes;
mod faults;
mod objects;
mod requests;
mod service;
mod snapshots;
mod suite;

pub use cluster::{Cluster, StartError};
pub use denials::{denied, forbidden};
pub use eventually::{Late, Seen, chain, eventually, reached, until};
pub use fakevolumes::{FakeVolumes, faults_of_each_kind};
pub use faults::{Fault, FaultyServer};
pub use objects::claim;
pub use programs::Identity;
pub use requests::{accepted, bound, create, gone, merge, merge_status, remove};
pub use service::start;
pub use snapshots::SnapshotApi;
pub use suite::{Failure, Suite};

use std::time::Duration;

/// Deadline of any work that a control plane does by itself. It takes seconds, and longer during a build.
pub const PATIENCE: Duration = Duration::from_secs(120);
