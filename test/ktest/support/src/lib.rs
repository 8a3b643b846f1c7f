//! Fixtures of kernel tests: disks, mounts and network namespaces that are released on drop, and processes that are
//! stopped at their system calls.
//!
//! `ktest` runs the test programs as root, each in its own guest. A missing disk or tool is a panic that names it. See
//! README.md of ktest for examples.
#![deny(unsafe_code)]

mod busy;
mod disk;
mod eventually;
mod format;
mod machine;
mod mounted;
mod namespace;
pub mod process;
pub mod random;
pub mod replay;
mod tool;
mod writer;

pub use busy::unmount;
pub use disk::Disk;
pub use eventually::{eventually, eventually_is};
pub use machine::{BlockStats, Cut, block_stats, boot, cut, power_cut, stderr_is_terminal};
pub use mounted::{Mount, Mounted, Tmpfs, XfsDisk};
pub use namespace::Namespace;
pub use tool::run;
pub use writer::{Writer, mount_cgroups, numbers, this_program};
