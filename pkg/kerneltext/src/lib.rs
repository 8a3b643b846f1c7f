//! Parsers of text that the Linux kernel writes: records of `/dev/kmsg` ([`Message`]), `/proc/PID/stat` ([`Stat`]), and
//! tables of sizes such as `/proc/meminfo` ([`size`]).
//!
//! Other programs control parts of these texts: a process chooses its own name, and any process that may write to
//! `/dev/kmsg` chooses a whole message. This crate reads no files; callers pass the content.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod memory;
mod message;
mod stat;

pub use memory::size;
pub use message::Message;
pub use stat::Stat;
