//! The restrictions of a node's pods, wherever the node is: the [`lsm::Guard`] in force, the loop devices that pods must not
//! change, and the denied calls, with the pods that made them.
//!
//! [`Restrictions`] is what PID 1 of a Granary node and the storage pod of another cluster share. Both load the programs
//! themselves: one for its own kernel, fail closed, the other if the kernel supports them.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod container;
mod denials;
mod metrics;
mod restrictions;

pub use metrics::Metrics;
pub use restrictions::{Devices, Enforcement, Restrictions};
