//! Limits of space and inodes for XFS directories, by project quotas.
//!
//! XFS counts blocks and inodes per *project*, a number in every inode. New files inherit the project of a directory
//! with the inherit flag, and XFS rejects renames and links of files with another project into it (`EXDEV`). A
//! directory with a project of its own is therefore a volume: its content cannot exceed the limits of the project.
//! Writes beyond them fail with `ENOSPC`, and `statfs` inside shows the limits as the size of the file system.
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
//! - [`set`] and [`assign`] set the limits before they assign the project, so the directory never accepts data without
//!   limits.
//! - Each ID is allocated once. The counter only increases and is durable before its IDs are used, and IDs that the
//!   quota records of the file system contain are skipped ([`Allocator`]).
//! - Sizes are rounded **up** to the unit of the kernel (512 bytes in the call, a file system block in XFS), so a limit
//!   is never below the requested size. Limits that are read back are those that the kernel stores.
//! - Every call may be repeated after a crash and completes the earlier one.
//! - The cost of a call does not depend on the number of projects; only [`report`] makes one system call for each.
//!
//! # Durability
//! The project of a directory is part of its inode, so an fsync of the directory makes it durable. An fsync does not
//! write changed limits, [`sync`] does; until then, a power failure may restore the previous limits. Callers that
//! record limits should set them again with [`set_limits`] at startup. The limits that [`assign`] sets precede the
//! project ID in the log: after a power failure, a file system that is mounted with `prjquota` has both, or no project
//! on the directory.
//!
//! # Faults
//! Limits are enforced while the file system works. [`Quotas::faults`] reports what XFS has detected: that it shut
//! down, and damaged metadata, also of the quota records.
//!
//! # Limitations
//! Project quotas are not a security boundary by themselves: in the initial user namespace, the owner of a file may
//! change its project and its inherit flag. [`strays`] finds such files. The root directory of a file system cannot
//! have a project. Limits of real-time sections are not changed.
//!
//! Needs Linux 5.14 (`quotactl_fd`), an XFS mounted with `prjquota`, and `CAP_SYS_ADMIN`.
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
