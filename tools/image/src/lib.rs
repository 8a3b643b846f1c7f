//! Parts of the tools that build the image: how its programs were built (compilers, Go modules and linked libraries), the
//! lock files of Debian packages, and input files.
//!
//! Supports static ELF programs that were built by rustc, Go or the C toolchain of `@sysroot`. The tools are in `src/bin`.
#![forbid(unsafe_code)]

pub mod files;
pub mod go;
pub mod lock;
pub mod parts;
pub mod program;
pub mod sysroot;

use std::fmt;

use sha2::{Digest as _, Sha256};

pub fn sha256(bytes: &[u8]) -> String {
    fmt::from_fn(|f| Sha256::digest(bytes).iter().try_for_each(|byte| write!(f, "{byte:02x}"))).to_string()
}
