//! Power cuts at any moment of the volumes' life, and what the node makes of the disk that they leave.
//!
//! A [`history`] is drawn from a seed: claims become volumes, pods write into them, they grow, are cloned, retired,
//! restored, removed, several at once. It runs on a real store, on a disk whose writes are logged. Then the log is cut, and for
//! each cut the [`model`] says what may be on the disk: the state before the operations that were under way, the one
//! after them, or one of their steps. The state is read without the store's help. A node starts on that disk,
//! compares it once with the cluster, and must leave exactly what the cluster wants; a second comparison changes
//! nothing.
//!
//! For programs that a `ktest` runs, with three disks and the modules of
//! [`ktest_support::replay`].
#![forbid(unsafe_code)]

mod check;
mod choice;
mod data;
mod experiment;
mod facts;
pub mod history;
pub mod life;
mod marker;
pub mod model;
mod node;
pub mod omission;
pub mod operation;
mod reconcile;
mod sequences;
mod thin;
pub mod violation;

pub use ktest_support::random;

pub use experiment::{CONTROL_SEED, Coverage, Experiment, Failure, Flushes, OPERATIONS, POINTS, Plan, SEEDS};
