//! Amounts that must not be mixed up: [`Bytes`] and [`Inodes`].
//!
//! Both are a `u64` that only meets its own kind. Arithmetic that can overflow says so in its
//! result; what a sum is rounded to is a constant, checked when the program is compiled.
//!
//! ```
//! use units::Bytes;
//!
//! let wanted: Bytes = "1500M".parse()?;
//! assert_eq!(wanted.round_up::<4096>(), Some(wanted));
//! assert_eq!(wanted.to_string(), "1.46 GiB (1572864000 B)");
//! assert_eq!(Bytes::GIB.checked_sub(wanted), None);
//! # Ok::<(), units::ParseError>(())
//! ```
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod bytes;
mod inodes;
mod parse;

pub use bytes::Bytes;
pub use inodes::Inodes;
pub use parse::ParseError;
