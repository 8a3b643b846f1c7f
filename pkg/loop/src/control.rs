//! Attaching files to devices.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;

use crate::backing::{self, Backing};
use crate::config::Config;
use crate::device::Device;
use crate::error::{AttachError, DeviceError, OpenError, RemoveError};
use crate::number::Number;
use crate::numbers::Numbers;
use crate::sys;

/// Default of [`Control::with_limit`].
const LIMIT: Duration = Duration::from_secs(10);
/// Pauses between the attempts, doubled from the first to the last.
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

    /// Limits the time of an attach while other processes take each free device; 10 seconds by default.
    #[must_use]
    pub fn with_limit(self, limit: Duration) -> Self {
        Self { limit, ..self }
    }

    /// Attaches a file to a free device with all of `config` at once, and opens the device. [`Device::config`] returns
    /// the actual configuration. If another process takes the free device first, the next one is tried, see
    /// [`Self::with_limit`].
    ///
    /// The kernel keeps its own reference to `backing`. A file can be attached twice: check [`list`](crate::list)
    /// first.
    ///
    /// `LOOP_CTL_GET_FREE` and one `LOOP_CONFIGURE`, Linux 5.8. On errors no device is attached.
    pub fn attach(&self, backing: impl AsFd, config: &Config) -> Result<Device, AttachError> {
        let backing = backing.as_fd();
        config.check()?;
        backing::check(backing, config)?;
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
        backing::check(backing, config)?;
        let mut patience = Patience::new(self.limit);
        let mut number = self.create_next(numbers)?;
        loop {
            let lost = match claim(number, backing, config) {
                Ok(Claim::Won(device)) => return Ok(device),
                Ok(Claim::Lost(lost)) => lost,
                Err(error) => {
                    // The error that matters is the first one; an empty device harms no later call.
                    let _ = self.remove(number);
                    return Err(error);
                }
            };
            if let Err(error) = patience.wait(number, lost) {
                let _ = self.remove(number);
                return Err(error);
            }
            // A program that asked for any free device has this one.
            if lost == Lost::Taken {
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
                // With `max_part`.
                Err(Errno::EINVAL) if number.get() > Numbers::FIRST => numbers.wrap(number),
                Err(source) => return Err(AttachError::Create { number, source }),
            }
        }
        Err(AttachError::NoFree(Errno::ENOSPC))
    }

    /// Removes a device that is not attached and that no process has open; succeeds if it does not exist. Descriptors
    /// with `O_PATH` and nodes do not count: opening a node of a removed device creates the device again, except for
    /// numbers above the driver's parameter `max_loop`. `LOOP_CTL_REMOVE`, Linux 3.1.
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
    /// It does not exist.
    Removed,
    /// A file is attached to it, or some process has it open.
    InUse,
}

/// How long an attach goes on after it lost a device.
struct Patience {
    limit: Duration,
    begin: Instant,
    pause: Duration,
}

impl Patience {
    fn new(limit: Duration) -> Self {
        Self { limit, begin: Instant::now(), pause: PAUSES[0] }
    }

    /// Pauses before the next attempt.
    fn wait(&mut self, number: Number, lost: Lost) -> Result<(), AttachError> {
        let waited = self.begin.elapsed();
        if waited > self.limit {
            return Err(match lost {
                Lost::NoNode => AttachError::NoNode { number },
                Lost::Taken => AttachError::Contended { number, waited },
            });
        }
        thread::sleep(self.pause);
        self.pause = PAUSES[1].min(self.pause * 2);
        Ok(())
    }
}

enum Claim {
    Won(Device),
    Lost(Lost),
}

/// Why a device that was free is not any more.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lost {
    /// Another process has it, or it was removed.
    Taken,
    /// Its node is not there, or not yet.
    NoNode,
}

/// Attaches the file to this device, if it is still free.
fn claim(number: Number, backing: BorrowedFd<'_>, config: &Config) -> Result<Claim, AttachError> {
    // O_EXCL: the losers of a race do not open the device, because that would defer a detach by the winner. (One that
    // opens it after the winner has finished does, for a moment.)
    let access = if config.read_only { OFlag::O_RDONLY } else { OFlag::O_RDWR };
    let path = number.path();
    let exclusive = match open(&path, access | OFlag::O_EXCL | OFlag::O_CLOEXEC, Mode::empty()) {
        Ok(exclusive) => exclusive,
        Err(Errno::EBUSY | Errno::ENXIO | Errno::ENODEV) => return Ok(Claim::Lost(Lost::Taken)),
        Err(Errno::ENOENT) => return Ok(Claim::Lost(Lost::NoNode)),
        Err(source) => return Err(DeviceError::Open { path, source }.into()),
    };
    // For the caller, not exclusive, so that it can be mounted. Opened first, so that nothing fails after the attach.
    let device = Device::of_node(exclusive.as_fd(), &path)?;
    if device.number() != number {
        return Err(AttachError::WrongNode { number, found: device.number() });
    }
    match sys::configure(exclusive.as_fd(), backing, config.kernel_block_size(), config.to_kernel()) {
        Ok(()) => Ok(Claim::Won(device)),
        Err(Errno::EBUSY) => Ok(Claim::Lost(Lost::Taken)),
        Err(source) => Err(refusal(exclusive.as_fd(), backing, number, source)),
    }
}

/// The error for an errno of `LOOP_CONFIGURE`.
fn refusal(device: BorrowedFd<'_>, file: BorrowedFd<'_>, number: Number, source: Errno) -> AttachError {
    if matches!(source, Errno::EINVAL | Errno::ENOTTY) && !sys::has_configure(device) {
        return AttachError::KernelTooOld;
    }
    match Backing::of(file) {
        Ok(backing) => AttachError::Configure { number, backing, source },
        Err(error) => error.into(),
    }
}
