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

/// How long others may take each free device before it is given up.
const LIMIT: Duration = Duration::from_secs(10);
/// Pauses between the attempts, doubled from the first to the last.
const PAUSES: [Duration; 2] = [Duration::from_micros(100), Duration::from_millis(10)];

/// The driver, `/dev/loop-control`.
#[derive(Debug)]
pub struct Control(OwnedFd);

impl Control {
    /// Opens the driver.
    ///
    /// # Errors
    /// [`OpenError::NoDriver`] without the module `loop`.
    ///
    /// Linux 3.1.
    pub fn open() -> Result<Self, OpenError> {
        open("/dev/loop-control", OFlag::O_RDWR | OFlag::O_CLOEXEC, Mode::empty()).map(Self).map_err(
            |errno| match errno {
                Errno::ENOENT | Errno::ENODEV | Errno::ENXIO => OpenError::NoDriver,
                Errno::EACCES | Errno::EPERM => OpenError::NotPermitted,
                source => OpenError::System(source),
            },
        )
    }

    /// Attaches a file to a device that nothing was attached to, and opens it. The device has all of
    /// `config` from its first moment; [`Device::config`] says what the kernel made of it.
    ///
    /// The kernel keeps a reference of its own to `backing`, which the caller may close. Nothing stops a
    /// file from being attached twice: look at [`list`](crate::list) first.
    ///
    /// When another process takes the free device first, the next one is tried, for ten seconds at most.
    ///
    /// # Errors
    /// [`AttachError`]; no device is attached then, and no descriptor left.
    ///
    /// `LOOP_CTL_GET_FREE` and one `LOOP_CONFIGURE`, Linux 5.8.
    pub fn attach(&self, backing: impl AsFd, config: &Config) -> Result<Device, AttachError> {
        let backing = backing.as_fd();
        config.check()?;
        backing::check(backing, config)?;
        let mut patience = Patience::new();
        loop {
            let number = self.free()?;
            match claim(number, backing, config)? {
                Claim::Won(device) => return Ok(device),
                Claim::Lost(lost) => patience.wait(number, lost)?,
            }
        }
    }

    /// As [`Self::attach`], to a new device with the next number, never to one that exists. A process that has
    /// a node or a descriptor of another device, whatever it was attached to before, cannot reach this file.
    ///
    /// # Errors
    /// As [`Self::attach`]. The new device is removed then.
    ///
    /// `LOOP_CTL_ADD`, Linux 3.1.
    pub fn attach_next(&self, numbers: &Numbers, backing: impl AsFd, config: &Config) -> Result<Device, AttachError> {
        let backing = backing.as_fd();
        config.check()?;
        backing::check(backing, config)?;
        let mut patience = Patience::new();
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

    /// Creates a device with the next number and attaches nothing to it. As the highest device of the machine it
    /// is where [`Numbers::after_existing`] goes on in the next process.
    ///
    /// # Errors
    /// [`AttachError::Create`]; [`AttachError::NoFree`] if a device of every number exists.
    pub fn create_next(&self, numbers: &Numbers) -> Result<Number, AttachError> {
        for _ in Numbers::FIRST..=Numbers::LAST {
            let number = numbers.take();
            match sys::add(self.0.as_fd(), number.to_kernel()) {
                Ok(()) => return Ok(number),
                Err(Errno::EEXIST) => {}
                // With `max_part`.
                Err(Errno::EINVAL) if number.get() > Numbers::FIRST => numbers.wrap(number),
                Err(source) => return Err(AttachError::Create { number, source }),
            }
        }
        Err(AttachError::NoFree(Errno::ENOSPC))
    }

    /// Removes a device that nothing is attached to and that no process has open. One that does not exist is no
    /// error. A descriptor with `O_PATH` and a node are no users: with the driver's parameter `max_loop`, opening
    /// a node of a removed device with a larger number fails; without it, the open creates the device again.
    ///
    /// `LOOP_CTL_REMOVE`, Linux 3.1.
    pub fn remove(&self, number: Number) -> Result<Removal, RemoveError> {
        match sys::remove(self.0.as_fd(), number.to_kernel()) {
            Ok(()) | Err(Errno::ENODEV) => Ok(Removal::Removed),
            Err(Errno::EBUSY) => Ok(Removal::InUse),
            Err(source) => Err(RemoveError { number, source }),
        }
    }

    fn free(&self) -> Result<Number, AttachError> {
        let number = sys::get_free(self.0.as_fd()).map_err(AttachError::NoFree)?;
        Number::from_kernel(number).ok_or(AttachError::NoFree(Errno::ERANGE))
    }
}

/// What became of a device that was to be removed.
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
    begin: Instant,
    pause: Duration,
}

impl Patience {
    fn new() -> Self {
        Self { begin: Instant::now(), pause: PAUSES[0] }
    }

    /// Pauses before the next attempt.
    fn wait(&mut self, number: Number, lost: Lost) -> Result<(), AttachError> {
        let waited = self.begin.elapsed();
        if waited > LIMIT {
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
    /// It is somebody else's, or was removed.
    Taken,
    /// Its node is not there, or not yet.
    NoNode,
}

/// Attaches the file to this device, if it is still free.
fn claim(number: Number, backing: BorrowedFd<'_>, config: &Config) -> Result<Claim, AttachError> {
    // Who does not get it exclusively does not have it open at all: an opener more would turn a detach
    // by the winner into a deferred one. (Who comes when the winner is done already does, for a moment.)
    let access = if config.read_only { OFlag::O_RDONLY } else { OFlag::O_RDWR };
    let path = number.path();
    let exclusive = match open(&path, access | OFlag::O_EXCL | OFlag::O_CLOEXEC, Mode::empty()) {
        Ok(exclusive) => exclusive,
        Err(Errno::EBUSY | Errno::ENXIO | Errno::ENODEV) => return Ok(Claim::Lost(Lost::Taken)),
        Err(Errno::ENOENT) => return Ok(Claim::Lost(Lost::NoNode)),
        Err(source) => return Err(DeviceError::Open { path, source }.into()),
    };
    // What the caller gets: not exclusive, so that it can be mounted. Opened before, so that nothing can
    // fail once the file is attached.
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

/// What an errno of `LOOP_CONFIGURE` means for this file.
fn refusal(device: BorrowedFd<'_>, file: BorrowedFd<'_>, number: Number, source: Errno) -> AttachError {
    if matches!(source, Errno::EINVAL | Errno::ENOTTY) && !sys::has_configure(device) {
        return AttachError::KernelTooOld;
    }
    match Backing::of(file) {
        Ok(backing) => AttachError::Configure { number, backing, source },
        Err(error) => error.into(),
    }
}
