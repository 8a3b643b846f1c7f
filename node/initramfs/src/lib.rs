//! Selects, finds and verifies the system partition; `main.rs` describes the boot.
#![forbid(unsafe_code)]

pub mod choice;
pub mod search;
pub mod system;
