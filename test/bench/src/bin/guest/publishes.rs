//! Operations of the CSI plugin, called like the kubelet calls them.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use csi::{Host as _, Linux, Operation, Publish, Stats, Unpublish};
use nix::mount::{MsFlags, umount};
use proto::csi::volume_capability::access_mode::Mode as AccessMode;
use proto::csi::volume_capability::{AccessMode as Access, AccessType, BlockVolume, MountVolume};
use proto::csi::{NodeGetVolumeStatsRequest, NodePublishVolumeRequest, NodeUnpublishVolumeRequest, VolumeCapability};
use volume::{Mode, VolumeId};

use crate::call::{CallError, arrange};
use crate::region::measured;
use crate::volumes;

const KUBELET: &str = "kubelet";

/// Mounts that exist during a measurement, all on one directory.
pub(crate) struct Mounted {
    place: PathBuf,
    mounts: u32,
}

impl Mounted {
    pub(crate) fn new(mount: &Path, mounts: u32) -> Result<Self, CallError> {
        let place = mount.join(KUBELET).join("other");
        fs::create_dir_all(&place).map_err(arrange("create", &place))?;
        for _ in 0..mounts {
            nix::mount::mount(Some(&place), &place, None::<&str>, MsFlags::MS_BIND, None::<&str>)
                .map_err(|errno| arrange("mount on", &place)(errno.into()))?;
        }
        Ok(Self { place, mounts })
    }

    pub(crate) fn unmount(self) -> Result<(), CallError> {
        let Self { place, mounts } = self;
        (0..mounts).try_for_each(|_| umount(&place).map_err(|errno| arrange("unmount", &place)(errno.into())))
    }
}

pub(crate) fn publish(mount: &Path, mode: Mode) -> Result<(), CallError> {
    Target::new(mount, mode, AccessMode::SingleNodeMultiWriter)?.publish()
}

pub(crate) fn publish_single(mount: &Path) -> Result<(), CallError> {
    Target::new(mount, volumes::filesystem(), AccessMode::SingleNodeSingleWriter)?.publish()
}

pub(crate) fn stats(mount: &Path) -> Result<(), CallError> {
    let target = Target::new(mount, volumes::filesystem(), AccessMode::SingleNodeMultiWriter)?;
    target.call::<Publish>(&target.wanted)?;
    let question = NodeGetVolumeStatsRequest {
        volume_id: target.wanted.volume_id.clone(),
        volume_path: target.wanted.target_path.clone(),
        ..NodeGetVolumeStatsRequest::default()
    };
    measured(|| target.call::<Stats>(&question))??;
    target.end()
}

pub(crate) fn unpublish(mount: &Path, mode: Mode) -> Result<(), CallError> {
    Target::new(mount, mode, AccessMode::SingleNodeMultiWriter)?.unpublish()
}

struct Target {
    mount: PathBuf,
    volume: VolumeId,
    kubelet: PathBuf,
    host: Linux,
    wanted: NodePublishVolumeRequest,
}

impl Target {
    /// Prepares a target at which the plugin has published and unpublished the volume once.
    fn new(mount: &Path, mode: Mode, access: AccessMode) -> Result<Self, CallError> {
        let (store, volume) = volumes::with_volume(mount, mode)?;
        let kubelet = mount.join(KUBELET);
        let wanted = NodePublishVolumeRequest {
            volume_id: volume.to_string(),
            target_path: kubelet.join("target").display().to_string(),
            volume_capability: Some(VolumeCapability {
                access_mode: Some(Access { mode: access.into() }),
                access_type: Some(if mode.is_block() {
                    AccessType::Block(BlockVolume {})
                } else {
                    AccessType::Mount(MountVolume::default())
                }),
            }),
            ..NodePublishVolumeRequest::default()
        };
        let host = Linux::new(kubelet.clone(), Arc::new(store));
        let target = Self { mount: mount.to_owned(), volume, kubelet, host, wanted };
        target.call::<Publish>(&target.wanted)?;
        target.call::<Unpublish>(&target.gone())?;
        volumes::sync(mount)?;
        Ok(target)
    }

    fn call<O: Operation>(&self, message: &O::Message) -> Result<O::Response, tonic::Status> {
        csi::call::<O>(&self.host, &self.kubelet, message)
    }

    fn publish(self) -> Result<(), CallError> {
        measured(|| self.call::<Publish>(&self.wanted))??;
        self.end()
    }

    fn unpublish(self) -> Result<(), CallError> {
        self.call::<Publish>(&self.wanted)?;
        volumes::sync(&self.mount)?;
        measured(|| self.call::<Unpublish>(&self.gone()))??;
        self.end()
    }

    fn end(self) -> Result<(), CallError> {
        self.call::<Unpublish>(&self.gone())?;
        // Removes the published devices, as on a node.
        self.host.watch()?;
        drop(self.host);
        volumes::remove(&self.mount, &self.volume)
    }

    fn gone(&self) -> NodeUnpublishVolumeRequest {
        let NodePublishVolumeRequest { volume_id, target_path, .. } = self.wanted.clone();
        NodeUnpublishVolumeRequest { volume_id, target_path }
    }
}
