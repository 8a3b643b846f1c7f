//! Parsers of text that the Linux kernel writes: records of `/dev/kmsg` ([`Message`]), messages about failed
//! disks ([`failed_disk`]), `/proc/PID/stat` ([`Stat`]),
//! tables of sizes such as `/proc/meminfo` ([`size`]), and the list of consoles ([`other_consoles`]).
//!
//! Other programs control parts of these texts: a process chooses its own name, and any process that may write to
//! `/dev/kmsg` chooses a whole message. This module reads no files; callers pass the content.

mod consoles;
mod disk;
mod memory;
mod message;
mod stat;

pub use consoles::other_consoles;
pub use disk::failed_disk;
pub use memory::size;
pub use message::Message;
pub use stat::Stat;
