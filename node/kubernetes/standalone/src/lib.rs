//! The storage part of a Granary node as a program of its own, for pods on nodes of other clusters.
//!
//! | subcommand | runs as | what |
//! |---|---|---|
//! | `node` | DaemonSet, privileged | provisioner and CSI plugin of one node, on a directory of it |
//! | `release` | Deployment of one | gives back claims that wait for a node which is gone |
//! | `check` | by hand | whether a directory can hold volumes |
//!
//! [`program`] is the table of contents. What differs from a node of ours: the directory is somebody else's to mount, so
//! that [`directory`] looks before anything is written; the file system may have other users, whose space is measured;
//! kubelet runs already, with a directory of its own that has to be [shared](kubelet); and who the pod is, the API
//! server tells by the node in its token ([`identity`]), which the admission policies of
//! [`reconciler::agents`] compare.
//!
//! The chart beside this crate has the pods and everything that they need in the cluster. Nothing here keeps objects of
//! the cluster right: who installed them does.
//!
//! Linux 5.14 (`quotactl_fd`), Kubernetes 1.30.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod arguments;
pub mod cluster;
pub mod directory;
pub mod identity;
pub mod kubelet;
pub mod limits;
mod numbers;
pub mod program;
