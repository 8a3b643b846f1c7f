#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod backoff;
mod context;
mod failure;
mod node;
mod progress;
mod settings;
mod state;
mod status;
mod tasks;
#[cfg(test)]
mod tests;
mod tree;

pub use backoff::Backoff;
pub use context::{Context, Ended, Handle};
pub use failure::BoxError;
pub use settings::Settings;
pub use state::State;
pub use status::{Change, Status};
pub use tree::{Overdue, Supervisor};
