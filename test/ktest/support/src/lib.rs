//! Arrangements of kernel tests: disks, mounts and hosts that last as long as a value, processes that are stopped at each
//! system call.
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
#![deny(unsafe_code)]

mod busy;
mod disk;
mod machine;
mod mounted;
mod namespace;
pub mod process;
pub mod replay;

pub use busy::unmount;
pub use disk::Disk;
pub use machine::{BlockStats, Cut, block_stats, boot, cut, power_cut};
pub use mounted::{Mounted, Tmpfs, XfsDisk};
pub use namespace::Namespace;
