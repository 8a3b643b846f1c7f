//! The device or directory that a target shows.

use std::os::fd::OwnedFd;
use std::path::Path;

use dir::Name;
use loopdev::{Attached, Backing, DeviceNumber, FileId};
use mount::{Attributes, Kind};
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::fstat;
use units::Bytes;
use volume::VolumeId;

use super::{Image, Linux};
use crate::host::path::{HANDLE, resolve};
use crate::host::{LookError, PathContents, block};
use crate::plan::{Shape, Target};
use crate::request::TargetPath;

/// Flags for a directory whose project is read.
const READABLE: OFlag = OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_CLOEXEC);

impl Linux {
    /// Whether the mount at a target belongs to another volume that has a record. If no record exists, the volume was
    /// deleted.
    pub(super) fn is_anothers(&self, id: &VolumeId, parent: &OwnedFd, name: &Name) -> Result<bool, LookError> {
        let target = resolve(parent, Path::new(name.as_os_str()), HANDLE).map_err(LookError::Target)?;
        if mount::at(&target)?.kind == Kind::Directory {
            let readable = resolve(parent, Path::new(name.as_os_str()), READABLE).map_err(LookError::Target)?;
            return Ok(self.volumes.volume_of(readable)?.is_some_and(|holder| holder != *id));
        }
        let block::Node::Attached { backing, .. } = block::look(&target)? else { return Ok(false) };
        Ok(self.images()?.get(&backing).is_some_and(|holder| holder != id))
    }

    pub(super) fn at_target(
        &self,
        parent: &OwnedFd,
        name: &Name,
        volume: Option<&volume::Opened>,
        image: Option<&Image>,
    ) -> Result<Target, LookError> {
        let target = match resolve(parent, Path::new(name.as_os_str()), HANDLE) {
            Ok(target) => target,
            Err(Errno::ENOENT) => return Ok(Target::Absent),
            Err(errno) => return Err(LookError::Target(errno)),
        };
        let place = mount::at(&target)?;
        // Only the plugin mounts directories of the volumes' file system on targets.
        Ok(match (place.mounted, place.kind) {
            (None, Kind::Directory) => Target::Bare(Shape::Directory),
            (None, Kind::File) if place.size == 0 => Target::Bare(Shape::File),
            (None, _) => Target::Obstructed,
            (Some(attributes), Kind::Directory) => match volume {
                Some(volume) if image.is_none() && mount::identity(volume.dir())? == place.identity => {
                    Target::Published(attributes)
                }
                _ if self.disk()? == place.identity.device => Target::OtherVolume,
                _ => Target::Foreign,
            },
            (Some(attributes), Kind::BlockDevice(major, minor)) => match self.node(&target, major, minor)? {
                // The device determines whether writes are possible, whatever the flags of the mount are.
                block::Node::Attached { backing, read_only, .. }
                    if image.is_some_and(|image| image.backing == backing) =>
                {
                    Target::Published(Attributes { read_only, ..attributes })
                }
                block::Node::Attached { backing: Backing::File(FileId { device: on, .. }), .. }
                    if (on.major, on.minor) == self.disk()? =>
                {
                    Target::OtherVolume
                }
                block::Node::Attached { .. } | block::Node::Gone => Target::Stale,
                block::Node::Other => Target::Foreign,
            },
            (Some(_), Kind::File | Kind::Link | Kind::Other) => Target::Foreign,
        })
    }

    fn node(&self, target: &OwnedFd, major: u32, minor: u32) -> Result<block::Node, LookError> {
        if let Some(status) = self.devices.status(DeviceNumber { major, minor })? {
            return Ok(status.into());
        }
        let node = block::look(target)?;
        if let block::Node::Attached { backing, .. } = node {
            self.devices.note_unheld(backing);
        }
        Ok(node)
    }

    /// Whether another target shows a device. A known target is checked at its path. If it does not show the device,
    /// the mount table decides, which also has mounts that other mounts hide.
    pub(super) fn is_shared(&self, device: &Attached, target: &TargetPath) -> Result<bool, LookError> {
        match self.devices.target_besides(device.number, target.full()) {
            Some(None) => return Ok(false),
            Some(Some(other)) if block::shows(&other, device.dev) => return Ok(true),
            Some(Some(_)) | None => {}
        }
        let nodes = block::Nodes::look()?;
        self.devices.set_targets(device.number, nodes.targets_of(device.number, &self.kubelet).collect());
        Ok(nodes.has_targets(device.number, &self.kubelet, Some(target)))
    }
}

/// The image and the device of a block volume whose node is, or was, at this path.
pub(super) fn seen_block(parent: &OwnedFd, name: &Name, image: &Image) -> Result<PathContents, LookError> {
    let stat = fstat(&image.file).map_err(LookError::Size)?;
    let size = Bytes::new(u64::try_from(stat.st_size).unwrap_or_default());
    let node = resolve(parent, Path::new(name.as_os_str()), HANDLE).map_err(LookError::Target)?;
    let device = match block::look(&node)? {
        block::Node::Attached { backing, device, .. } if backing == image.backing => Some(device),
        _ => None,
    };
    Ok(PathContents::Block { image: size, device })
}
