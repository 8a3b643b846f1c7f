//! Tests of the whole node: the image is booted, real Kubernetes runs on it, pods check their volumes
//! from the inside.
//!
//! One boot serves a [`Suite`]. Each of its cases gets a [`Case`]: a namespace of its own, and verbs that
//! read like a user's ([`Case::claim`], [`Case::open`]). A pod that stays is a [`Server`], which is asked to look
//! at its volumes. Nothing sleeps for a fixed time: [`eventually`] waits for what is to come, and ends with the
//! last thing that it saw.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod capture;
mod case;
mod claim;
mod claims;
mod failure;
pub mod observer;
mod pod;
mod pods;
mod report;
mod server;
mod setting;
mod suite;

pub use capture::{Capture, CaptureError, Packet, Transport};
pub use case::Case;
pub use claim::{AccessMode, Claim, Class, DRIVER, VolumeMode};
pub use claims::{OnNode, is_ours, promised};
pub use eventually::Seen;
pub use failure::Failure;
pub use pod::{Pod, Volume, WEBHOOK_PORT};
pub use server::Server;
pub use setting::{Setting, SettingError};
pub use suite::{End, Suite};

use std::time::Duration;

/// How long anything may take that a cluster does on its own: seconds in emulation, minutes beside a build.
pub const PATIENCE: Duration = Duration::from_secs(300);

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
