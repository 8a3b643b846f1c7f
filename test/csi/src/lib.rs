//! Fixture of the conformity suite: a node whose CSI plugin is served on its real sockets, and the calls of the
//! kubelet.
//!
//! [`hold`] runs a behavior once and then four times at once, each time with separate volumes and directories. After
//! that, mounts, loop devices, open descriptors, files below the kubelet's directory and volumes must be the same as
//! before ([`Census`]).
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
//! One node serves all behaviors of a program, because each node needs a file system. It needs a `ktest`: root, a
//! scratch disk, `mkfs.xfs`, the modules `xfs` and `loop`.
#![forbid(unsafe_code)]

mod case;
mod census;
mod client;
mod hold;
mod messages;
mod node;
mod volumes;

pub use case::{Case, remove_directories};
pub use census::Census;
pub use client::{answer, connect};
pub use hold::{hold, hold_each, hold_each_in_turn, hold_in_turn, hold_published, with_case};
pub use messages::{capability, read_only, with_mode};
pub use node::{NODE_NAME, Node, Services, VERSION};
pub use volumes::{Kind, SIZE, Volume};
