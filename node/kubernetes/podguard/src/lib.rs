//! Restrictions of a node's pods: the [`lsm::Guard`] in force, the loop devices that pods must not change, and denied
//! calls with their pods.
//!
//! PID 1 of a Granary node and the DaemonSet of another cluster share [`Restrictions`]. Each loads the BPF programs
//! itself: PID 1 fails closed, the DaemonSet loads them if the kernel supports them.
#![forbid(unsafe_code)]

mod container;
mod denials;
mod metrics;
mod restrictions;

pub use metrics::Metrics;
pub use restrictions::{Devices, Enforcement, Restrictions};
