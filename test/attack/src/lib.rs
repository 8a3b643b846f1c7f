#![doc = include_str!("../README.md")]
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
