//! What the programs of an image tell of themselves: who compiled them, which Go modules and which libraries are in them;
//! and what the locks of Debian's packages say.
//!
//! Reads static ELF programs that rustc, Go or the C toolchain of `@sysroot` made.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod files;
pub mod go;
pub mod lock;
pub mod program;
pub mod sysroot;
