//! A real API server without a machine: etcd, kube-apiserver and kube-controller-manager on loopback, as the node runs
//! them. It tests decisions of the API server: no VM, no kubelet, no scheduler.
//!
//! The cases of a [`Suite`] share one cluster and run one after the other. The programs have fixed ports: the target of
//! a suite has the tag `block-network`, so that Bazel gives it a network with nothing but a loopback device.
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
pub use fakevolumes::FakeVolumes;
pub use faults::{Fault, FaultyServer};
pub use objects::claim;
pub use programs::Identity;
pub use requests::{accepted, bound, create, gone, merge, merge_status, remove};
pub use service::start;
pub use snapshots::SnapshotApi;
pub use suite::{Failure, Suite};

use std::time::Duration;

/// How long anything may take that a control plane does on its own: seconds, more beside a build.
pub const PATIENCE: Duration = Duration::from_secs(120);
