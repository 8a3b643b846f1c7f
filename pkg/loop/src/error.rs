//! Errors, one enum per operation.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use nix::errno::Errno;
use units::Bytes;

use crate::backing::Backing;
use crate::number::{DeviceNumber, Number};

/// The error for `map_err`: the operation failed; `ENXIO` says that the device has no backing file.
macro_rules! from_errno {
    ($error:ident, $free:ident) => {
        impl $error {
            pub(crate) fn new(number: Number, operation: &'static str) -> impl FnOnce(Errno) -> Self {
                move |errno| match errno {
                    Errno::ENXIO => Self::$free { number },
                    source => Self::System { number, operation, source },
                }
            }
        }
    };
}

/// [`Control::open`](crate::Control::open) failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// No driver.
    #[error("the kernel has no loop devices; load the module loop")]
    NoDriver,
    /// The caller may not open it.
    #[error("no permission to open /dev/loop-control; run as root")]
    NotPermitted,
    /// Any other refusal.
    #[error("cannot open /dev/loop-control")]
    System(#[source] Errno),
}

/// A [`Config`](crate::Config) that no device can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the texts of the errors describe the fields")]
pub enum ConfigError {
    /// Not a power of two, or too small or large.
    #[error("a block size of {asked} bytes is invalid; use a power of two from 512 to {page}")]
    BlockSize {
        asked: u32,
        /// The size of a page on this machine.
        page: u32,
    },
    /// A size limit below one sector. The kernel would create a device of 0 bytes, and interprets 0 as no limit.
    #[error("a size limit of {asked} leaves no sector; set at least one sector of 512 bytes")]
    NoSector { asked: Bytes },
    /// More than the kernel counts.
    #[error("an offset or size limit of {asked} is too large; the largest is {}", Bytes::new(i64::MAX as u64))]
    TooLarge { asked: Bytes },
}

/// A descriptor that cannot be a device's backing file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the texts of the errors describe the fields")]
pub enum BackingError {
    /// A directory, a pipe, a character device and the like.
    #[error("neither a regular file nor a block device")]
    NotAFile,
    /// Opened with `O_PATH`.
    #[error("the file is open as a path only; open it for reading and writing")]
    PathOnly,
    /// Opened for writing only.
    #[error("the file is not open for reading; open it for reading too")]
    NotReadable,
    /// Opened for reading only, and the device was to be writable.
    #[error("the file is not open for writing; open it for writing too, or request a read-only device")]
    NotWritable,
    /// Opened with `O_APPEND`. Some kernels then write each block behind the end of the file, wherever on
    /// the device it belongs.
    #[error("the file is open for appending; open it without O_APPEND, or request a read-only device")]
    Appending,
    /// A loop device that has no backing file itself.
    #[error("the backing file is a loop device ({device}) without a backing file; attach that one first")]
    Detached { device: DeviceNumber },
    /// Any other refusal.
    #[error("{operation} of the backing file failed")]
    System { operation: &'static str, source: Errno },
}

impl BackingError {
    /// For `map_err`: this operation failed for a reason without a name of its own.
    pub(crate) fn system(operation: &'static str) -> impl FnOnce(Errno) -> Self {
        move |source| Self::System { operation, source }
    }
}

/// [`Control::attach`](crate::Control::attach) failed; no device is attached.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the texts of the errors describe the fields")]
pub enum AttachError {
    /// The configuration itself is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The file cannot carry a device.
    #[error(transparent)]
    Backing(#[from] BackingError),
    /// No `LOOP_CONFIGURE`.
    #[error("the kernel has no LOOP_CONFIGURE; Linux 5.8 or newer is needed")]
    KernelTooOld,
    /// The kernel names a device whose node did not appear.
    #[error("{number} has no node in /dev; mount a devtmpfs there or let udev create its nodes")]
    NoNode { number: Number },
    /// Others were faster each time.
    #[error("other processes took each free loop device for {waited:?}, last {number}; try again")]
    Contended {
        number: Number,
        /// How long it was tried.
        waited: Duration,
    },
    /// No free device to be had.
    #[error("no free loop device")]
    NoFree(#[source] Errno),
    /// No device with the next number.
    #[error("cannot create {number}")]
    Create { number: Number, source: Errno },
    /// The node of the free device could not be opened.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The node in `/dev` is another device's.
    #[error("/dev/{number} is the node of {found}; create the node of {number} there")]
    WrongNode { number: Number, found: Number },
    /// Any other refusal.
    #[error("cannot attach {backing} to {number}")]
    Configure { number: Number, backing: Backing, source: Errno },
}

/// [`Control::remove`](crate::Control::remove) failed; the device is as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot remove {number}")]
pub struct RemoveError {
    /// The device.
    pub number: Number,
    /// Errno of the call.
    pub source: Errno,
}

/// [`Device::open`](crate::Device::open) or [`Device::from_node`](crate::Device::from_node) failed.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the texts of the errors describe the fields")]
pub enum DeviceError {
    /// There, but something else; also a partition of a loop device.
    #[error("{path} is not a loop device")]
    NotLoopDevice { path: PathBuf },
    /// Nothing there.
    #[error("{path} does not exist")]
    NotFound { path: PathBuf },
    /// The node is there and its device is not: it was removed, or is just being detached.
    #[error("{path} is the node of a loop device that is not there")]
    Gone { path: PathBuf },
    /// The device cannot be opened, by permissions or because another process has it exclusively.
    #[error("cannot open the loop device {path}")]
    Open { path: PathBuf, source: Errno },
    /// No procfs, by which a node is opened that was looked at.
    #[error("cannot open the loop device {path} by /proc/self/fd; mount a proc on /proc")]
    NoProc { path: PathBuf },
    /// Sysfs does not say which device it is.
    #[error("cannot find loop device {device} in /sys/dev/block; is sysfs mounted on /sys?")]
    Sysfs { device: DeviceNumber, source: io::Error },
}

/// [`Device::status`](crate::Device::status), or a part of it, failed.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the texts of the errors describe the fields")]
pub enum StatusError {
    /// It has no backing file.
    #[error("{number} has no backing file")]
    NotAttached { number: Number },
    /// Any other refusal.
    #[error("{operation} of {number} failed")]
    System { number: Number, operation: &'static str, source: Errno },
}

from_errno!(StatusError, NotAttached);

/// [`Device::refresh_size`](crate::Device::refresh_size) failed.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the texts of the errors describe the fields")]
pub enum ResizeError {
    /// It has no backing file any more.
    #[error("{number} has no backing file, and so no size")]
    Detached { number: Number },
    /// Any other refusal.
    #[error("{operation} of {number} failed")]
    System { number: Number, operation: &'static str, source: Errno },
}

from_errno!(ResizeError, Detached);

/// [`Device::detach`](crate::Device::detach) failed; the device is as it was.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the texts of the errors describe the fields")]
pub enum DetachError {
    /// The given file cannot be a backing file.
    #[error(transparent)]
    Backing(#[from] BackingError),
    /// It has no backing file: it was detached before.
    #[error("{number} is not attached")]
    NotAttached { number: Number },
    /// It stands on something else than the caller named.
    #[error("{number} is attached to {attached}, not to {named}; it is unchanged")]
    OtherBacking { number: Number, attached: Backing, named: Backing },
    /// Data of the device cannot be written to its file. The kernel reports this once and drops the data: the next call
    /// detaches.
    #[error("{number} was not detached: cannot write data to its backing file; the data is lost")]
    Unwritten {
        number: Number,
        /// Errno of the sync, such as `EIO`.
        source: Errno,
    },
    /// Any other refusal.
    #[error("{operation} of {number} failed")]
    System { number: Number, operation: &'static str, source: Errno },
}

from_errno!(DetachError, NotAttached);

/// [`list`](crate::list) failed.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the texts of the errors describe the fields")]
pub enum ListError {
    /// Sysfs does not list devices.
    #[error("cannot list {path}; is sysfs mounted on /sys?")]
    Sysfs { path: PathBuf, source: io::Error },
    /// An attached device cannot be opened.
    #[error("cannot look at an attached loop device")]
    Device(#[from] DeviceError),
    /// An attached device does not answer.
    #[error("cannot look at an attached loop device")]
    Status(#[from] StatusError),
}
