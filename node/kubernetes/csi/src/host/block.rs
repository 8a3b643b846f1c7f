//! Images of volumes: loop devices, whose nodes are mounted on files.
//!
//! The kernel defines the devices of a volume and the mounts of their nodes; nothing is cached. A device whose detach
//! waits for the last process that has it open (the flag AUTOCLEAR) belongs to the volume until then: a second device
//! on the image would have a separate cache.

use std::fs;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use dir::{Dir, Name};
use loopdev::{
    Attached, Backing, BlockSize, Config, Control, Detach, Device, DeviceError, DeviceNumber, Number, Numbers, Status,
    StatusError,
};
use mount::{Attributes, Detached, Entry, Kind};
use nix::sys::stat::{fstat, major, minor};
use tracing::{info, warn};
use units::Bytes;
use volume::VolumeId;

use super::path::{DIRECTORY, HANDLE, open};
use super::{ActError, LookError, LoopDevice};
use crate::layout::{MAPS, matches};
use crate::request::TargetPath;

/// The numbers of a device, which are not used again while it is open.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeviceId {
    pub(super) number: Number,
    pub(super) dev: DeviceNumber,
}

impl DeviceId {
    pub(super) fn of(device: &Device) -> Self {
        Self { number: device.number(), dev: device.dev() }
    }
}

/// The loop device of a device node.
pub(super) enum Node {
    Attached {
        backing: Backing,
        read_only: bool,
        device: LoopDevice,
    },
    /// A detached loop device.
    Gone,
    /// Not a loop device.
    Other,
}

impl From<Status> for Node {
    fn from(status: Status) -> Self {
        Self::Attached {
            backing: status.backing,
            read_only: status.config.read_only,
            device: LoopDevice { size: status.size, direct_io: status.config.direct_io },
        }
    }
}

pub(super) fn look(node: impl AsFd) -> Result<Node, LookError> {
    let device = match Device::from_node(node) {
        Ok(device) => device,
        Err(DeviceError::NotLoopDevice { .. }) => return Ok(Node::Other),
        Err(DeviceError::Gone { .. }) => return Ok(Node::Gone),
        Err(error) => return Err(error.into()),
    };
    match device.status() {
        Ok(status) => Ok(status.into()),
        Err(StatusError::NotAttached { .. }) => Ok(Node::Gone),
        Err(error) => Err(error.into()),
    }
}

/// Whether a mount at this path shows a device.
pub(super) fn shows(path: &Path, device: DeviceNumber) -> bool {
    let shown = open(path, HANDLE).ok().and_then(|node| mount::at(&node).ok());
    shown.is_some_and(|place| place.mounted.is_some() && place.kind == Kind::BlockDevice(device.major, device.minor))
}

/// The devices that are attached to a file. Opens each attached device for a moment.
pub(super) fn devices(image: Backing) -> Result<Vec<Attached>, LookError> {
    let mut found = loopdev::list()?;
    found.retain(|device| device.status.backing == image);
    Ok(found)
}

/// The mounts that show nodes of devices.
pub(super) struct Nodes {
    table: Vec<Entry>,
    /// Device number of the file system of `/dev`.
    dev: (u32, u32),
}

impl Nodes {
    pub(super) fn look() -> Result<Self, LookError> {
        let dev = open(Path::new("/dev"), DIRECTORY).map_err(LookError::Dev)?;
        Ok(Self { table: mount::table()?, dev: mount::identity(&dev)?.device })
    }

    /// The mounts beneath a directory that show nodes of devices.
    fn beneath<'a>(&'a self, directory: &'a Path) -> impl Iterator<Item = (Number, &'a Path)> {
        let shown = move |entry: &'a Entry| {
            let point = entry.point.as_path();
            let is_beneath = entry.device == self.dev && point != directory && point.starts_with(directory);
            if is_beneath { Some((number(&entry.root)?, point)) } else { None }
        };
        self.table.iter().filter_map(shown)
    }

    /// The targets of all devices, without the mounts of the kubelet itself.
    pub(super) fn targets<'a>(&'a self, kubelet: &'a Path) -> impl Iterator<Item = (Number, &'a Path)> {
        let map = move |point: &Path| point.strip_prefix(kubelet).is_ok_and(|beneath| matches(beneath, MAPS));
        self.beneath(kubelet).filter(move |(_, point)| !map(point))
    }

    pub(super) fn targets_of<'a>(&'a self, device: Number, kubelet: &'a Path) -> impl Iterator<Item = &'a Path> {
        self.targets(kubelet).filter_map(move |(shown, point)| (shown == device).then_some(point))
    }

    pub(super) fn has_targets(&self, device: Number, kubelet: &Path, but: Option<&TargetPath>) -> bool {
        self.targets_of(device, kubelet).any(|point| but.is_none_or(|target| point != target.full()))
    }

    pub(super) fn show(&self, device: Number, kubelet: &Path) -> bool {
        self.beneath(kubelet).any(|(shown, _)| shown == device)
    }
}

/// The device whose node is the root of a mount in the table, even if the node was removed (`//deleted`).
fn number(root: &Path) -> Option<Number> {
    let named = |path: &Path| path.file_name()?.to_str()?.parse().ok();
    if root.ends_with("deleted") { named(root.parent()?) } else { named(root) }
}

/// Attaches an image to a device with the next number, with direct I/O. An error leaves no device behind.
/// `disk_blocks` is the disk's block size: the kernel disables direct I/O of a device with smaller blocks.
pub(super) fn attach(
    numbers: &Numbers,
    image: BorrowedFd<'_>,
    read_only: bool,
    disk_blocks: Option<u32>,
) -> Result<Device, ActError> {
    const SECTOR: u32 = 512;
    let block_size = disk_blocks.filter(|size| *size > SECTOR).and_then(|size| BlockSize::new(size).ok());
    let config = Config { direct_io: true, read_only, block_size, ..Config::default() };
    let device = Control::open()?.attach_next(numbers, image, &config)?;
    if !device.config().is_ok_and(|config| config.direct_io) {
        warn!(device = %device.number(), "the disk does not support direct I/O; the volume's data is cached twice");
    }
    Ok(device)
}

/// The size of the logical blocks of the disk that a file is on. `None` if the file system has no disk that sysfs
/// shows.
pub(super) fn disk_blocks(image: BorrowedFd<'_>) -> Option<u32> {
    let disk = fstat(image).ok()?.st_dev;
    let disk = PathBuf::from(format!("/sys/dev/block/{}:{}", major(disk), minor(disk)));
    // A partition is a directory of its disk, which has the queue.
    let mut queues = ["queue", "../queue"].into_iter().map(|queue| disk.join(queue).join("logical_block_size"));
    let text = queues.find_map(|path| fs::read_to_string(path).ok())?;
    text.trim().parse().ok()
}

/// Opens a device that is still attached to this file.
pub(super) fn reopen(number: Number, backing: Backing) -> Result<Device, ActError> {
    let device = match Device::open(number.path()) {
        Err(DeviceError::Gone { .. } | DeviceError::NotFound { .. }) => return Err(ActError::DeviceGone),
        other => other?,
    };
    match device.status() {
        Ok(status) if status.backing == backing => Ok(device),
        Ok(_) | Err(StatusError::NotAttached { .. }) => Err(ActError::DeviceGone),
        Err(error) => Err(error.into()),
    }
}

/// Mounts the node of a device on a file. The caller holds the device, so that no other device gets its numbers.
pub(super) fn bind(device: DeviceId, parent: &Dir, name: &Name, attributes: Attributes) -> Result<(), ActError> {
    let node = open(&device.number.path(), HANDLE).map_err(|_| ActError::Node)?;
    if mount::at(&node)?.kind != Kind::BlockDevice(device.dev.major, device.dev.minor) {
        return Err(ActError::Node);
    }
    let mount = Detached::clone_of(&node)?;
    mount.set(attributes)?;
    Ok(mount.attach_at(parent, name.as_os_str())?)
}

/// Detaches a device from this file only. Idempotent.
pub(super) fn detach(device: Device, backing: Backing, volume: &VolumeId) -> Result<Detach, ActError> {
    let number = device.number();
    match device.detach_from(backing) {
        Ok(Detach::Detached) => info!(%volume, device = %number, "loop device detached"),
        Ok(Detach::Deferred) => {
            info!(%volume, device = %number, "loop device in use, the kernel detaches it at its last close");
            return Ok(Detach::Deferred);
        }
        // Another process detached the device.
        Err(loopdev::DetachError::NotAttached { .. } | loopdev::DetachError::OtherBacking { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(Detach::Detached)
}

/// Refreshes the size of the devices. Returns the smallest.
pub(super) fn grow(devices: &[Attached]) -> Result<Option<Bytes>, ActError> {
    let mut smallest = None;
    for seen in devices {
        let device = match Device::open(seen.number.path()) {
            Err(DeviceError::Gone { .. } | DeviceError::NotFound { .. }) => continue,
            other => other?,
        };
        match device.backing() {
            Ok(backing) if backing == seen.status.backing => {}
            Ok(_) | Err(StatusError::NotAttached { .. }) => continue,
            Err(error) => return Err(error.into()),
        }
        let size = device.refresh_size()?;
        smallest = Some(smallest.map_or(size, |least: Bytes| least.min(size)));
    }
    Ok(smallest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mount_table_names_devices_also_removed_ones() {
        let device: Number = "loop7".parse().expect("a name");
        for root in ["/loop7", "/loop7//deleted"] {
            assert_eq!(number(Path::new(root)), Some(device), "{root}");
        }
        for root in ["/loop70", "/loop", "/", "/loop7p1", "/loop8//deleted", "/deleted", "/loop7/x"] {
            assert_ne!(number(Path::new(root)), Some(device), "{root}");
        }
    }
}
