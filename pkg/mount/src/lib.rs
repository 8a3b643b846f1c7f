//! Creates and inspects mounts by file descriptor.
//!
//! A bind mount is created in three steps, so that it is never visible without its attributes: [`Detached::clone_of`]
//! copies a mount without attaching it, [`Detached::set`] sets its [`Attributes`], and [`Detached::attach`] attaches it
//! to an open directory or file. [`at`] returns the mount of an open descriptor without reading `mountinfo`, whose
//! length grows with the number of mounts. [`table`] reads `mountinfo`, to find all mounts of a file. [`filesystem`] is
//! mount(2).
//!
//! Not supported: recursive clones, and lazy unmounts (a volume that is still in use must not look unmounted).
//!
//! Requires Linux 5.12 (`mount_setattr`).
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
