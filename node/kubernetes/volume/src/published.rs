//! Finds the mounts of a volume in the kernel's table of mounts, which does not depend on the memory of any process.

use std::fs;
use std::os::fd::{AsFd, AsRawFd as _};
use std::path::{Path, PathBuf};

use dir::{Dir, OFlag};
use loopdev::{Attached, Backing, Device, Number};
use mount::Entry;

use crate::error::LookError;
use crate::image_file;

/// The mounts that show a volume's directory, a part of it, or a loop device on its image.
pub(crate) fn targets(volume: &Dir) -> Result<Vec<PathBuf>, LookError> {
    let (table, own) = (mount::table()?, mount::at(volume)?.mount);
    let path = fs::read_link(format!("/proc/self/fd/{}", volume.as_fd().as_raw_fd())).map_err(LookError::Path)?;
    // The table has the paths of directories from the root of their file system.
    let own = table.iter().find(|entry| entry.mount == own).ok_or(LookError::Hidden)?;
    let root = own.root.join(path.strip_prefix(&own.point).map_err(|_| LookError::Hidden)?);
    let shown = |entry: &&Entry| entry.device == own.device && entry.root.starts_with(&root);
    let found: Vec<_> = table.iter().filter(shown).map(|entry| entry.point.clone()).collect();
    if !found.is_empty() || image_file::size_in(volume)?.is_none() {
        return Ok(found);
    }
    let image = image_file::open(volume, OFlag::O_PATH)?;
    of_devices(&devices(Backing::of(image)?)?, &table)
}

/// Whether a loop device on the image is in use. A device whose detach waits for its last close is in use only if a
/// mount shows it: a pod can request the detach of its own device. Such a device is refreshed to the size of the image,
/// because a publish may revoke the detach.
pub(crate) fn is_attached(image: Backing) -> Result<bool, LookError> {
    let devices = devices(image)?;
    if devices.iter().any(|device| !device.status.config.autoclear) {
        return Ok(true);
    }
    if devices.is_empty() {
        return Ok(false);
    }
    let is_refreshed =
        |device: &Attached| Device::open(device.number.path()).is_ok_and(|device| device.refresh_size().is_ok());
    Ok(!of_devices(&devices, &mount::table()?)?.is_empty() || !devices.iter().all(is_refreshed))
}

fn devices(image: Backing) -> Result<Vec<Attached>, LookError> {
    Ok(loopdev::list()?.into_iter().filter(|device| device.status.backing == image).collect())
}

/// Mounts that show a node of these devices.
fn of_devices(devices: &[Attached], table: &[Entry]) -> Result<Vec<PathBuf>, LookError> {
    if devices.is_empty() {
        return Ok(Vec::new());
    }
    let dev = fs::File::open("/dev").map_err(LookError::Path)?;
    let dev = mount::identity(&dev)?.device;
    let shown =
        |entry: &&Entry| entry.device == dev && devices.iter().any(|device| is_node(&entry.root, device.number));
    Ok(table.iter().filter(shown).map(|found| found.point.clone()).collect())
}

/// Whether an entry of the table with this root is the node of the device.
fn is_node(root: &Path, device: Number) -> bool {
    root == Path::new("/").join(device.to_string())
}
