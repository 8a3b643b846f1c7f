//! Arrangements of kernel tests: disks and mounts that last as long as a value.
//!
//! ```no_run
//! use ktest_support::XfsDisk;
//!
//! let disk = XfsDisk::with_project_quota();
//! std::fs::create_dir(disk.path().join("volume")).unwrap();
//! // Unmounted here; the disk is free for another test of this program.
//! ```
//!
//! For programs that `ktest` runs: they are root in a guest of their own. Whatever is missing ends the
//! test with a panic that names it; nothing is skipped.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod disk;
mod mounted;

pub use disk::Disk;
pub use mounted::{Tmpfs, XfsDisk};
