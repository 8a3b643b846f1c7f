//! Attacks of a pod on the node and on other tenants, written as functions over system calls.
//!
//! `//test/attack:program` runs the list [`ATTACKS`] in a pod on the booted node, where every attack must fail.
//! `//test/attack:control_ktest` runs the same list on a kernel without the protections, where every attack must
//! succeed. [`Tenant`] is a pod that continues after its claims are deleted. The crate uses neither the standard
//! library nor a C library, so that the program fits into a ConfigMap. Functions leak descriptors, so each attack runs
//! in its own process.
#![cfg_attr(not(test), no_std)]
#![deny(unsafe_code)]

mod attack;
mod bpf;
mod device;
mod errno;
mod expected;
mod failure;
mod handle;
mod kernel;
mod loops;
mod processes;
mod project;
mod quota;
#[expect(unsafe_code, reason = "the attacks are system calls, in encodings that no crate offers")]
mod sys;
mod table;
mod target;
mod tenant;
mod text;

pub use attack::{Attack, By, run};
pub use errno::Errno;
pub use expected::Expected;
pub use failure::Failure;
pub use handle::TENANT;
pub use kernel::{MODULE, without_signature};
pub use processes::{BOMB_END, BOMB_LIMIT_REACHED};
pub use sys::File;
pub use table::ATTACKS;
pub use target::Target;
pub use tenant::{Tenant, Turn};

/// The program prints this line after the last attack.
pub const DONE: &str = "attacks: done";
