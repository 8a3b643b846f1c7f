//! Makes volumes for the claims that the scheduler put on this node, enlarges them, and deletes those whose time is
//! over. Tells the scheduler what room is left, and Prometheus what was done (docs/metrics.md).
//!
//! One runs on every node; there is no central one. Two controllers watch claims and volumes. Each pass looks at what
//! there is and does what is left: nothing is remembered between passes but how long to wait after a failure. The order
//! is always durable data, API object, event. README.md lists passes, events and class parameters.
//!
//! Refused, with an event on the claim that names the field: what a directory or an image on this node's disk cannot
//! give.
//!
//! [`run`] is a service of a supervisor, and so is [`csinode::run`].
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod api;
mod backoff;
mod capacity;
mod claim;
mod claims;
mod class;
mod controller;
pub mod csinode;
mod delete;
mod discard;
mod drift;
mod events;
mod expand;
mod inventory;
mod listing;
mod metrics;
mod notice;
#[cfg(test)]
mod page;
mod publication;
mod pv;
mod pvs;
mod quantity;
mod resize;
mod revoked;
mod status;
mod sweep;
mod topology;

pub use controller::{RunError, Settings, run};
pub use metrics::Metrics;
pub use notice::{Notice, NoticeQueue, Notices, Pod, notices};
pub use volume::FINALIZER;
