//! An open loop device.

use std::ffi::OsStr;
use std::fs;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::{Mode, SFlag, fstat};
use nix::unistd::fsync;
use units::Bytes;

use crate::backing::Backing;
use crate::config::Config;
use crate::error::{DetachError, DeviceError, ResizeError, StatusError};
use crate::number::{DeviceNumber, Number};
use crate::sys;

/// A loop device, open for reading.
///
/// While the value lives, the device keeps its number and its backing file: the kernel defers a detach by another
/// process until then. (Only `LOOP_CHANGE_FD` can exchange the file of a read-only device, for one of the same size.) A
/// device with `autoclear` is detached when its last user, such as this value, closes it.
#[derive(Debug)]
pub struct Device {
    fd: OwnedFd,
    number: Number,
    dev: DeviceNumber,
}

/// Status of an attached device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Status {
    /// Backing file.
    pub backing: Backing,
    /// Actual configuration, which may differ from the requested one.
    pub config: Config,
    /// Current size: whole sectors of 512 bytes.
    pub size: Bytes,
}

/// Result of a detach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use = "a device that was busy still stands on its backing file"]
pub enum Detach {
    /// The kernel closed the backing file. (A process forked by another thread may hold the file until it calls exec.)
    Detached,
    /// Another process had the device, or a partition of it, open or mounted. The kernel detaches the device when the
    /// last process closes it, which may have happened meanwhile.
    Deferred,
}

impl Device {
    /// Opens a device by any of its nodes, also a bind-mounted one. Follows symbolic links. Needs `/proc` and `/sys`.
    ///
    /// # Errors
    /// [`DeviceError::NotLoopDevice`] for any other file. Such a file is not opened: a pipe does not block, a tape does
    /// not rewind.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, DeviceError> {
        let path = path.as_ref();
        let node = open(path, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty()).map_err(|errno| match errno {
            Errno::ENOENT | Errno::ENOTDIR => DeviceError::NotFound { path: path.into() },
            source => DeviceError::Open { path: path.into(), source },
        })?;
        Self::of_node(node.as_fd(), path)
    }

    /// Opens a device by an open node; `O_PATH` is sufficient. Errors name a path below `/proc/self/fd`.
    pub fn from_node(node: impl AsFd) -> Result<Self, DeviceError> {
        let node = node.as_fd();
        Self::of_node(node, &reopen_path(node))
    }

    /// Errors contain `path`.
    pub(crate) fn of_node(node: BorrowedFd<'_>, path: &Path) -> Result<Self, DeviceError> {
        let failed = |source| DeviceError::Open { path: path.into(), source };
        let stat = fstat(node).map_err(failed)?;
        let block = SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT == SFlag::S_IFBLK;
        let dev = DeviceNumber::from_stat(stat.st_rdev);
        if !block || dev.major != sys::MAJOR {
            return Err(DeviceError::NotLoopDevice { path: path.into() });
        }
        let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC;
        let fd = open(&reopen_path(node), flags, Mode::empty()).map_err(|errno| match errno {
            Errno::ENXIO | Errno::ENODEV => DeviceError::Gone { path: path.into() },
            Errno::ENOENT => DeviceError::NoProc { path: path.into() },
            source => failed(source),
        })?;
        // The device is open, so its numbers cannot become those of another device.
        let link = fs::read_link(format!("/sys/dev/block/{dev}"))
            .map_err(|source| DeviceError::Sysfs { device: dev, source })?;
        let name = link.file_name().and_then(OsStr::to_str).unwrap_or_default();
        // With `max_part`, a partition has the driver's major number too, and its ioctls act on the whole device.
        let number = name.parse().map_err(|_| DeviceError::NotLoopDevice { path: path.into() })?;
        Ok(Self { fd, number, dev })
    }

    /// Path of the device's node, such as `/dev/loop7`, independent of the node that was opened.
    pub fn path(&self) -> PathBuf {
        self.number.path()
    }

    /// Number in the device's name. The number belongs to this device as long as the value lives.
    pub fn number(&self) -> Number {
        self.number
    }

    /// Major and minor number, from the node itself.
    pub fn dev(&self) -> DeviceNumber {
        self.dev
    }

    /// Backing file of the device.
    ///
    /// # Errors
    /// [`StatusError::NotAttached`].
    pub fn backing(&self) -> Result<Backing, StatusError> {
        Ok(Backing::from_kernel(&self.info()?))
    }

    /// Actual configuration of the device, such as whether direct I/O is on.
    ///
    /// # Errors
    /// [`StatusError::NotAttached`].
    pub fn config(&self) -> Result<Config, StatusError> {
        let info = self.info()?;
        let block_size = sys::block_size(self.fd.as_fd()).map_err(StatusError::new(self.number, "BLKSSZGET"))?;
        Ok(Config::from_kernel(&info, block_size))
    }

    /// Backing file, actual configuration and size: `LOOP_GET_STATUS64`, `BLKSSZGET`, `BLKGETSIZE64`.
    ///
    /// # Errors
    /// [`StatusError::NotAttached`].
    pub fn status(&self) -> Result<Status, StatusError> {
        let info = self.info()?;
        let block_size = sys::block_size(self.fd.as_fd()).map_err(StatusError::new(self.number, "BLKSSZGET"))?;
        let size = sys::size(self.fd.as_fd()).map_err(StatusError::new(self.number, "BLKGETSIZE64"))?;
        Ok(Status {
            backing: Backing::from_kernel(&info),
            config: Config::from_kernel(&info, block_size),
            size: Bytes::new(size),
        })
    }

    /// Makes the kernel re-read the size of the backing file while the device is in use. Idempotent. Returns the new
    /// size, according to offset and size limit, in whole sectors of 512 bytes. The partition table is not read again.
    ///
    /// `LOOP_SET_CAPACITY`, Linux 2.6.30, loop(4); needs `CAP_SYS_ADMIN`.
    ///
    /// # Errors
    /// [`ResizeError::Detached`] if the device has no backing file any more (`ENXIO`).
    pub fn refresh_size(&self) -> Result<Bytes, ResizeError> {
        sys::set_capacity(self.fd.as_fd()).map_err(ResizeError::new(self.number, "LOOP_SET_CAPACITY"))?;
        let size = sys::size(self.fd.as_fd()).map_err(ResizeError::new(self.number, "BLKGETSIZE64"))?;
        Ok(Bytes::new(size))
    }

    /// Whether the kernel detaches the device when its last user closes it: `autoclear` of [`Config`], or a deferred
    /// detach. No uevent reports such a detach.
    ///
    /// # Errors
    /// [`StatusError::NotAttached`].
    pub fn is_autoclear(&self) -> Result<bool, StatusError> {
        Ok(self.info()?.flags & sys::AUTOCLEAR != 0)
    }

    /// Revokes a deferred detach: the device stays attached when its users close it. Returns whether a detach was
    /// pending.
    ///
    /// The kernel freezes the device's queue for the change (12 to 124 ms were measured); repeated calls starve its
    /// users. `LOOP_GET_STATUS64`, `LOOP_SET_STATUS64`; needs `CAP_SYS_ADMIN`, since the device is open for reading.
    ///
    /// # Errors
    /// [`StatusError::NotAttached`] if the detach was not deferred.
    pub fn clear_autoclear(&self) -> Result<bool, StatusError> {
        let mut info = self.info()?;
        if info.flags & sys::AUTOCLEAR == 0 {
            return Ok(false);
        }
        info.flags &= !sys::AUTOCLEAR;
        sys::set_status(self.fd.as_fd(), &info).map_err(StatusError::new(self.number, "LOOP_SET_STATUS64"))?;
        Ok(true)
    }

    /// Detaches the device if its backing file is `backing`, which may be opened with `O_PATH`. The device cannot be
    /// attached to another file between the comparison and the detach. Data is synced to the file before the detach,
    /// because the kernel drops the page cache of the device. `LOOP_CLR_FD`, lazy since Linux 3.7.
    ///
    /// # Errors
    /// [`DetachError::OtherBacking`] for another backing file, [`DetachError::NotAttached`] if the device was detached
    /// before, [`DetachError::Unwritten`] if data cannot be written to the file.
    pub fn detach(self, backing: impl AsFd) -> Result<Detach, DetachError> {
        let named = Backing::of(backing)?;
        self.detach_from(named)
    }

    /// Like [`Self::detach`], for a backing file of an earlier [`list`](crate::list), if it still is the same file.
    pub fn detach_from(self, named: Backing) -> Result<Detach, DetachError> {
        let number = self.number;
        let info = sys::status(self.fd.as_fd()).map_err(DetachError::new(number, "LOOP_GET_STATUS64"))?;
        let attached = Backing::from_kernel(&info);
        if attached != named {
            return Err(DetachError::OtherBacking { number, attached, named });
        }
        // If the device has one user, the detach drops the page cache and only writes a line to the kernel's log (Linux
        // 6.10).
        fsync(&self.fd).map_err(|source| DetachError::Unwritten { number, source })?;
        sys::clear(self.fd.as_fd()).map_err(DetachError::new(number, "LOOP_CLR_FD"))?;
        // LOOP_CLR_FD also succeeds for a device with other users, and only marks it. Without other users the status is
        // ENXIO now, and since Linux 6.10 the kernel closes the file when `self` is closed.
        match sys::status(self.fd.as_fd()) {
            Err(Errno::ENXIO) => Ok(Detach::Detached),
            Ok(_) => Ok(Detach::Deferred),
            Err(source) => Err(DetachError::System { number, operation: "LOOP_GET_STATUS64", source }),
        }
    }

    fn info(&self) -> Result<sys::LoopInfo, StatusError> {
        sys::status(self.fd.as_fd()).map_err(StatusError::new(self.number, "LOOP_GET_STATUS64"))
    }
}

impl AsFd for Device {
    /// The descriptor is open for reading.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn reopen_path(node: BorrowedFd<'_>) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", node.as_raw_fd()))
}
