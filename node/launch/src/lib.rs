//! Nodes in QEMU, for the launcher and for the tests of whole nodes.
//!
//! [`Node::boot`] checks the machine, starts the image, reads the announcements of the node, and returns when the Node
//! is Ready. Dropping the [`Node`] kills the guest; only files in the directories of [`Options`] remain.
//! [`Cluster::boot`] boots a control plane and workers, which can be ended and booted again. [`ClusterBoot`] is a boot
//! that can be shut down in order before it completes.
//!
//! Each node has one data disk, and boots directly from its kernel or through firmware.
//!
//! ```no_run
//! use launch::{Cluster, ClusterOptions, Image, Options};
//! # async fn example(image: Image) -> Result<(), Box<dyn std::error::Error>> {
//! let directory = tempfile::tempdir()?;
//! let options = ClusterOptions::new(Options::new(image, directory.path()), "2".parse()?);
//! let mut cluster = Cluster::boot(&options, |node, event| println!("{node}: {event}")).await?;
//! for worker in cluster.workers_mut() {
//!     worker.shut_down(launch::SHUTDOWN_LIMIT).await?;
//!     worker.boot(|event| println!("again: {event}")).await?;
//! }
//! cluster.shut_down(launch::SHUTDOWN_LIMIT).await?;
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod announcements;
mod check;
mod cluster;
mod cluster_boot;
mod configuration;
mod console;
mod copy;
mod data;
mod error;
mod event;
mod guest;
mod image_archive;
mod join;
mod kubeconfig;
mod node;
mod node_boot;
mod options;
mod power;
mod spec;
mod watch;
mod worker;

pub use ::cluster::announcement::StageState;
pub use check::{DataFileError, PortPurpose, PreflightError};
pub use cluster::{Cluster, Ended};
pub use cluster_boot::{ClusterBoot, Ready};
pub use configuration::{ConfigurationError, check_configuration};
pub use console::Console;
pub use error::{BootError, ClusterError, ClusterShutdownError, ShutdownError, StepError};
pub use event::{Event, Unfinished};
pub use image_archive::ImageArchiveError;
pub use node::{Node, SHUTDOWN_LIMIT};
pub use options::{Boot, Capture, ClusterOptions, Data, Hardware, Image, Nodes, NodesError, Options, Origin};
pub use qemu::Forward;
pub use watch::wait_for;
pub use worker::Worker;
