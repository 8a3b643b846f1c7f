//! dm-verity: read-only block devices that verify every block against a hash tree.
//!
//! [`Tree`] is the hash tree that is stored after the data. [`Root`] contains what a reader needs from a trusted
//! source: the number of data blocks and the root digest. [`Root::check`] verifies single blocks like the kernel.
//! [`open`] creates the device-mapper device.
//!
//! ```
//! use verity::{BLOCK, Root, Tree};
//!
//! let mut device = vec![7; 300 * BLOCK];
//! let tree = Tree::of(&device[..])?;
//! device.extend_from_slice(tree.bytes());
//! let root: Root = tree.root().to_string().parse()?;
//! let read = |place: u64, block: &mut [u8; BLOCK]| {
//!     let at = place as usize * BLOCK;
//!     block.copy_from_slice(&device[at..at + BLOCK]);
//!     Ok(())
//! };
//! root.check(299, read)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Scope
//! One format: version 1, SHA-256, blocks of 4096 bytes for data and hashes, no salt, and the tree directly after the
//! data on the same device. There is no superblock, because no unverified data of the device may be used. `veritysetup
//! --no-superblock --salt=-` writes and reads the same format.
//!
//! Specification: Documentation/admin-guide/device-mapper/verity.rst. [`open`] requires the modules `dm-mod` and
//! `dm-verity`, `CAP_SYS_ADMIN`, and Linux 5.15, which creates the device node before the call returns.
#![deny(unsafe_code)]
#![warn(missing_docs)]

mod device;
mod root;
#[expect(unsafe_code, reason = "the ioctls of device-mapper have no wrapper in nix")]
mod sys;
mod tree;

pub use device::{OnCorruption, OpenError, open};
pub use root::{CheckError, Part, Root, RootError};
pub use tree::{BLOCK, Digest, Tree, TreeError};
