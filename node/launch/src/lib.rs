//! Booted nodes in QEMU as types, for the launcher and for the tests of whole nodes.
//!
//! [`Node::boot`] looks at the machine first and refuses with a remedy what cannot work, starts the
//! image, follows what the node announces, and returns when the cluster calls the node ready. The guest
//! ends with its [`Node`]; what is left behind is in the directory that the caller chose. [`Cluster::boot`] does the same
//! with a control plane and workers, whose machines can be ended and booted again. Who may want to end in the middle of a
//! boot has [`Booting`] for it.
//!
//! Every node has one data disk and is booted by its kernel or by firmware.
//!
//! ```no_run
//! use launch::{Cluster, ClusterOptions, Image, Options};
//! # async fn example(image: Image) -> Result<(), Box<dyn std::error::Error>> {
//! let directory = tempfile::tempdir()?;
//! let options = ClusterOptions::new(Options::new(image, directory.path()), "2".parse()?);
//! let mut cluster = Cluster::boot(&options, |node, event| println!("{node}: {event}")).await?;
//! for worker in cluster.workers_mut() {
//!     worker.power_cut().await;
//!     worker.boot(|event| println!("again: {event}")).await?;
//! }
//! cluster.shut_down(launch::SHUTDOWN_LIMIT).await?;
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod announcements;
mod boot_disk;
mod booting;
mod check;
mod cluster;
mod configuration;
mod console;
mod data;
mod error;
mod event;
mod guest;
mod join;
mod kubeconfig;
mod node;
mod options;
mod power;
mod rising;
mod site;
mod watch;
mod worker;

pub use ::cluster::announcement::StageState;
pub use boot_disk::CopyError;
pub use booting::{Booting, Ready};
pub use check::{DataRefusal, Refusal};
pub use cluster::{Cluster, Ended};
pub use console::Console;
pub use data::{DataError, RestoreError};
pub use error::{BootError, ClusterError, ClusterShutdownError, SaveError, ShutdownError};
pub use event::{Event, Unfinished};
pub use join::JoinError;
pub use kubeconfig::KubeconfigError;
pub use node::{Node, SHUTDOWN_LIMIT};
pub use options::{Boot, Capture, ClusterOptions, Data, Image, Nodes, NodesError, Options, Origin};
pub use watch::seen;
pub use worker::Worker;
