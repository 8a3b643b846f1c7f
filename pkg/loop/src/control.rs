//! Attaching files to devices.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl, open};
use nix::sys::stat::Mode;

use crate::backing::Backing;
use crate::config::Config;
use crate::device::Device;
use crate::error::{AttachError, BackingError, DeviceError, OpenError, RemoveError};
use crate::number::Number;
use crate::numbers::Numbers;
use crate::sys;

/// Default of [`Control::with_limit`].
const LIMIT: Duration = Duration::from_secs(10);
/// Shortest and longest pause between attempts. Each pause is twice the previous one.
const PAUSES: [Duration; 2] = [Duration::from_micros(100), Duration::from_millis(10)];

/// The driver, `/dev/loop-control`.
#[derive(Debug)]
pub struct Control {
    fd: OwnedFd,
    limit: Duration,
}

impl Control {
    /// Opens the driver. Linux 3.1.
    ///
    /// # Errors
    /// [`OpenError::NoDriver`] without the module `loop`.
    pub fn open() -> Result<Self, OpenError> {
        match open("/dev/loop-control", OFlag::O_RDWR | OFlag::O_CLOEXEC, Mode::empty()) {
            Ok(fd) => Ok(Self { fd, limit: LIMIT }),
            Err(Errno::ENOENT | Errno::ENODEV | Errno::ENXIO) => Err(OpenError::NoDriver),
            Err(Errno::EACCES | Errno::EPERM) => Err(OpenError::NotPermitted),
            Err(source) => Err(OpenError::System(source)),
        }
    }

    /// Limits how long an attach continues while other processes take each free device; 10 seconds by default.
    #[must_use]
    pub fn with_limit(self, limit: Duration) -> Self {
        Self { limit, ..self }
    }

    /// Attaches a file to a free device with all of `config` at once, and opens the device. [`Device::config`] returns
    /// the actual configuration. If another process takes the free device first, the call tries the next free one, see
    /// [`Self::with_limit`].
    ///
    /// The kernel keeps its own reference to `backing`. A file can be attached twice: check [`list`](crate::list)
    /// first.
    ///
    /// `LOOP_CTL_GET_FREE` and one `LOOP_CONFIGURE`, Linux 5.8. On errors no device is attached.
    pub fn attach(&self, backing: impl AsFd, config: &Config) -> Result<Device, AttachError> {
        let backing = backing.as_fd();
        config.check()?;
        check(backing, config)?;
        let mut patience = Patience::new(self.limit);
        loop {
            let number = self.free()?;
            match claim(number, backing, config)? {
                Claim::Won(device) => return Ok(device),
                Claim::Lost(lost) => patience.wait(number, lost)?,
            }
        }
    }

    /// Like [`Self::attach`], to a new device with the next number. A process that has a node or a descriptor of
    /// another device cannot reach this file. On errors the new device is removed. `LOOP_CTL_ADD`, Linux 3.1.
    pub fn attach_next(&self, numbers: &Numbers, backing: impl AsFd, config: &Config) -> Result<Device, AttachError> {
        let backing = backing.as_fd();
        config.check()?;
        check(backing, config)?;
        let mut patience = Patience::new(self.limit);
        let mut number = self.create_next(numbers)?;
        loop {
            let lost = match claim(number, backing, config) {
                Ok(Claim::Won(device)) => return Ok(device),
                Ok(Claim::Lost(lost)) => lost,
                Err(error) => {
                    // Report the first error. An empty device harms no later call.
                    let _ = self.remove(number);
                    return Err(error);
                }
            };
            if let Err(error) = patience.wait(number, lost) {
                let _ = self.remove(number);
                return Err(error);
            }
            // Another process requested any free device and got this one.
            if lost == Loss::Taken {
                number = self.create_next(numbers)?;
            }
        }
    }

    /// Creates a device with the next number and attaches nothing. [`Numbers::after_existing`] of the next process
    /// continues after it.
    ///
    /// # Errors
    /// [`AttachError::Create`]; [`AttachError::NoFree`] if devices of all numbers exist.
    pub fn create_next(&self, numbers: &Numbers) -> Result<Number, AttachError> {
        for _ in Numbers::FIRST..=Numbers::LAST {
            let number = numbers.take();
            match sys::add(self.fd.as_fd(), number.to_kernel()) {
                Ok(()) => return Ok(number),
                Err(Errno::EEXIST) => {}
                // With `max_part`, the kernel has fewer numbers.
                Err(Errno::EINVAL) if number.get() > Numbers::FIRST => numbers.wrap(number),
                Err(source) => return Err(AttachError::Create { number, source }),
            }
        }
        Err(AttachError::NoFree(Errno::ENOSPC))
    }

    /// Removes a device that is not attached and that no process has open; succeeds if the device does not exist. Nodes
    /// and descriptors with `O_PATH` do not prevent the removal. Opening a node of a removed device creates the device
    /// again, except for numbers from the driver's parameter `max_loop` on. `LOOP_CTL_REMOVE`, Linux 3.1.
    pub fn remove(&self, number: Number) -> Result<Removal, RemoveError> {
        match sys::remove(self.fd.as_fd(), number.to_kernel()) {
            Ok(()) | Err(Errno::ENODEV) => Ok(Removal::Removed),
            Err(Errno::EBUSY) => Ok(Removal::InUse),
            Err(source) => Err(RemoveError { number, source }),
        }
    }

    fn free(&self) -> Result<Number, AttachError> {
        let number = sys::get_free(self.fd.as_fd()).map_err(AttachError::NoFree)?;
        Number::from_kernel(number).ok_or(AttachError::NoFree(Errno::ERANGE))
    }
}

/// Result of a removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use = "a device that some process has open still exists"]
pub enum Removal {
    /// The device does not exist.
    Removed,
    /// A file is attached to the device, or some process has the device open.
    InUse,
}

/// Time limit and pauses of an attach that lost a device.
struct Patience {
    limit: Duration,
    begin: Instant,
    pause: Duration,
}

impl Patience {
    fn new(limit: Duration) -> Self {
        Self { limit, begin: Instant::now(), pause: PAUSES[0] }
    }

    /// Pauses before the next attempt. Fails after the time limit.
    fn wait(&mut self, number: Number, lost: Loss) -> Result<(), AttachError> {
        let waited = self.begin.elapsed();
        if waited > self.limit {
            return Err(match lost {
                Loss::NoNode => AttachError::NoNode { number },
                Loss::Taken => AttachError::Contended { number, waited },
            });
        }
        thread::sleep(self.pause);
        self.pause = PAUSES[1].min(self.pause * 2);
        Ok(())
    }
}

enum Claim {
    Won(Device),
    Lost(Loss),
}

/// Reason why a free device cannot be attached any more.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Loss {
    /// Another process has taken or removed the device.
    Taken,
    /// The node of the device is missing, perhaps not for long.
    NoNode,
}

/// Checks that `file` supports a device of this configuration. Otherwise the kernel would silently create a read-only
/// device, fail at the first read, or write to the wrong place.
fn check(file: BorrowedFd<'_>, config: &Config) -> Result<(), BackingError> {
    let flags = fcntl(file, FcntlArg::F_GETFL).map_err(BackingError::system("F_GETFL"))?;
    let flags = OFlag::from_bits_retain(flags);
    if flags.contains(OFlag::O_PATH) {
        return Err(BackingError::PathOnly);
    }
    let access = flags & OFlag::O_ACCMODE;
    let backing = Backing::of(file)?;
    if access == OFlag::O_WRONLY {
        return Err(BackingError::NotReadable);
    }
    if access == OFlag::O_RDONLY && !config.read_only {
        return Err(BackingError::NotWritable);
    }
    if flags.contains(OFlag::O_APPEND) && !config.read_only {
        return Err(BackingError::Appending);
    }
    if let Backing::Device(device) = backing
        && device.major == sys::MAJOR
        && sys::status(file).err() == Some(Errno::ENXIO)
    {
        return Err(BackingError::Detached { device });
    }
    Ok(())
}

/// Attaches the file to this device, if it is still free.
fn claim(number: Number, backing: BorrowedFd<'_>, config: &Config) -> Result<Claim, AttachError> {
    // O_EXCL: the losers of a race do not open the device, because an open device defers a detach by the winner. (A
    // loser that opens the device after the winner has finished defers a detach for a moment.)
    let access = if config.read_only { OFlag::O_RDONLY } else { OFlag::O_RDWR };
    let path = number.path();
    let exclusive = match open(&path, access | OFlag::O_EXCL | OFlag::O_CLOEXEC, Mode::empty()) {
        Ok(exclusive) => exclusive,
        Err(Errno::EBUSY | Errno::ENXIO | Errno::ENODEV) => return Ok(Claim::Lost(Loss::Taken)),
        Err(Errno::ENOENT) => return Ok(Claim::Lost(Loss::NoNode)),
        Err(source) => return Err(DeviceError::Open { path, source }.into()),
    };
    // The caller's descriptor is not exclusive, so that the device can be mounted. It is opened before the attach, so
    // that nothing fails after the attach.
    let device = Device::of_node(exclusive.as_fd(), &path)?;
    if device.number() != number {
        return Err(AttachError::WrongNode { number, found: device.number() });
    }
    match sys::configure(exclusive.as_fd(), backing, config.kernel_block_size(), config.to_kernel()) {
        Ok(()) => Ok(Claim::Won(device)),
        Err(Errno::EBUSY) => Ok(Claim::Lost(Loss::Taken)),
        Err(source) => Err(attach_error(exclusive.as_fd(), backing, number, source)),
    }
}

/// The error for an errno of `LOOP_CONFIGURE`.
fn attach_error(device: BorrowedFd<'_>, file: BorrowedFd<'_>, number: Number, source: Errno) -> AttachError {
    if matches!(source, Errno::EINVAL | Errno::ENOTTY) && !sys::has_configure(device) {
        return AttachError::KernelTooOld;
    }
    match Backing::of(file) {
        Ok(backing) => AttachError::Configure { number, backing, source },
        Err(error) => error.into(),
    }
}
