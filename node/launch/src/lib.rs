//! A booted node in QEMU as a type, for the launcher and for the tests of the whole node.
//!
//! [`Node::boot`] looks at the machine first and refuses with a remedy what cannot work, starts the
//! image, follows what the node announces, and returns when the cluster calls the node ready. The guest
//! ends with its [`Node`]; what is left behind is in the directory that the caller chose. Who may want to end in the
//! middle of a boot has [`Booting`] for it.
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

mod announcements;
mod boot_disk;
mod booting;
mod check;
mod configuration;
mod console;
mod data;
mod error;
mod event;
mod guest;
mod kubeconfig;
mod node;
mod options;
mod power;

pub use boot_disk::CopyError;
pub use booting::{Access, Booting};
pub use check::Refusal;
pub use console::Console;
pub use data::DataError;
pub use error::{BootError, ShutdownError};
pub use event::{Event, Unfinished};
pub use kubeconfig::KubeconfigError;
pub use node::{Node, SHUTDOWN_LIMIT};
pub use options::{Boot, Data, Image, Options};
