//! Creates and repairs the cluster objects of Granary's storage: the CSI driver object, the default storage class,
//! roles of nodes and of the API server, the FlowSchema of nodes, and admission policies that restrict nodes to their
//! own objects and deny writes of [removed nodes](REMOVED_NODES).
//!
//! A release ignores objects of a newer one: each object has the [`REVISION`] of its set.
//!
//! Further services for the whole cluster:
//!
//! - [`approve`] decides on certificates of machines and nodes.
//! - [`tokens()`] deletes the bootstrap tokens of registered nodes.
//! - [`reclaim`] writes the node of claims if neither a scheduler nor a node does.
//! - [`dns()`] maintains the Service of the cluster's DNS.
//! - [`snapshots()`] maintains the kinds of snapshots and the role of their controller.
//! - [`administrators()`] maintains the rights of the users in the configuration.
//!
//! [`agents`] has the objects for other clusters. [`run`], [`administrators()`], [`approve`], [`tokens()`], [`dns()`],
//! [`snapshots()`] and [`reclaim`] are services of a supervisor on the control plane, with an administrator's identity.
#![forbid(unsafe_code)]

mod administrators;
mod admission;
pub mod agents;
mod approver;
mod bound;
mod clone;
mod control;
mod csr;
mod dns;
#[cfg(test)]
mod fixture;
mod identity;
mod kept_claim;
mod kubelet_certificate;
mod object;
mod objects;
mod placement;
mod plan;
mod pv_policy;
mod reclaimer;
mod removed;
mod run;
mod selections;
mod snapshots;
mod storage_certificate;
mod tokens;
mod unschedulable;

pub use administrators::administrators;
pub use approver::approve;
pub use control::WatchEnded;
pub use dns::dns;
pub use object::REVISION;
pub use objects::CLASS;
pub use reclaimer::reclaim;
pub use removed::{REMOVED_NODES, REMOVED_NODES_NAMESPACE};
pub use run::{RunError, run};
pub use snapshots::snapshots;
pub use tokens::tokens;

/// Reporting instance of the reclaimer's events.
pub(crate) const INSTANCE: &str = "reclaimer";
