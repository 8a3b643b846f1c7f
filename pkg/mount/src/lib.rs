#![doc = include_str!("../README.md")]
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
