//! A BPF-LSM program that keeps pods in their project quotas and away from the node's loop devices.
//!
//! In the initial user namespace, the owner of a file may change its project ID and the inherit flag of a directory,
//! and so evade the project's limits. Any process that can open a loop device for reading may detach it.
//! [`Guard::load`] attaches programs to the kernel's LSM hooks that deny both to the tasks below one cgroup, also to
//! root with all capabilities.
//!
//! ```no_run
//! use std::fs::File;
//! use std::os::unix::fs::MetadataExt;
//!
//! use lsm::{Btf, Cgroup, DeviceNumber, Guard, Operation};
//!
//! let pods = Cgroup::of(File::open("/sys/fs/cgroup/kubepods")?)?;
//! let disk = DeviceNumber { major: 254, minor: 3 };
//! let guard = Guard::load(&Btf::of_kernel()?, pods, disk)?;
//! guard.publish(DeviceNumber { major: 7, minor: 12 })?;
//! println!("{} changes of a project were denied", guard.denied()?.of(Operation::Project));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Guarantees
//! - Denied with `EPERM` for tasks in the cgroup and below: on the disk, `FS_IOC_FSSETXATTR`, and `FS_IOC_SETFLAGS` on
//!   directories; every `quotactl` command except queries and syncs; on published loop devices every `LOOP_*` ioctl
//!   except the queries of the status; on `/dev/loop-control` every ioctl of it. In all encodings (upper half of the
//!   command, 32-bit programs), through overlayfs, for every user and capability.
//! - From Linux 6.17 on, the hook `inode_file_setattr` checks changes of attributes, also those by `file_setattr`: only
//!   a change of the project ID or of the inherit flag is denied.
//! - An ioctl with another command executes at most 12 instructions, which read only the hook's context.
//! - The programs are attached as `BPF_LSM_MAC`: a link of this type can be neither detached nor updated by a process
//!   that gets a descriptor of it.
//! - Offsets and hooks come from the kernel's BTF. If something is missing or has another type, nothing is attached.
//!
//! # Limitations
//! A task that leaves the cgroup is not subject to the programs any more: see `docs/operations/security.md` for which
//! containers can. The `bpf` system call itself is not denied.
//!
//! Needs Linux 6.8 (`file_ioctl_compat`) with `CONFIG_BPF_LSM` and `bpf` in the list of LSMs, BTF, cgroup2, securityfs
//! on `/sys/kernel/security`, `CAP_BPF`, `CAP_PERFMON` and `CAP_SYS_ADMIN`.
#![deny(unsafe_code)]
#![warn(missing_docs)]

mod assembler;
mod btf;
mod cgroup;
mod denials;
mod error;
mod guard;
#[cfg(test)]
mod interpreter;
mod layout;
mod maps;
mod pins;
mod probe;
mod programs;
#[cfg(test)]
mod sample;
#[expect(unsafe_code, reason = "bpf(2), name_to_handle_at(2) and calls of 32-bit programs have no wrapper in nix")]
mod sys;

pub use assembler::AssembleError;
pub use btf::{Btf, BtfError};
pub use cgroup::{Cgroup, CgroupError, CgroupId};
pub use denials::{Denials, Operation, Recent};
pub use error::Error;
pub use guard::Guard;
/// Public for the crate's fuzz target only.
#[doc(hidden)]
pub use layout::Layout;
/// Major and minor number of the data disk and of loop devices.
pub use loopdev::DeviceNumber;
pub use pins::Pins;
pub use probe::{Abi, Breach, Probe, ProbeError};
