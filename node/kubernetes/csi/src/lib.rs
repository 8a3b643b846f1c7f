//! The CSI node plugin: kubelet asks it to make a volume appear at a path, and to take it away again.
//!
//! How a call travels, once down and never back up: `server` takes it from a socket that only root may use; `node` has
//! a few lines for it; `request` turns the message into a checked value; `turns` lets one operation at a time work on a
//! volume; `host` looks at the disk, the mounts and the loop devices; `plan` says what is left to do; `host` does it; and
//! `status` gives errors their codes.
//!
//! A filesystem volume is a directory that is mounted on a directory. A block volume is an image that a loop device
//! stands on, whose node is mounted on a file. Nothing is staged, and no decision relies on memory: what is published is
//! what is mounted. The plugin holds a descriptor of each published loop device, so that no pod can detach it.
//!
//! Clients may send any `:authority`, also a socket's path, as kubelet does when it registers a plugin: `authority`
//! makes it `localhost` before the server sees it.
//!
//! Linux 5.14, as the volumes; 5.12 is enough for mounts that never exist without their flags.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod authority;
mod blocking;
mod condition;
mod connection;
mod host;
mod identity;
mod layout;
mod leftovers;
mod metrics;
mod node;
mod plan;
mod plugin;
mod registration;
mod request;
mod server;
mod status;

pub use blocking::Calls;
pub use host::{
    ActError, Found, GrowError, Host, Inspection, Linux, LookError, LoopDevice, Opened, Published, ReadyError,
    ReleaseError, Revoked, Unobserved, Watched,
};
pub use leftovers::{LeftoversError, remove_empty_volume_data};
pub use plan::{Device, Elsewhere, Refusal, Seen, Shape, Step, Target, Volume};
pub use plugin::{Plugin, RunError, Settings, Start};
pub use registration::RegisterError;
pub use request::{Mode, PathError, Purpose, Question, Range, RequestError, Sharing, TargetPath};
pub use server::ServeError;
