//! Where a volume is published: the kernel's table of mounts says it, whatever any process remembers.

use std::fs;
use std::os::fd::{AsFd, AsRawFd as _};
use std::path::{Path, PathBuf};

use dir::{Dir, OFlag};
use loopdev::{Backing, Number};
use mount::Entry;

use crate::error::LookError;
use crate::image;

/// The first mount that shows a volume's directory, a part of it, or a loop device on its image.
pub(crate) fn target(volume: &Dir) -> Result<Option<PathBuf>, LookError> {
    let (table, own) = (mount::table()?, mount::at(volume)?.mount);
    let path = fs::read_link(format!("/proc/self/fd/{}", volume.as_fd().as_raw_fd())).map_err(LookError::Path)?;
    // The table names directories from the root of their file system.
    let own = table.iter().find(|entry| entry.mount == own).ok_or(LookError::Hidden)?;
    let root = own.root.join(path.strip_prefix(&own.point).map_err(|_| LookError::Hidden)?);
    let shown = |entry: &&Entry| entry.device == own.device && entry.root.starts_with(&root);
    if let Some(found) = table.iter().find(shown) {
        return Ok(Some(found.point.clone()));
    }
    let devices = devices(volume)?;
    if devices.is_empty() {
        return Ok(None);
    }
    let dev = fs::File::open("/dev").map_err(LookError::Path)?;
    let dev = mount::identity(&dev)?.device;
    let shown = |entry: &&Entry| entry.device == dev && devices.iter().any(|device| is_node(&entry.root, *device));
    Ok(table.iter().find(shown).map(|found| found.point.clone()))
}

/// The loop devices that stand on the volume's image; none if it has no image.
fn devices(volume: &Dir) -> Result<Vec<Number>, LookError> {
    if image::size_in(volume)?.is_none() {
        return Ok(Vec::new());
    }
    let backing = Backing::of(volume.open_file(&image::name(), OFlag::O_PATH, dir::Mode::empty())?)?;
    let attached = loopdev::list()?.into_iter().filter(|device| device.status.backing == backing);
    Ok(attached.map(|device| device.number).collect())
}

/// Whether this is what the table says of a device's node.
fn is_node(root: &Path, device: Number) -> bool {
    root == Path::new("/").join(device.to_string())
}
