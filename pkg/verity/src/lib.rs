//! dm-verity: a read-only device whose every block is compared with a hash before anybody gets it.
//!
//! [`Tree`] is the tree of hashes that is stored behind the data, and [`Root`] what has to be known, from
//! a trusted place, to read both: how many blocks there are, and the digest of all. [`Root::check`] reads
//! single blocks as the kernel would. [`open`] makes the kernel's device.
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
//! One format: version 1, SHA-256, blocks of 4096 bytes for data and hashes, no salt, and the tree right
//! behind the data on the same device. There is no superblock: nothing on the device is believed before
//! it was hashed. `veritysetup --no-superblock --salt=-` writes and reads the same.
//!
//! Documented in Documentation/admin-guide/device-mapper/verity.rst. [`open`] needs Linux 5.15 for
//! the device's node to be there when it returns, the modules `dm-mod` and `dm-verity`, and
//! `CAP_SYS_ADMIN`.
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
