//! The arrangement of the conformity suite: a node whose CSI plugin is served on its real sockets, and what a
//! behaviour needs to act as kubelet does.
//!
//! A behaviour is shown by [`hold`]: once, three times in a row and six times at once, each time with volumes and
//! directories of its own. After them the mounts, the loop devices, the open descriptors, the files below kubelet's directory and
//! the volumes are those that were there before ([`Census`]).
//!
//! ```no_run
//! conformity::hold(async |case| {
//!     let volume = case.volume(conformity::Kind::Filesystem);
//!     let target = case.target(&volume, "pod-a");
//!     case.publish(case.publishing(&volume, &target)).await.expect("publish");
//!     case.unpublish(case.unpublishing(&volume, &target)).await.expect("unpublish");
//! });
//! ```
//!
//! One node serves all behaviours of a program, one after the other: a fresh one for each would cost a file system
//! each. It needs what a `ktest` has: root, a scratch disk, `mkfs.xfs`, the modules `xfs` and `loop`.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod case;
mod census;
mod client;
mod hold;
mod messages;
mod node;
mod volumes;

pub use case::Case;
pub use census::Census;
pub use client::{answer, connect};
pub use hold::{hold, hold_in_turn, with_case};
pub use messages::{capability, read_only, with_mode};
pub use node::{NODE_NAME, Node, VERSION};
pub use volumes::{Kind, SIZE, Volume};
