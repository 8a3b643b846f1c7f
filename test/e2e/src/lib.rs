//! Tests of the whole node: the image is booted, real Kubernetes runs on it, pods check their volumes
//! from the inside.
//!
//! One boot serves a [`Suite`]. Each of its cases gets a [`Case`]: a namespace of its own, and verbs that
//! read like a user's ([`Case::claim`], [`Case::run`]). Nothing sleeps for a fixed time: [`eventually`]
//! waits for what is to come, and ends with the last thing that it saw.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod case;
mod claim;
mod failure;
mod pod;
mod report;
mod setting;
mod suite;

pub use case::Case;
pub use claim::{AccessMode, Claim};
pub use eventually::Seen;
pub use failure::Failure;
pub use pod::Pod;
pub use setting::{Setting, SettingError};
pub use suite::Suite;

use std::time::Duration;

/// How long anything may take that a cluster does on its own: seconds in emulation, more beside a build.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// Looks until it has come: [`eventually::eventually`] for what a [`Case`] looks at.
///
/// # Errors
/// [`Failure::Late`] with the last state.
pub async fn eventually<T, F>(limit: Duration, what: &str, look: impl FnMut() -> F) -> Result<T, Failure>
where
    F: Future<Output = Result<Seen<T>, Failure>>,
{
    Ok(eventually::eventually(limit, what, look).await?)
}
