#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]
#![warn(missing_docs)]

mod allocator;
mod cow_extent_size;
mod directory;
mod directory_state;
mod error;
mod fault;
mod filesystem;
mod limits;
mod listing;
mod project;
mod quotas;
mod read;
mod remove;
mod set;
mod strays;
#[expect(unsafe_code, reason = "quotactl_fd and the ioctls of inode attributes have no wrapper in nix")]
mod sys;
mod transfer;

pub use allocator::Allocator;
/// Public for its fuzz target only.
#[doc(hidden)]
pub use allocator::Counter;
pub use cow_extent_size::set_cow_extent_size;
pub use dir::Ensured;
pub use error::{AllocateError, FsError, GetError, LimitError, RemoveError, SetError, TransferError, WalkError};
pub use fault::Fault;
pub use limits::{Limits, Quota, Usage, default_inodes};
pub use project::{InvalidProjectId, ProjectId};
pub use quotas::Quotas;
pub use read::{Report, get, project, quota, report, require, sync};
pub use remove::{disown, remove};
pub use set::{assign, join, set, set_limits};
pub use strays::{Drift, Stray, Strays, strays};
pub use transfer::{Transferred, transfer};
