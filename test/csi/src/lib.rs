#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod case;
mod census;
mod client;
mod hold;
mod messages;
mod node;
mod volumes;

pub use case::{Case, remove_directories};
pub use census::Census;
pub use client::{answer, connect};
pub use hold::{hold, hold_each, hold_each_in_turn, hold_in_turn, hold_published, with_case};
pub use messages::{capability, read_only, with_mode};
pub use node::{NODE_NAME, Node, Services, VERSION};
pub use volumes::{Kind, SIZE, Volume};
