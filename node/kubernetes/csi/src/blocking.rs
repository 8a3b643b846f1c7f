//! [`Calls`]: the Node service without a server.

use std::path::PathBuf;

use proto::csi::{NodeGetVolumeStatsRequest, NodePublishVolumeRequest, NodeUnpublishVolumeRequest};
use tonic::Status;

use crate::host::{Found, Host};
use crate::node;
use crate::request::{Publish, Stats, Unpublish};
use crate::status::{InspectError, PublishError, UnpublishError};

/// Makes calls of the Node service on the caller's thread, as the plugin makes them on one of its own, so that what they
/// ask of the kernel can be counted. Two calls for one volume must not be made at the same time.
#[derive(Debug)]
pub struct Calls<H> {
    kubelet: PathBuf,
    host: H,
}

impl<H: Host> Calls<H> {
    /// `kubelet` is kubelet's root directory.
    pub fn new(kubelet: impl Into<PathBuf>, host: H) -> Self {
        Self { kubelet: kubelet.into(), host }
    }

    /// `NodePublishVolume`.
    ///
    /// # Errors
    /// What kubelet would get.
    pub fn publish(&self, message: &NodePublishVolumeRequest) -> Result<(), Status> {
        let want = Publish::parse(message, &self.kubelet).map_err(PublishError::from)?;
        Ok(node::publish(&self.host, want)?)
    }

    /// `NodeUnpublishVolume`.
    ///
    /// # Errors
    /// What kubelet would get.
    pub fn unpublish(&self, message: &NodeUnpublishVolumeRequest) -> Result<(), Status> {
        let want = Unpublish::parse(message, &self.kubelet).map_err(UnpublishError::from)?;
        Ok(node::unpublish(&self.host, want)?)
    }

    /// `NodeGetVolumeStats`, before it becomes a message.
    ///
    /// # Errors
    /// What kubelet would get.
    pub fn stats(&self, message: &NodeGetVolumeStatsRequest) -> Result<Found, Status> {
        let want = Stats::parse(message, &self.kubelet).map_err(InspectError::from)?;
        Ok(node::stats(&self.host, want)?)
    }
}
