#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]
#![warn(missing_docs)]

mod assembler;
mod btf;
mod cgroup;
mod denials;
mod error;
mod guard;
#[cfg(test)]
mod interpreter;
mod layout;
mod maps;
mod pins;
mod probe;
mod programs;
#[cfg(test)]
mod sample;
#[expect(unsafe_code, reason = "bpf(2), name_to_handle_at(2) and calls of 32-bit programs have no wrapper in nix")]
mod sys;

pub use assembler::AssembleError;
pub use btf::{Btf, BtfError};
pub use cgroup::{Cgroup, CgroupError, CgroupId};
pub use denials::{Denials, Operation, Recent};
pub use error::Error;
pub use guard::Guard;
/// Public for the crate's fuzz target only.
#[doc(hidden)]
pub use layout::Layout;
/// Major and minor number of the data disk and of loop devices.
pub use loopdev::DeviceNumber;
pub use pins::Pins;
pub use probe::{Abi, Breach, Probe, ProbeError};
