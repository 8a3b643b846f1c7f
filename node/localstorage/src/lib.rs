//! The node's own directories: which there are, and the disk that most of them are on.
//!
//! [`Root`] is the tree as types, read top to bottom in `tree.rs`; every other part of the node takes
//! its paths from there. A [`Mounted`] tree is one that exists: only [`DataDisk::mount`] and
//! [`mount_ephemeral`] make one, after the file system is there with the right options and all
//! directories in it.
//!
//! ```no_run
//! use localstorage::{DataDisk, Root, Tree as _, mount_ephemeral};
//!
//! let root = Root::at("/");
//! let ephemeral = mount_ephemeral(root.ephemeral)?;
//! let data = DataDisk::find()?.mount(root.data)?;
//! let volumes = data.open(|data| &data.volumes)?;
//! println!("containerd listens on {}", ephemeral.containerd.socket.path().display());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The data disk
//! The disk with the serial number `data`, else the one that this node formatted before, else the one
//! empty disk. A disk with anything else on it is refused, never formatted: what looks empty is read
//! at both ends, and `mkfs.xfs` looks once more. A format that a power cut ended is begun again. A
//! disk that was enlarged is grown while it is mounted.
//!
//! Needs Linux 5.14, see `fsquota`.
#![deny(unsafe_code)]
#![warn(missing_docs)]

mod content;
mod disk;
mod ephemeral;
mod error;
mod mounted;
mod plan;
mod prepare;
#[expect(unsafe_code, reason = "XFS_IOC_FSGROWFSDATA has no wrapper in nix")]
mod sys;
mod tree;

pub use content::{Content, Geometry, LABEL, Signature};
pub use disk::{DataDisk, Role, Seen, disks};
pub use ephemeral::mount_ephemeral;
pub use error::{FindError, MountError, OpenError, Refusal};
pub use mounted::Mounted;
pub use plan::{Decision, MINIMUM, plan};
pub use tree::{ContainerdState, Data, Directory, Entry, Ephemeral, File, Kubelet, Log, Root, Tree};
