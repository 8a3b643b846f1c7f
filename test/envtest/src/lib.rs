//! A real API server without a machine: etcd, kube-apiserver and kube-controller-manager on loopback, as the node runs
//! them. What the API server decides is tested here: no VM, no kubelet, no scheduler.
//!
//! ```no_run
//! use std::process::ExitCode;
//! use envtest::Suite;
//!
//! fn main() -> ExitCode {
//!     Suite::new()
//!         .case("the_default_namespace_is_there", async |cluster| {
//!             let namespaces = kube::Api::<k8s_openapi::api::core::v1::Namespace>::all(cluster.admin());
//!             namespaces.get("default").await?;
//!             Ok(())
//!         })
//!         .run()
//! }
//! ```
//!
//! The cases of a [`Suite`] share one cluster and run one after the other. The programs have fixed ports: the target of
//! a suite has the tag `block-network`, so that Bazel gives it a network with nothing but a loopback device.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod cluster;
mod faults;
mod suite;

pub use cluster::{Cluster, StartError};
pub use faults::{Fault, FaultyServer};
pub use programs::Identity;
pub use suite::{Failure, Suite};

use std::time::Duration;

/// How long anything may take that a control plane does on its own: seconds, more beside a build.
pub const PATIENCE: Duration = Duration::from_secs(120);
