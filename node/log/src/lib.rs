//! The log of a node: one stream of [`Record`]s from the node's own program (through [`tracing`]), the programs that it
//! runs, and the kernel.
//!
//! ```text
//!  tracing ── Layer ──┐            ┌── thread "console" ── text lines
//!  programs ──────────┼── Stream ──┼── Sink                other consumers
//!  /dev/kmsg ─────────┘            └── thread "log" ────── JSON lines on the disk
//! ```
//!
//! Guarantees of [`Stream`]:
//!
//! - Records are redacted ([`redact`]) before any output: no sink receives text that looks like a secret.
//! - A source that exceeds its [`SourceLimit`] is suppressed for a while, and the number of suppressed records is
//!   reported.
//! - Logging never waits for the disk. Up to 2 MiB of records are queued until the disk is available; further ones are
//!   dropped, counted and reported.
//! - Logging never waits for the console, whose queue has 64 KiB: Ctrl-S on the terminal does not block the node.
//! - The files never exceed [`Bounds`]; the oldest is removed first. Lines are not synced: a power failure loses the
//!   lines that the kernel had not written back, about half a minute.
//! - Failures of the log are reported as warnings and never stop the node.
//!
//! Output of containers is out of scope: the container runtime and the kubelet collect it.
#![forbid(unsafe_code)]

mod clip;
mod console;
#[cfg(test)]
mod fake_sink;
mod files;
mod kernel;
mod kmsg;
mod layer;
mod limiter;
mod metrics;
mod queue;
mod record;
mod redact;
mod shared;
mod stream;
mod writer;

pub use clip::clip;
pub use files::Bounds;
pub use layer::Layer;
pub use limiter::SourceLimit;
pub use metrics::Metrics;
pub use record::{Field, Origin, Record};
pub use redact::{REDACTED, Redactor, redact};
pub use shared::Sink;
pub use stream::{StartError, Stream};
