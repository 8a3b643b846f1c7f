//! Keeps the objects in the cluster that Granary's storage needs: the CSI driver's entry, the default storage class,
//! and what the nodes' storage identities may do: their role, and policies that hold each node to its own objects; one
//! of them holds kubelets to what NodeRestriction leaves open, another one keeps out nodes that were removed
//! ([`REMOVED_NODES`]).
//!
//! It also keeps the role of the API server at kubelets, and the FlowSchema of the nodes' requests.
//!
//! They are made when they are missing and mended when they drift. A release never touches what a newer one keeps: each
//! object carries the [`REVISION`] of the set it belongs to.
//!
//! Three more things are done once for the whole cluster: [`approve`] decides which machine joins as a node and which node
//! gets a storage identity, [`tokens()`] deletes the bootstrap tokens of nodes that have registered, and [`reclaim`] returns
//! claims to the scheduler whose node was deleted.
//!
//! [`agents`] are the objects of other clusters, where pods are the nodes' storage.
//!
//! [`run`], [`approve`], [`tokens()`] and [`reclaim`] are services of a supervisor, on the control-plane node, with an identity that may
//! do all this.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod admission;
pub mod agents;
mod approval;
mod approve;
mod control;
mod csr;
mod kubelet;
mod objects;
mod plan;
mod reclaimer;
mod removed;
mod run;
mod tokens;
mod volumes;

pub use approve::approve;
pub use control::WatchEnded;
pub use objects::{CLASS, REVISION};
pub use reclaimer::reclaim;
pub use removed::{REMOVED_NODES, REMOVED_NODES_NAMESPACE};
pub use run::{RunError, run};
pub use tokens::tokens;
