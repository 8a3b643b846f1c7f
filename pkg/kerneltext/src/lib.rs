//! Parsers of text that the Linux kernel writes: records of `/dev/kmsg` ([`Message`]), `/proc/PID/stat` ([`Stat`]), and
//! tables of sizes such as `/proc/meminfo` ([`size`]).
//!
//! Other programs choose parts of these texts: a process its own name, anybody with the right to write to `/dev/kmsg` a
//! whole message. Nothing is read from a file here.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod memory;
mod message;
mod stat;

pub use memory::size;
pub use message::Message;
pub use stat::Stat;
