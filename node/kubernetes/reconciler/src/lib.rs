//! Keeps the objects in the cluster that Granary's storage needs: the CSI driver's entry, the default storage class,
//! and what the nodes' storage identities may do: their role, and policies that hold each node to its own objects.
//!
//! They are made when they are missing and mended when they drift. A release never touches what a newer one keeps: each
//! object carries the [`REVISION`] of the set it belongs to.
//!
//! [`run`] is a service of a supervisor, on the control-plane node, with an identity that may do all this.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod admission;
mod objects;
mod plan;
mod run;

pub use objects::{CLASS, NODES_GROUP, REVISION};
pub use run::{RunError, run};
