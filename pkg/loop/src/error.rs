//! Errors, one enum per operation.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use nix::errno::Errno;
use units::Bytes;

use crate::backing::Backing;
use crate::number::{DeviceNumber, Number};

/// Constructor for `map_err`: the operation failed. `ENXIO` means that the device has no backing file.
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
    /// The driver is not loaded.
    #[error("the kernel has no loop devices; load the module loop")]
    NoDriver,
    /// The caller has no permission to open the driver.
    #[error("no permission to open /dev/loop-control; run as root")]
    NotPermitted,
    /// Any other error.
    #[error("cannot open /dev/loop-control")]
    System(#[source] Errno),
}

/// A [`Config`](crate::Config) that no device can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the texts of the errors describe the fields")]
pub enum ConfigError {
    /// The block size is not a power of two, too small or too large.
    #[error("a block size of {asked} bytes is invalid; use a power of two from 512 to {page}")]
    BlockSize {
        asked: u32,
        /// The size of a page on this machine.
        page: u32,
    },
    /// The size limit is below one sector. The kernel would create a device of 0 bytes, and interprets 0 as no limit.
    #[error("a size limit of {asked} leaves no sector; set at least one sector of 512 bytes")]
    NoSector { asked: Bytes },
    /// The value exceeds the kernel's signed 64 bits.
    #[error("an offset or size limit of {asked} is too large; the largest is {}", Bytes::new(i64::MAX as u64))]
    TooLarge { asked: Bytes },
}

/// A descriptor that cannot be a device's backing file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the texts of the errors describe the fields")]
pub enum BackingError {
    /// The descriptor is that of a directory, a pipe, a character device and the like.
    #[error("neither a regular file nor a block device")]
    NotAFile,
    /// The descriptor was opened with `O_PATH`.
    #[error("the file is open as a path only; open it for reading and writing")]
    PathOnly,
    /// The descriptor was opened for writing only.
    #[error("the file is not open for reading; open it for reading too")]
    NotReadable,
    /// The descriptor was opened for reading only, but the device should be writable.
    #[error("the file is not open for writing; open it for writing too, or request a read-only device")]
    NotWritable,
    /// The descriptor was opened with `O_APPEND`. Some kernels then write each block behind the end of the file,
    /// wherever on the device the block belongs.
    #[error("the file is open for appending; open it without O_APPEND, or request a read-only device")]
    Appending,
    /// The backing file is a loop device that has no backing file itself.
    #[error("the backing file is a loop device ({device}) without a backing file; attach that one first")]
    Detached { device: DeviceNumber },
    /// Any other error.
    #[error("{operation} of the backing file failed")]
    System { operation: &'static str, source: Errno },
}

impl BackingError {
    /// Constructor for `map_err`: the operation failed for a reason without its own variant.
    pub(crate) fn system(operation: &'static str) -> impl FnOnce(Errno) -> Self {
        move |source| Self::System { operation, source }
    }
}

/// [`Control::attach`](crate::Control::attach) failed; no device is attached.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the texts of the errors describe the fields")]
pub enum AttachError {
    /// The configuration is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The file cannot be a backing file.
    #[error(transparent)]
    Backing(#[from] BackingError),
    /// The kernel lacks `LOOP_CONFIGURE`.
    #[error("the kernel has no LOOP_CONFIGURE; Linux 5.8 or newer is needed")]
    KernelTooOld,
    /// The kernel returned a device whose node did not appear.
    #[error("{number} has no node in /dev; mount a devtmpfs there or let udev create its nodes")]
    NoNode { number: Number },
    /// Other processes took each free device first.
    #[error("other processes attached each free loop device first for {waited:?}, last {number}; try again")]
    Contended {
        number: Number,
        /// Duration of all attempts.
        waited: Duration,
    },
    /// The kernel returned no free device, or devices of all numbers exist.
    #[error("cannot find a free loop device")]
    NoFree(#[source] Errno),
    /// The device with the next number cannot be created.
    #[error("cannot create {number}")]
    Create { number: Number, source: Errno },
    /// The node of the free device could not be opened.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The node in `/dev` belongs to another device.
    #[error("/dev/{number} is the node of {found}; create the node of {number} there")]
    WrongNode { number: Number, found: Number },
    /// Any other error of `LOOP_CONFIGURE`.
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
    /// The path is another file, or a partition of a loop device.
    #[error("{path} is not a loop device")]
    NotLoopDevice { path: PathBuf },
    /// The path does not exist.
    #[error("{path} does not exist")]
    NotFound { path: PathBuf },
    /// The node exists, but its device does not: the device was removed, or is just being detached.
    #[error("{path} is the node of a loop device that does not exist")]
    Gone { path: PathBuf },
    /// The device cannot be opened, because of permissions or because another process has it open exclusively.
    #[error("cannot open the loop device {path}")]
    Open { path: PathBuf, source: Errno },
    /// No procfs is mounted, which is needed to open the node that was checked.
    #[error("cannot open the loop device {path} by /proc/self/fd; mount a proc on /proc")]
    NoProc { path: PathBuf },
    /// sysfs does not have the name of the device.
    #[error("cannot find loop device {device} in /sys/dev/block; mount a sysfs on /sys")]
    Sysfs { device: DeviceNumber, source: io::Error },
}

/// [`Device::status`](crate::Device::status), or a part of it, failed.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the texts of the errors describe the fields")]
pub enum StatusError {
    /// The device has no backing file.
    #[error("{number} has no backing file")]
    NotAttached { number: Number },
    /// Any other error.
    #[error("{operation} of {number} failed")]
    System { number: Number, operation: &'static str, source: Errno },
}

from_errno!(StatusError, NotAttached);

/// [`Device::refresh_size`](crate::Device::refresh_size) failed.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the texts of the errors describe the fields")]
pub enum ResizeError {
    /// The device has no backing file any more.
    #[error("{number} has no backing file, and so no size")]
    Detached { number: Number },
    /// Any other error.
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
    /// The device has no backing file: it was detached before.
    #[error("{number} is not attached")]
    NotAttached { number: Number },
    /// The backing file is another one than the caller's.
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
    /// Any other error.
    #[error("{operation} of {number} failed")]
    System { number: Number, operation: &'static str, source: Errno },
}

from_errno!(DetachError, NotAttached);

/// [`list`](crate::list) failed.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the texts of the errors describe the fields")]
pub enum ListError {
    /// The devices in sysfs cannot be listed.
    #[error("cannot list {path}; mount a sysfs on /sys")]
    Sysfs { path: PathBuf, source: io::Error },
    /// An attached device cannot be opened.
    #[error("cannot read an attached loop device")]
    Device(#[from] DeviceError),
    /// The status of an attached device cannot be read.
    #[error("cannot read an attached loop device")]
    Status(#[from] StatusError),
}
