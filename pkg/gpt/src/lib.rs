//! Writes GUID partition tables, UEFI specification 2.10, section 5.3.
//!
//! [`Table`] is a table in memory, without a size: [`Table::writes`] lays it out for a disk, as the
//! [`Write`]s that have to reach the disk in this order, each before the next. Wherever the power fails
//! between two of them, or while sectors of one are missing, the disk has a whole table: the one from before or the
//! new one. For this the first copy's array of entries changes its place with every update, between two
//! that are reserved, and only the write of the header's one sector makes the new array count.
//!
//! Nothing is read from or written to a disk here.
//!
//! # Scope
//! Tables of 128 entries of 128 bytes, as every tool makes them, whose first usable sector leaves room for
//! a second array; that is so wherever the first partition begins at 1 MiB. [`Table::parse`] refuses
//! others, and tables with wrong checksums.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod table;
mod write;

pub use gpt_disk_types::{Guid, guid};
pub use table::{AddError, ParseError, Partition, Table};
pub use write::{SizeError, Write, protective_mbr};
