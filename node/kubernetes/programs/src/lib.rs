//! The programs of a Kubernetes node as supervised services, and the keys they share.
//!
//! Call [`Credentials::ensure`] first. Each module has a `service` for [`supervisor::Context::start`]. Start the
//! services in this order; a service in the left column starts when those in the right column are healthy:
//!
//! | started | after |
//! |---|---|
//! | [`etcd`], [`containerd`] | |
//! | [`apiserver`], [`database`] | `etcd` |
//! | [`containerd::images`] | `containerd` |
//! | [`controller_manager`], [`scheduler`], [`proxy`], [`secrets`] | `apiserver` |
//! | [`snapshot_controller`] | the node is Ready, `controller_manager`, the kinds of snapshots |
//! | [`kubelet`] | `apiserver`, the images, the CSI plugin's sockets |
//! | [`pods`] | the storage identity has its certificate |
//! | [`dns`] | `pods`, whose rules close its address to other machines |
//!
//! The caller sets up kernel modules, sysctls, mounts and addresses. Programs also write to `/run`, whatever their
//! arguments are: containerd's shims have their sockets there, and runc its state.
//!
//! ```no_run
//! # async fn boot(cx: supervisor::Context, config: programs::Config) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! use std::sync::Arc;
//! use programs::{Credentials, apiserver, etcd};
//!
//! let credentials = Arc::new(Credentials::ensure(&config, time::OffsetDateTime::now_utc())?);
//! cx.start("etcd", etcd::service(&config)).healthy().await?;
//! cx.start("kube-apiserver", apiserver::service(&config, &credentials)).healthy().await?;
//! # Ok(())
//! # }
//! ```
#![deny(unsafe_code)]

mod admission;
pub mod apiserver;
mod audit;
#[cfg(test)]
mod benchmark;
mod bootstrap;
mod cgroup;
mod cni;
mod config;
pub mod containerd;
pub mod controller_manager;
pub mod database;
pub mod discovery;
pub mod dns;
mod encryption;
pub mod etcd;
pub mod first_range;
mod headroom;
mod image_archive;
mod keyring;
mod klog;
pub mod kubelet;
mod lines;
mod memory;
pub mod networks;
mod nftables;
mod ownership;
mod pki;
pub mod pods;
mod program;
pub mod proxy;
mod ready;
mod registries;
mod rights;
mod sandbox;
pub mod scheduler;
mod seccomp;
pub mod secrets;
pub mod snapshot_controller;
#[expect(unsafe_code, reason = "what a child does before exec has no other way in")]
mod sys;
mod user;

pub use bootstrap::{BOOTSTRAP_NAMESPACE, BOOTSTRAP_TYPE, bootstrap_secret, bootstrap_secret_name};
pub use config::{Config, Disk, Durability, Mesh, Paths};
pub use keyring::StoredSecrets;
pub use pki::certificate::Stale;
pub use pki::expiry::{Expiry, Lasting};
pub use pki::identity::Identity;
pub use pki::public::{AdministratorCertificate, PublicCertificates};
pub use pki::renewal::Renewal;
pub use pki::requested::{IdentityError, Requested};
pub use pki::store::PkiError;
pub use pki::{ClientError, Credentials};
pub use program::{Program, ProgramError, Running, Service, Tail};
pub use ready::{NotReady, ProbeFailure};
pub use rights::{Confinement, Rights};
pub use sandbox::SandboxError;
pub use user::{Capability, User};

/// Number of kills of each program because of its memory limit, since its cgroup was created.
pub fn out_of_memory(paths: &Paths) -> Vec<(&'static str, u64)> {
    let Some(root) = &paths.cgroups else { return Vec::new() };
    user::limited().map(|(program, _)| (program, cgroup::kills(root, program))).collect()
}
