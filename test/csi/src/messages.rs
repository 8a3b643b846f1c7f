//! The messages of the kubelet.

use std::path::Path;

use proto::csi::volume_capability::access_mode::Mode;
use proto::csi::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use proto::csi::{
    CapacityRange, NodeExpandVolumeRequest, NodeGetVolumeHealthRequest, NodeGetVolumeStatsRequest,
    NodePublishVolumeRequest, NodeUnpublishVolumeRequest, VolumeCapability,
};

use crate::{Case, Kind, Volume};

pub fn capability(kind: Kind, mode: Mode) -> VolumeCapability {
    let access_type = match kind {
        Kind::Filesystem => AccessType::Mount(MountVolume::default()),
        Kind::Block => AccessType::Block(BlockVolume {}),
    };
    VolumeCapability { access_mode: Some(AccessMode { mode: mode.into() }), access_type: Some(access_type) }
}

#[must_use]
pub fn with_mode(mut message: NodePublishVolumeRequest, mode: Mode) -> NodePublishVolumeRequest {
    let access_mode = Some(AccessMode { mode: mode.into() });
    message.volume_capability = message.volume_capability.map(|found| VolumeCapability { access_mode, ..found });
    message
}

#[must_use]
pub fn read_only(message: NodePublishVolumeRequest) -> NodePublishVolumeRequest {
    NodePublishVolumeRequest { readonly: true, ..message }
}

impl Case<'_> {
    /// Request for ReadWriteOnce, which the kubelet sends as SINGLE_NODE_MULTI_WRITER because of the plugin's
    /// capabilities.
    pub fn publishing(&self, volume: &Volume, target: &Path) -> NodePublishVolumeRequest {
        NodePublishVolumeRequest {
            volume_id: volume.id.to_string(),
            target_path: text(target),
            volume_capability: Some(capability(volume.kind, Mode::SingleNodeMultiWriter)),
            ..NodePublishVolumeRequest::default()
        }
    }

    pub fn unpublishing(&self, volume: &Volume, target: &Path) -> NodeUnpublishVolumeRequest {
        NodeUnpublishVolumeRequest { volume_id: volume.id.to_string(), target_path: text(target) }
    }

    pub fn asking(&self, volume: &Volume, path: &Path) -> NodeGetVolumeStatsRequest {
        let (volume_id, volume_path) = (volume.id.to_string(), text(path));
        NodeGetVolumeStatsRequest { volume_id, volume_path, ..NodeGetVolumeStatsRequest::default() }
    }

    pub fn asking_health(&self, volume: &Volume, path: Option<&Path>) -> NodeGetVolumeHealthRequest {
        let (volume_id, volume_publish_path) = (volume.id.to_string(), path.map(text).unwrap_or_default());
        NodeGetVolumeHealthRequest { volume_id, volume_publish_path, ..NodeGetVolumeHealthRequest::default() }
    }

    /// `range` has `required_bytes` and `limit_bytes`.
    pub fn expanding(&self, volume: &Volume, path: &Path, range: Option<(i64, i64)>) -> NodeExpandVolumeRequest {
        NodeExpandVolumeRequest {
            volume_id: volume.id.to_string(),
            volume_path: text(path),
            capacity_range: range.map(|(required_bytes, limit_bytes)| CapacityRange { required_bytes, limit_bytes }),
            volume_capability: Some(capability(volume.kind, Mode::SingleNodeMultiWriter)),
            ..NodeExpandVolumeRequest::default()
        }
    }
}

fn text(path: &Path) -> String {
    path.display().to_string()
}
