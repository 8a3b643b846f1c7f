//! Fixtures of kernel tests: disks, mounts and network namespaces that last as long as a value, processes that are
//! stopped at each system call.
//!
//! For programs that `ktest` runs as root in a guest of their own. A missing disk or tool is a panic that names it.
//! See README.md of ktest for examples.
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
