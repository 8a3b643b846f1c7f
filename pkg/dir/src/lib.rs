//! File operations relative to an open directory.
//!
//! A path can resolve to different files at different times. Therefore a directory is opened once, and all operations
//! name a file by a directory descriptor and one validated [`Name`]. Lookups use `openat2` with `RESOLVE_BENEATH`,
//! `RESOLVE_NO_SYMLINKS` and `RESOLVE_NO_XDEV`: they never leave the directory, follow a symbolic link or enter another
//! mount, even if other users own the files below.
//!
//! [`Dir::write`] replaces a file atomically and durably. [`Dir::rename`] and [`Dir::create_dir`] are durable after
//! [`Dir::sync`] of the directory.
//!
//! Out of scope: notifications, extended attributes, and moves between file systems.
//!
//! Linux 5.6 (`openat2`).
//!
//! ```
//! use dir::{Dir, Mode, Name};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let scratch = tempfile::tempdir()?;
//! let root = Dir::open(scratch.path())?;
//! let records = root.ensure_dir(&Name::try_from("records")?, Mode::from_bits_truncate(0o700))?.into_inner();
//! let name = Name::try_from("first")?;
//! records.write(&name, b"first", Mode::from_bits_truncate(0o600))?;
//! assert_eq!(records.read(&name)?.as_deref(), Some(&b"first"[..]));
//! assert!(Name::try_from("../escape").is_err());
//! # Ok(())
//! # }
//! ```
#![deny(unsafe_code)]
#![warn(missing_docs)]

mod dir;
mod error;
mod name;
mod owner;
mod remove;
#[expect(unsafe_code, reason = "the ioctls of inode flags have no wrapper in nix")]
mod sys;

pub use dir::{Dir, Ensured, MAX_READ};
pub use error::{Error, Operation};
pub use name::{Name, NameError};
pub use nix::{
    fcntl::OFlag,
    sys::stat::Mode,
    unistd::{Gid, Uid},
};
pub use owner::Owner;
pub use remove::Progress;
