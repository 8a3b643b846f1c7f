#![doc = include_str!("../README.md")]
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

use ktest_support::random;

pub use experiment::{CONTROL_SEED, Coverage, Experiment, Failure, Flushes, OPERATIONS, POINTS, Plan, SEEDS};
