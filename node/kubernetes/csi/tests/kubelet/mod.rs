//! The messages and connections of the kubelet.

use std::path::PathBuf;

use hyper_util::rt::TokioIo;
use proto::csi::node_client::NodeClient;
use proto::csi::volume_capability::access_mode::Mode;
use proto::csi::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use proto::csi::{
    CapacityRange, NodeExpandVolumeRequest, NodeGetVolumeStatsRequest, NodePublishVolumeRequest,
    NodeUnpublishVolumeRequest, VolumeCapability,
};
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};
use tower::service_fn;

/// ReadWriteOnce, for drivers that announce SINGLE_NODE_MULTI_WRITER.
pub const MANY: Mode = Mode::SingleNodeMultiWriter;

/// The kubelet with this root directory.
pub struct Kubelet {
    pub directory: PathBuf,
}

impl Kubelet {
    pub fn socket(&self) -> PathBuf {
        self.directory.join("plugins/local.granary.dev.sock")
    }

    pub async fn client(&self) -> NodeClient<Channel> {
        NodeClient::new(connect(self.socket()).await.expect("connect"))
    }

    pub fn publish(&self, volume: &str, target: &str, mode: Mode) -> NodePublishVolumeRequest {
        NodePublishVolumeRequest {
            volume_id: volume.to_owned(),
            target_path: self.path(target),
            volume_capability: Some(VolumeCapability {
                access_mode: Some(AccessMode { mode: mode.into() }),
                access_type: Some(AccessType::Mount(MountVolume::default())),
            }),
            ..NodePublishVolumeRequest::default()
        }
    }

    pub fn publish_block(&self, volume: &str, target: &str, mode: Mode) -> NodePublishVolumeRequest {
        let mut message = self.publish(volume, target, mode);
        if let Some(capability) = &mut message.volume_capability {
            capability.access_type = Some(AccessType::Block(BlockVolume {}));
        }
        message
    }

    pub fn unpublish(&self, volume: &str, target: &str) -> NodeUnpublishVolumeRequest {
        NodeUnpublishVolumeRequest { volume_id: volume.to_owned(), target_path: self.path(target) }
    }

    pub fn stats(&self, volume: &str, target: &str) -> NodeGetVolumeStatsRequest {
        let (volume_id, volume_path) = (volume.to_owned(), self.path(target));
        NodeGetVolumeStatsRequest { volume_id, volume_path, ..NodeGetVolumeStatsRequest::default() }
    }

    pub fn expand(&self, volume: &str, target: &str, range: Option<(i64, i64)>) -> NodeExpandVolumeRequest {
        NodeExpandVolumeRequest {
            volume_id: volume.to_owned(),
            volume_path: self.path(target),
            capacity_range: range.map(|(required_bytes, limit_bytes)| CapacityRange { required_bytes, limit_bytes }),
            ..NodeExpandVolumeRequest::default()
        }
    }

    fn path(&self, target: &str) -> String {
        self.directory.join(target).display().to_string()
    }
}

/// Connects to a socket. The client sends `localhost` as `:authority`.
pub async fn connect(socket: PathBuf) -> Result<Channel, tonic::transport::Error> {
    let connector = service_fn(move |_| {
        let socket = socket.clone();
        async move { UnixStream::connect(socket).await.map(TokioIo::new) }
    });
    Endpoint::from_static("http://localhost").connect_with_connector(connector).await
}
