//! Mounts by descriptor.
//!
//! A bind mount is made in three steps, so that it never exists anywhere without its flags: [`Detached::clone_of`]
//! copies a mount that is attached nowhere, [`Detached::set`] gives it its [`Attributes`], [`Detached::attach`] puts it
//! on an open directory or file. [`at`] says what an open descriptor stands on without reading `mountinfo`, whose
//! length grows with the number of mounts. [`table`] reads it for the one question that needs all mounts: where else
//! something is mounted. [`filesystem`] is plain mount(2), for the few file systems of a node.
//!
//! What is refused: recursive clones, and lazy unmounts (a volume that is still in use must not look unmounted).
//!
//! Linux 5.12 (`mount_setattr`); everything else is older.
//!
//! ```no_run
//! use std::fs::File;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let volume = File::open("/srv/volumes/a")?;
//! let target = File::open("/run/service/mount")?;
//! let clone = mount::Detached::clone_of(&volume)?;
//! clone.set(mount::Attributes { read_only: true, ..mount::Attributes::INERT })?;
//! clone.attach(&target)?;
//! # Ok(())
//! # }
//! ```
#![deny(unsafe_code)]
#![warn(missing_docs)]

mod attributes;
mod detached;
mod error;
mod filesystem;
mod place;
#[expect(unsafe_code, reason = "open_tree, mount_setattr, move_mount and statx are not in nix")]
mod sys;
mod table;
mod unmount;

pub use attributes::Attributes;
pub use detached::Detached;
pub use error::{AttachError, CloneError, FilesystemError, LookError, SetError, TableError, UnmountError};
pub use filesystem::{Filesystem, filesystem};
pub use place::{Identity, Kind, Place, at, identity};
pub use table::{Entry, parse_table, table};
pub use unmount::{unmount, unmount_beneath};
