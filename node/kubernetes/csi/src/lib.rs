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
//! Clients have to send a host name as `:authority`, as kubelet does (`localhost`). Some gRPC libraries send the
//! socket's path, which HTTP/2 does not allow: their calls fail with a protocol error.
//!
//! Linux 5.12, for mounts that never exist without their flags.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

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
pub use identity::TOPOLOGY_KEY;
pub use leftovers::{LeftoversError, remove_empty_volume_data};
pub use plan::{Elsewhere, Refusal, Seen, Step, Target, Volume};
pub use plugin::{Plugin, RunError, Settings};
pub use registration::RegisterError;
pub use request::{PathError, Question, Range, RequestError, Sharing, TargetPath};
pub use server::ServeError;
