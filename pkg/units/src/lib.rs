//! Types for numbers of bytes ([`Bytes`]) and inodes ([`Inodes`]), so that the compiler rejects mixing them.
//!
//! Both wrap a `u64` and support arithmetic with their own type only. Operations that can overflow have a prefix that
//! states the result of an overflow (`checked_`, `saturating_`). Granules of rounding are constants, checked at compile
//! time.
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
mod quantity;

pub use bytes::Bytes;
pub use inodes::Inodes;
pub use parse::ParseError;
