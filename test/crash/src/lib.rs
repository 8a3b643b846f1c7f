//! Cuts the power at any moment of the life of volumes, and checks the disk before and after the next start of the
//! node.
//!
//! A [`history`] of operations is generated from a seed: volumes are created for claims, written by pods, expanded,
//! cloned, retired, restored and removed, several at once. It runs on a real store, on a disk whose writes are logged.
//! Then the log is cut. For each cut, the [`model`] computes the states that the disk may have: the state before the
//! operations that were under way, the state after them, or one of their steps. The check reads the disk without the
//! store. Then a node starts on this disk, compares it once with the cluster, and must leave exactly the state that the
//! cluster wants; a second comparison changes nothing.
//!
//! The crate is for programs that a `ktest` runs, with three disks and the modules of [`ktest_support::replay`].
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
