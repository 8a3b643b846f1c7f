//! The CSI node plugin: kubelet asks it to make a volume appear at a path, and to take it away again.
//!
//! How a call travels, once down and never back up: `server` takes it from a socket that only root may use; `node` has
//! a few lines for it; `request` turns the message into a checked value; `turns` lets one operation at a time work on a
//! volume; `host` looks at the disk and the mounts; `plan` says what is left to do; `host` does it; and `status` gives
//! errors their codes.
//!
//! Filesystem volumes only: a block volume is refused as such. Nothing is staged, and nothing is remembered: what is
//! published is what is mounted.
//!
//! Clients may send any `:authority`, also a socket's path, as kubelet does when it registers a plugin: `authority`
//! makes it `localhost` before the server sees it.
//!
//! Linux 5.12, for mounts that never exist without their flags.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod authority;
mod host;
mod identity;
mod leftovers;
mod metrics;
mod node;
mod plan;
mod plugin;
mod registration;
mod request;
mod server;
mod status;
mod turns;

pub use host::{ActError, Host, Linux, LookError, QuotaError, ReadyError};
pub use leftovers::{LeftoversError, remove_empty_volume_data};
pub use plan::{Elsewhere, Refusal, Seen, Step, Target, Volume};
pub use plugin::{Plugin, RunError, Settings};
pub use registration::RegisterError;
pub use request::{PathError, Question, Range, RequestError, Sharing, TargetPath};
pub use server::ServeError;
