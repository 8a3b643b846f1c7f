//! The storage part of a Granary node as a program, for pods on nodes of other clusters.
//!
//! | subcommand | runs as | purpose |
//! |---|---|---|
//! | `node` | DaemonSet, privileged | provisioner and CSI plugin of one node, on a directory of it |
//! | `reclaimer` | Deployment | writes the node of claims where neither the scheduler nor the node does |
//! | `check` | by hand | whether a directory can hold volumes |
//!
//! [`program`] is the main module. Differences from a Granary node: the administrator mounts the directory, so
//! [`directory`] checks it first; other programs may use the file system, so their space is measured; the kubelet runs
//! already, and its directory has to be [shared](kubelet); the token of the pod names its node ([`identity`]), which
//! the admission policies of [`reconciler::agents`] compare.
//!
//! The chart beside this crate contains the pods and the objects that they need. Nothing restores these objects.
//!
//! Requires Linux 5.14 (`quotactl_fd`) and Kubernetes 1.30.
#![forbid(unsafe_code)]

pub mod arguments;
pub mod directory;
mod endpoint;
pub mod identity;
pub mod kubelet;
pub mod lease;
pub mod limits;
pub mod program;
pub mod provisioning;
