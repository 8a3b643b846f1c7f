//! Kernel modules ([`modules`]), and parsers of text that the Linux kernel writes ([`text`]).
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod modules;
pub mod text;
