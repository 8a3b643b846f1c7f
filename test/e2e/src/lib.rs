//! Tests of the whole node: the image is booted, real Kubernetes runs on it, pods check their volumes
//! from the inside.
//!
//! One node serves a [`Suite`]. A pod costs more than a boot: each [`Part`] of a suite starts a few pods and reports each
//! behaviour that they show as a case of its own ([`Part::shows`]). It works with a [`Case`]: a namespace of its own, and
//! verbs that read like a user's ([`Case::claim`], [`Case::open`]). A pod is a [`Server`], which is asked to look
//! at its volumes. Nothing sleeps for a fixed time: [`eventually`] waits for what is to come, and ends with the
//! last thing that it saw.
#![deny(unsafe_code)]

mod capture;
mod case;
mod claim;
mod claims;
mod cost;
mod failure;
pub mod launcher;
pub mod observer;
mod part;
mod pod;
mod pods;
pub mod previous;
mod ready;
mod restored;
mod server;
mod services;
mod setting;
mod suite;
mod turn;
mod watch;

pub use capture::{Capture, Packet, Transport};
pub use case::Case;
pub use claim::{Claim, Class, DRIVER, VolumeMode};
pub use claims::{Offer, OnNode, capacity_of, is_ours};
pub use cost::cost;
pub use envtest::Seen;
pub use failure::Failure;
pub use part::{Part, Stopped};
pub use pod::{Pod, Volume, WEBHOOK_PORT};
pub use restored::has_the_hosts_time;
pub use server::Server;
pub use setting::{
    DATA_SIZE, DOMAIN, KEEP_FREE, MIRRORED, MODULE, NAME_SERVER, NETWORKS, NODES_REGISTRY, PASSWORD, REGISTRY, Setting,
    USER,
};
pub use suite::{End, Suite};

use std::time::Duration;

/// How long anything may take that a cluster does on its own: seconds in emulation, minutes beside a build.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// Looks until it has come: [`envtest::eventually`] for what a [`Case`] looks at.
pub async fn eventually<T, F>(limit: Duration, what: &str, look: impl FnMut() -> F) -> Result<T, Failure>
where
    F: Future<Output = Result<Seen<T>, Failure>>,
{
    Ok(envtest::eventually(limit, what, look).await?)
}
