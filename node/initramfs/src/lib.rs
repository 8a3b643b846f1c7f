//! What the first program of the node needs to find its system: see `main.rs`.
#![forbid(unsafe_code)]

pub mod choice;
pub mod search;
pub mod system;
