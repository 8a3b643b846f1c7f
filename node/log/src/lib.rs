//! The log of a node: one stream of [`Record`]s, from the node's own program through [`tracing`], from the programs
//! that it runs, and from the kernel.
//!
//! ```text
//!  tracing ── Layer ──┐            ┌── thread "console" ── lines for a person
//!  programs ──────────┼── Stream ──┼── Sink                whoever else wants records
//!  /dev/kmsg ─────────┘            └── thread "log" ────── JSON lines on the disk
//! ```
//!
//! What [`Stream`] promises:
//!
//! - Nothing gets out before it went through [`redact`]: no sink sees what looks like a secret.
//! - Who says too much is cut off for a while ([`Rate`]); how much was left out is told.
//! - Nobody waits for the disk. Records wait in memory, up to 2 MiB, until the disk is there or takes more; what does
//!   not fit is dropped, counted, and the count is told.
//! - Nobody waits for the console either, up to 64 KiB do for it: who types Ctrl-S there stops no node.
//! - On the disk are never more than [`Bounds`] says: the oldest file goes first. Lines are not synced one by one: a
//!   power cut takes what the kernel had not written back yet, about half a minute.
//! - No failure here is one of the node: what cannot be done is told as a warning.
//!
//! It does not collect what containers print: kubelet and the container runtime do.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod clip;
mod console;
mod files;
#[cfg(test)]
mod kept;
mod kernel;
mod kmsg;
mod layer;
mod metrics;
mod queue;
mod rate;
mod record;
mod redact;
mod stream;
mod writer;

pub use clip::clip;
pub use files::Bounds;
pub use layer::Layer;
pub use metrics::Metrics;
pub use rate::{Bucket, Rate};
pub use record::{Field, Origin, Record};
pub use redact::{REDACTED, Redactor, redact};
pub use stream::{Sink, StartError, Stream};
