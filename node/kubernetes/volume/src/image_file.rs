//! Image of a block volume: the file with the bytes of its disk.

use std::os::fd::{AsFd, OwnedFd};
use std::thread::sleep;
use std::time::{Duration, Instant};

use dir::{Dir, Mode, Name, OFlag};
use loopdev::{Backing, Detach, DetachError, Device, DeviceError};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, FallocateFlags, fallocate};
use nix::libc;
use nix::sys::stat::{fstat, fstatat};
use nix::unistd::ftruncate;
use tracing::info;
use units::Bytes;

use crate::Allocation;
use crate::error::{ActError, LookError};
use crate::files::PRIVATE;

/// How long a process that only inspects a loop device may have it open, and the interval of the checks for its close.
const INSPECTION: Duration = Duration::from_millis(500);
const PAUSE: Duration = Duration::from_millis(5);

/// The image's name in the directory of its volume.
fn name() -> Name {
    Name::try_from("image").expect("it is a name")
}

pub(crate) fn open(dir: &Dir, flags: OFlag) -> Result<OwnedFd, dir::Error> {
    dir.open_file(&name(), flags, Mode::empty())
}

/// Creates the file of the image, or opens that of an earlier run.
pub(crate) fn create(dir: &Dir) -> Result<OwnedFd, dir::Error> {
    dir.open_file(&name(), OFlag::O_RDWR | OFlag::O_CREAT, PRIVATE)
}

/// Size of the image in a directory. `None` if the directory has no image.
pub(crate) fn size_in(dir: &Dir) -> Result<Option<Bytes>, LookError> {
    match fstatat(dir, name().as_os_str(), AtFlags::AT_SYMLINK_NOFOLLOW) {
        Ok(stat) if stat.st_mode & libc::S_IFMT == libc::S_IFREG => Ok(Some(length(stat.st_size))),
        Ok(_) | Err(Errno::ENOENT) => Ok(None),
        Err(errno) => Err(LookError::Image(errno)),
    }
}

/// Creates the image, or extends it if an earlier run did not.
pub(crate) fn make(dir: &Dir, size: Bytes, allocation: Allocation) -> Result<(), ActError> {
    extend(&create(dir)?, size, allocation)
}

/// Extends the image, also while it is in use. The new part reads as zeros.
pub(crate) fn grow(dir: &Dir, size: Bytes, allocation: Allocation) -> Result<(), ActError> {
    extend(&open(dir, OFlag::O_RDWR)?, size, allocation)
}

/// Only extents without data and the size change, and both go through the log. A later force of the log makes them
/// durable, without an fsync that would wait for the writes of a pod.
fn extend(image: &OwnedFd, size: Bytes, allocation: Allocation) -> Result<(), ActError> {
    let failed = |step| move |errno| ActError::Image { step, errno };
    let look = || fstat(image).map_err(failed("look at"));
    let before = look()?;
    let former = length(before.st_size);
    if former >= size {
        return Ok(());
    }
    let end = i64::try_from(size.get()).map_err(|_| failed("extend")(Errno::EFBIG))?;
    match allocation {
        Allocation::Thin => ftruncate(image, end).map_err(failed("extend"))?,
        Allocation::Thick => {
            let cut = || ftruncate(image, before.st_size).map_err(failed("truncate"));
            // The power failed between the transactions of an earlier allocation, and there are blocks behind the end.
            // XFS reserves quota for the whole request, including existing blocks. The quota has no space for both,
            // unless a pod has discarded as much.
            if length(before.st_blocks.saturating_mul(512)) > former {
                cut()?;
            }
            // The allocation begins at the former end, for the same reason.
            while let Err(errno) = allocate(image, former, size) {
                // XFS allocates in pieces, and sets the size last: after an error, the allocated pieces stay behind the
                // end.
                cut()?;
                if errno != Errno::EINTR {
                    return Err(failed("allocate")(errno));
                }
            }
        }
    }
    let found = length(look()?.st_size);
    if found == size { Ok(()) } else { Err(ActError::Short { found, wanted: size }) }
}

fn allocate(image: &OwnedFd, from: Bytes, to: Bytes) -> Result<(), Errno> {
    let more = to.saturating_sub(from);
    fallocate(image, FallocateFlags::empty(), from.get().cast_signed(), more.get().cast_signed())
}

/// Detaches every loop device from the image in a directory, after their data is written to the image.
///
/// # Errors
/// [`ActError::InUse`]: a process has a device open. The kernel detaches it when that process closes it.
pub(crate) fn detach_loops(dir: &Dir) -> Result<(), ActError> {
    let image = match open(dir, OFlag::O_PATH) {
        Ok(image) => image,
        Err(error) if error.is_not_found() => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    let backing = Backing::of(image.as_fd()).map_err(DetachError::from)?;
    let mut deferred = false;
    for attached in loopdev::list()?.into_iter().filter(|attached| attached.status.backing == backing) {
        let device = match Device::open(attached.number.path()) {
            Ok(device) => device,
            Err(DeviceError::NotFound { .. } | DeviceError::Gone { .. }) => continue,
            Err(error) => return Err(loopdev::ListError::from(error).into()),
        };
        match device.detach_from(backing) {
            Ok(Detach::Detached) => info!(device = %attached.number, "loop device detached"),
            Ok(Detach::Deferred) => deferred = true,
            // Another process detached it meanwhile.
            Err(DetachError::NotAttached { .. } | DetachError::OtherBacking { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    if deferred { wait_for_detach(backing) } else { Ok(()) }
}

/// Waits for processes that list all devices, for example for a metric, and have each of them open for a moment.
fn wait_for_detach(backing: Backing) -> Result<(), ActError> {
    let begin = Instant::now();
    loop {
        match loopdev::list()?.into_iter().find(|attached| attached.status.backing == backing) {
            None => return Ok(()),
            Some(_) if begin.elapsed() < INSPECTION => sleep(PAUSE),
            Some(attached) => return Err(ActError::InUse { device: attached.number }),
        }
    }
}

fn length(size: i64) -> Bytes {
    Bytes::new(u64::try_from(size).unwrap_or_default())
}
