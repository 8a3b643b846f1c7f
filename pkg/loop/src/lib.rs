//! Loop devices: files as block devices, attached, found and detached without races.
//!
//! ```no_run
//! use std::fs::File;
//!
//! use loopdev::{Config, Control, Detach, Device};
//!
//! let image = File::options().read(true).write(true).open("/data/image")?;
//! let device = Control::open()?.attach(&image, &Config { direct_io: true, ..Config::default() })?;
//! println!("{} is {}", device.path().display(), device.status()?.size);
//!
//! // Later, perhaps in another process:
//! let device = Device::open(device.path())?;
//! match device.detach(&image)? {
//!     Detach::Detached => println!("gone"),
//!     Detach::Deferred => println!("gone when its last user closes it"),
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Guarantees
//! - [`Control::attach`] gives a device its whole [`Config`] in one step. A failure leaves neither an attached device
//!   nor a descriptor.
//! - A file is identified by file system and inode, a block device by its number ([`Backing`]); never by a path.
//! - [`Device::detach`] detaches the given file or nothing. While a [`Device`] is open, the kernel cannot attach it to
//!   another file, except by `LOOP_CHANGE_FD` (see [`Device`]).
//! - Silent changes by the kernel are read back: [`Device::status`] returns whether direct I/O is on, [`Detach`]
//!   whether a device was busy.
//!
//! # Limitations
//! The crate creates no backing files, file systems or nodes. A detached device stays for the next file until it is
//! removed ([`Control::remove`]). `LOOP_SET_FD`, `LOOP_CHANGE_FD` and changes of an attached device, except for
//! AUTOCLEAR, are not supported.
//!
//! Needs Linux 5.8 (`LOOP_CONFIGURE`), `/proc`, `/sys`, a devtmpfs or udev on `/dev`, and `CAP_SYS_ADMIN`.
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
