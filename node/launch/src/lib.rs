//! A booted node in QEMU as a type, for the launcher and for the tests of the whole node.
//!
//! [`Node::boot`] looks at the machine first and refuses with a remedy what cannot work, starts the
//! image, follows what the node announces, and returns when the cluster calls the node ready. The guest
//! ends with its [`Node`]; what is left behind is in the directory that the caller chose.
//!
//! One node with one data disk, booted by its kernel or by firmware. Further nodes are not here yet.
//!
//! ```no_run
//! use launch::{Image, Node, Options};
//! # async fn example(image: Image) -> Result<(), Box<dyn std::error::Error>> {
//! let directory = tempfile::tempdir()?;
//! let node = Node::boot(&Options::new(image, directory.path()), |event| println!("{event}")).await?;
//! let version = node.client().apiserver_version().await?;
//! println!("Kubernetes {version:?}");
//! node.shut_down(launch::SHUTDOWN_LIMIT).await?;
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod boot_disk;
mod check;
mod configuration;
mod data;
mod guest;
mod kubeconfig;
mod node;
mod options;

pub use boot_disk::CopyError;
pub use check::Refusal;
pub use data::DataError;
pub use kubeconfig::KubeconfigError;
pub use node::{BootError, Console, Event, Node, SHUTDOWN_LIMIT, ShutdownError};
pub use options::{Boot, Data, Image, Options};
