#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]
#![warn(missing_docs)]

mod backing;
mod config;
mod control;
mod device;
mod error;
mod list;
mod number;
mod numbers;
#[expect(unsafe_code, reason = "the ioctls of loop devices have no wrapper in nix")]
mod sys;

pub use backing::{Backing, FileId};
pub use config::{BlockSize, Config};
pub use control::{Control, Removal};
pub use device::{Detach, Device, Status};
pub use error::{
    AttachError, BackingError, ConfigError, DetachError, DeviceError, ListError, OpenError, RemoveError, ResizeError,
    StatusError,
};
pub use list::{Attached, list};
pub use number::{DeviceNumber, InvalidName, Number};
pub use numbers::Numbers;
