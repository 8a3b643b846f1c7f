//! What user space exchanges with the Linux kernel outside of system calls that have their own crate: [`modules`] that it
//! loads, and [`text`] that it writes.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod modules;
pub mod text;
