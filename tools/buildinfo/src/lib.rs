//! Reads how the programs of an image were built: compilers, Go modules and linked libraries; and the lock files of
//! Debian packages.
//!
//! Supports static ELF programs that were built by rustc, Go or the C toolchain of `@sysroot`.
#![forbid(unsafe_code)]

pub mod files;
pub mod go;
pub mod lock;
pub mod program;
pub mod sysroot;
