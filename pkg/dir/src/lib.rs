#![doc = include_str!("../README.md")]
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
