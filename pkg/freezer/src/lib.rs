#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod cgroup;
mod error;
mod frozen;
mod guard;
mod marked;
mod message;

pub use cgroup::MARK;
pub use error::{FreezeError, Operation};
pub use frozen::{Frozen, Pause, freeze};
pub use guard::guard;
pub use marked::thaw_marked;
