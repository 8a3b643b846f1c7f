//! Makes volumes for the claims that the scheduler put on this node, and deletes those whose time is over.
//!
//! One runs on every node; there is no central one. Two controllers watch claims and volumes. Each pass looks at what
//! there is and does what is left: nothing is remembered between passes but how long to wait after a failure. The order
//! is always durable data, API object, event.
//!
//! Refused, with an event on the claim: what a directory on this node's disk cannot give, and what this release does
//! not serve yet (block volumes, expansion).
//!
//! [`run`] is a service of a supervisor.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod backoff;
mod claim;
mod controller;
mod delete;
mod events;
mod pv;
mod quantity;
mod sweep;
mod volumes;

pub use controller::{ApiCause, ApiError, RunError, Settings, run};
pub use volumes::Volumes;

/// On the PVs whose data is deleted with them: they stay until it is out of use.
pub const FINALIZER: &str = "local.granary.dev/volume";
