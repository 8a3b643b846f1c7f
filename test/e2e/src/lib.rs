//! Tests of the whole node: the tests boot the image, run Kubernetes on it, and let pods check their volumes from the
//! inside.
//!
//! One node serves a [`Suite`]. A pod costs more than a boot, so each [`Part`] of a suite starts a few pods and reports
//! each behaviour that they show as a separate case ([`Part::shows`]). A part works with a [`Case`]: a namespace with
//! operations like those of a user ([`Case::claim`], [`Case::open`]). A [`Server`] is a pod that checks its volumes on
//! request. No test sleeps for a fixed time: [`eventually`] waits for a result, and reports the last observation if the
//! deadline passes.
#![deny(unsafe_code)]

mod capture;
mod case;
mod claim;
mod claims;
mod cleanup;
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
    API_SERVER, DATA_SIZE, DOMAIN, KEEP_FREE, MIRRORED, MODULE, NAME_SERVER, NETWORKS, NODES_REGISTRY, PASSWORD,
    PLAIN_REGISTRY, REGISTRY, SECOND_REGISTRY, Setting, USER,
};
pub use suite::{End, Suite};

use std::time::Duration;

/// Deadline of any work that a cluster does by itself. It takes seconds in emulation, and minutes during a build.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// Repeats `look` until it is done: [`envtest::eventually`] with the errors of a [`Case`].
pub async fn eventually<T, F>(limit: Duration, what: &str, look: impl FnMut() -> F) -> Result<T, Failure>
where
    F: Future<Output = Result<Seen<T>, Failure>>,
{
    Ok(envtest::eventually(limit, what, look).await?)
}
