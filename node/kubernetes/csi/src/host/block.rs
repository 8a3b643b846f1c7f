//! Images of volumes: loop devices, whose nodes are mounted on files.
//!
//! Which devices are a volume's, and who shows their nodes, is what the kernel says now: nothing is remembered. A
//! device on its way out (its detach waits for the last who has it open, as the kernel marks it) is nobody's any more.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use dir::{Dir, Name};
use loopdev::{Attached, Backing, BlockSize, Config, Control, Detach, Device, DeviceError, Number, StatusError};
use mount::{Attributes, Detached, Entry, Kind};
use nix::fcntl::OFlag;
use tracing::{info, warn};
use units::Bytes;
use volume::VolumeId;

use super::linux::{DIRECTORY, HANDLE, open, resolve};
use super::{ActError, GrowError, LookError, LoopDevice};
use crate::layout::{MAPS, matches};
use crate::request::TargetPath;

/// What a node of a loop device shows.
pub(super) enum Node {
    /// An attached device.
    Attached { backing: Backing, read_only: bool, device: LoopDevice },
    /// A loop device without a file, or one that will have none as soon as nobody has it open.
    Gone,
    /// No loop device.
    Other,
}

/// What the node that `node` stands on shows.
pub(super) fn look(node: impl AsFd) -> Result<Node, LookError> {
    let device = match Device::from_node(node) {
        Ok(device) => device,
        Err(DeviceError::NotLoopDevice { .. }) => return Ok(Node::Other),
        Err(DeviceError::Gone { .. }) => return Ok(Node::Gone),
        Err(error) => return Err(error.into()),
    };
    let status = match device.status() {
        Ok(status) if status.config.autoclear => return Ok(Node::Gone),
        Ok(status) => status,
        Err(StatusError::NotAttached { .. }) => return Ok(Node::Gone),
        Err(error) => return Err(error.into()),
    };
    Ok(Node::Attached {
        backing: status.backing,
        read_only: status.config.read_only,
        device: LoopDevice { size: status.size, direct_io: status.config.direct_io },
    })
}

/// The devices that stand on a file. Opens every attached device for a moment.
pub(super) fn devices(image: Backing) -> Result<Vec<Attached>, LookError> {
    let mut found = loopdev::list()?;
    found.retain(|device| device.status.backing == image && !device.status.config.autoclear);
    Ok(found)
}

/// The mounts that show nodes of devices.
pub(super) struct Nodes {
    table: Vec<Entry>,
    /// The file system of `/dev`.
    dev: (u32, u32),
}

impl Nodes {
    /// Reads the table of all mounts.
    pub(super) fn look() -> Result<Self, LookError> {
        let dev = open(Path::new("/dev"), DIRECTORY).map_err(LookError::Dev)?;
        Ok(Self { table: mount::table()?, dev: mount::identity(&dev)?.device })
    }

    /// Where the node of a device is mounted beneath a directory.
    fn of<'a>(&'a self, device: Number, beneath: &'a Path) -> impl Iterator<Item = &'a Path> {
        let shows = move |entry: &&Entry| entry.device == self.dev && is_node(&entry.root, device);
        let points = self.table.iter().filter(shows).map(|entry| entry.point.as_path());
        points.filter(move |point| *point != beneath && point.starts_with(beneath))
    }

    /// Whether another target than this shows the node of a device. What kubelet mounted itself is none: it goes with
    /// its target.
    pub(super) fn has_targets(&self, device: Number, kubelet: &Path, but: Option<&TargetPath>) -> bool {
        let own = |point: &Path| but.is_some_and(|target| point == target.full());
        let map = |point: &Path| point.strip_prefix(kubelet).is_ok_and(|beneath| matches(beneath, MAPS));
        self.of(device, kubelet).any(|point| !own(point) && !map(point))
    }
}

/// Whether this is what the table says of a device's node, also if the node was removed since.
fn is_node(root: &Path, device: Number) -> bool {
    let name = device.to_string();
    let named = |path: &Path| path.file_name().is_some_and(|found| found == name.as_str());
    named(root) || root.ends_with("deleted") && root.parent().is_some_and(named)
}

/// Attaches an image, with direct I/O. What fails leaves no device behind.
pub(super) fn attach(image: BorrowedFd<'_>, read_only: bool, kubelet: &Path) -> Result<Device, ActError> {
    let device = attach_direct(image, read_only)?;
    if let Err(error) = uncover(device.number(), kubelet) {
        let number = device.number();
        if let Err(reason) = device.detach(image) {
            warn!(device = %number, error = &reason as &dyn std::error::Error, "loop device stays attached");
        }
        return Err(error.into());
    }
    Ok(device)
}

fn attach_direct(image: BorrowedFd<'_>, read_only: bool) -> Result<Device, ActError> {
    let is_direct = |device: &Device| device.config().is_ok_and(|config| config.direct_io);
    let driver = Control::open()?;
    let config = Config { direct_io: true, read_only, ..Config::default() };
    let device = driver.attach(image, &config)?;
    if is_direct(&device) {
        return Ok(device);
    }
    // The disk's blocks are larger than a sector.
    let _ = device.detach(image)?;
    let blocks = BlockSize::new(4096).map_err(loopdev::AttachError::Config)?;
    let device = driver.attach(image, &Config { block_size: Some(blocks), ..config })?;
    if !is_direct(&device) {
        warn!(device = %device.number(), "the disk has no direct I/O; the volume's data is cached twice");
    }
    Ok(device)
}

/// Takes away the mounts that still show the node of a device from when it was another's: they would show this one.
fn uncover(device: Number, kubelet: &Path) -> Result<(), LookError> {
    for point in Nodes::look()?.of(device, kubelet) {
        match mount::unmount(point) {
            Ok(()) => info!(target = %point.display(), %device, "stale node of a device unmounted"),
            Err(reason) => {
                let error: &dyn std::error::Error = &reason;
                warn!(target = %point.display(), %device, error, "stale node of a device stays");
            }
        }
    }
    Ok(())
}

/// Opens a device that was seen, if it still stands on this file.
pub(super) fn reopen(seen: &Attached) -> Result<Device, ActError> {
    let device = match Device::open(seen.number.path()) {
        Err(DeviceError::Gone { .. } | DeviceError::NotFound { .. }) => return Err(ActError::DeviceGone),
        other => other?,
    };
    match device.status() {
        Ok(status) if status.backing == seen.status.backing && !status.config.autoclear => Ok(device),
        Ok(_) | Err(StatusError::NotAttached { .. }) => Err(ActError::DeviceGone),
        Err(error) => Err(error.into()),
    }
}

/// Mounts the node of a device on a file. `device` is open, so that the number stays its own.
pub(super) fn bind(device: &Device, parent: &Dir, name: &Name, attributes: Attributes) -> Result<(), ActError> {
    let target = resolve(parent, Path::new(name.as_os_str()), OFlag::O_PATH | OFlag::O_CLOEXEC);
    let target = target.map_err(ActError::Open)?;
    let node = open(&device.path(), HANDLE).map_err(|_| ActError::Node)?;
    let number = device.dev();
    if mount::at(&node)?.kind != Kind::BlockDevice(number.major, number.minor) {
        return Err(ActError::Node);
    }
    let mount = Detached::clone_of(&node)?;
    mount.set(attributes)?;
    Ok(mount.attach(&target)?)
}

/// Detaches a device from this file and no other. Done already is done.
pub(super) fn detach(device: Device, backing: Backing, volume: &VolumeId) -> Result<(), ActError> {
    let number = device.number();
    match device.detach_from(backing) {
        Ok(Detach::Detached) => info!(%volume, device = %number, "loop device detached"),
        Ok(Detach::Deferred) => info!(%volume, device = %number, "loop device goes when its last user closes it"),
        // Somebody else was faster.
        Err(loopdev::DetachError::NotAttached { .. } | loopdev::DetachError::OtherBacking { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

/// Shows all these devices how large their file is. Returns the size of the smallest.
pub(super) fn grow(devices: &[Attached]) -> Result<Option<Bytes>, GrowError> {
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
    fn a_node_is_known_by_its_name_also_after_it_was_removed() {
        let device: Number = "loop7".parse().expect("a name");
        for root in ["/loop7", "/loop7//deleted"] {
            assert!(is_node(Path::new(root), device), "{root}");
        }
        for root in ["/loop70", "/loop", "/", "/loop7p1", "/loop8//deleted", "/deleted", "/loop7/x"] {
            assert!(!is_node(Path::new(root), device), "{root}");
        }
    }
}
