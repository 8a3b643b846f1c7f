//! Reads and writes GUID partition tables, UEFI specification 2.10, section 5.3.
//!
//! [`Table`] is a table in memory, independent of the size of the disk. [`Table::writes`] returns the [`Write`]s that
//! store it on a disk of a given size; the caller makes each durable before the next. After a power failure at any
//! time, also in the middle of a write, the disk has a complete table: the previous or the new one. To achieve this,
//! the entry array of the first copy alternates between two reserved places, and the write of the header, which is one
//! sector, activates the new array.
//!
//! [`PartitionTable`] has the partitions of any valid table with the state of both copies, through a function that
//! reads the disk. This crate does not access disks.
//!
//! # Scope
//! Changes: tables of 128 entries of 128 bytes, which all tools create, with space for a second entry array before the
//! first usable sector; this holds if the first partition begins at 1 MiB. [`Table::parse`] rejects other tables and
//! tables with wrong checksums.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod copies;
mod table;
mod write;

pub use copies::{Extent, PartitionTable, TableState};
pub use gpt_disk_types::{Guid, guid};
pub use table::{AddError, ParseError, Partition, Table};
pub use write::{SizeError, Write, protective_mbr};
