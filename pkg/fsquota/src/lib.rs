//! Size and inode limits for directories of an XFS, by project quotas.
//!
//! XFS counts blocks and inodes per *project*: a number that every inode carries. A directory with
//! the inherit flag passes its number on to what is made in it, and refuses what would come in with
//! another number (`EXDEV`). So a directory with a project of its own is a volume: nothing in it can
//! take more than the project's limits. Who tries gets `ENOSPC`, and `statfs` inside shows the
//! limits as the size of the file system.
//!
//! ```no_run
//! use fsquota::{Allocator, Limits};
//! use units::Bytes;
//!
//! let data = std::fs::File::open("/data")?;
//! let ids = Allocator::open(&data)?;
//! std::fs::create_dir("/data/a")?;
//! let dir = std::fs::File::open("/data/a")?;
//! fsquota::set(&dir, Limits::for_size(Bytes::GIB), &ids)?;
//! fsquota::sync(&data)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Guarantees
//! - [`set`] and [`assign`] set the limits before the directory gets its project: no moment exists in
//!   which it takes data without them.
//! - An ID is handed out once. IDs only go up, the counter is durable before an ID of it is used, and
//!   what the file system itself says about an ID is looked at before ([`Allocator`]).
//! - Sizes round **up** to what the kernel counts (512 bytes in the call, a file system block on
//!   XFS): nobody gets less than was promised. Read back, a limit is what the kernel keeps.
//! - Every call can be made again after a crash, and finishes what an earlier one began.
//! - What a call costs does not depend on how many projects there are; a [`report`] asks once for each.
//!
//! # Durability
//! The project of a directory is part of its inode: an fsync of the directory makes it durable.
//! Limits live elsewhere, and an fsync does not write changed ones; [`sync`] does. Until then a power
//! cut may bring former limits back. Who keeps a record of limits re-applies them with [`set_limits`]
//! when it starts. The limits with which a directory gets its project are before it in the log of the
//! file system: what is mounted with `prjquota` after a power cut has both, or not the project.
//!
//! # What it is not
//! Not a security boundary by itself: in the initial user namespace the owner of a file may change
//! its project and its flag. [`strays`] finds what was changed. The root directory of a file system gets
//! no project. Real-time sections have their own limits, which this crate leaves alone.
//!
//! Needs Linux 5.14 (`quotactl_fd`), an XFS mounted with `prjquota`, and `CAP_SYS_ADMIN`.
#![deny(unsafe_code)]
#![warn(missing_docs)]

mod allocator;
mod directory;
mod error;
mod filesystem;
mod limits;
mod listing;
mod project;
mod quotas;
mod read;
mod remove;
mod seen;
mod set;
mod strays;
#[expect(unsafe_code, reason = "quotactl_fd and the ioctls of inode attributes have no wrapper in nix")]
mod sys;
mod transfer;

pub use allocator::Allocator;
/// For its fuzz target only.
#[doc(hidden)]
pub use allocator::Counter;
pub use dir::Ensured;
pub use error::{AllocateError, FsError, GetError, LimitError, RemoveError, SetError, TransferError, WalkError};
pub use limits::{Limits, Quota, Usage, default_inodes};
pub use project::{InvalidProjectId, ProjectId};
pub use quotas::Quotas;
pub use read::{Report, get, project, quota, report, require, sync};
pub use remove::{clear, disown, remove};
pub use set::{assign, set, set_limits};
pub use strays::{Drift, Stray, Strays, strays};
pub use transfer::{Transferred, transfer};
