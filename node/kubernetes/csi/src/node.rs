//! The Node service: a few lines for each call.

use std::path::PathBuf;
use std::sync::Arc;

use proto::csi::node_server::Node;
use proto::csi::{
    NodeExpandVolumeRequest, NodeExpandVolumeResponse, NodeGetCapabilitiesRequest, NodeGetCapabilitiesResponse,
    NodeGetInfoRequest, NodeGetInfoResponse, NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse,
    NodePublishVolumeRequest, NodePublishVolumeResponse, NodeStageVolumeRequest, NodeStageVolumeResponse,
    NodeUnpublishVolumeRequest, NodeUnpublishVolumeResponse, NodeUnstageVolumeRequest, NodeUnstageVolumeResponse,
};
use tokio::task::spawn_blocking;
use tonic::{Request, Response, Status};
use tracing::{info, warn};
use units::Bytes;
use volume::VolumeLocks;

use crate::condition::{condition, usage};
use crate::host::{Found, Host, Inspection};
use crate::identity::{node_capabilities, node_info};
use crate::layout::{DEVICES, matches};
use crate::metrics::{Method, Metrics};
use crate::plan::{self, Refusal, Step, Volume};
use crate::request::{Expand, Mode, Publish, Stats, Unpublish};
use crate::status::{Failure, InspectError, PublishError, UnpublishError};

pub(crate) struct NodeService<H> {
    pub(crate) node: String,
    pub(crate) kubelet: PathBuf,
    pub(crate) host: Arc<H>,
    pub(crate) locks: VolumeLocks,
    pub(crate) metrics: Metrics,
}

impl<H: Host> NodeService<H> {
    async fn publish(&self, message: &NodePublishVolumeRequest) -> Result<NodePublishVolumeResponse, PublishError> {
        let want = Publish::parse(message, &self.kubelet)?;
        let guard = self.locks.lock(&want.volume).await;
        let host = Arc::clone(&self.host);
        let work = spawn_blocking(move || {
            let _guard = guard; // held by the thread: kubelet may give up, the mount call does not
            publish(&*host, want)
        });
        work.await.map_err(PublishError::Panicked)??;
        Ok(NodePublishVolumeResponse {})
    }

    async fn unpublish(
        &self,
        message: &NodeUnpublishVolumeRequest,
    ) -> Result<NodeUnpublishVolumeResponse, UnpublishError> {
        let want = Unpublish::parse(message, &self.kubelet)?;
        let guard = self.locks.lock(&want.volume).await;
        let host = Arc::clone(&self.host);
        let work = spawn_blocking(move || {
            let _guard = guard;
            unpublish(&*host, want)
        });
        work.await.map_err(UnpublishError::Panicked)??;
        Ok(NodeUnpublishVolumeResponse {})
    }

    async fn expand(&self, message: &NodeExpandVolumeRequest) -> Result<NodeExpandVolumeResponse, InspectError> {
        let want = Expand::parse(message, &self.kubelet)?;
        let guard = self.locks.lock(&want.volume).await;
        let host = Arc::clone(&self.host);
        let work = spawn_blocking(move || {
            let _guard = guard;
            expand(&*host, &want).map_err(|source| InspectError::Failed {
                volume: want.volume,
                path: want.path.into(),
                source,
            })
        });
        let size = work.await.map_err(InspectError::Panicked)??;
        Ok(NodeExpandVolumeResponse { capacity_bytes: signed(size.get()) })
    }

    /// Changes nothing, and kubelet asks often: it waits for nobody.
    async fn stats(&self, message: &NodeGetVolumeStatsRequest) -> Result<NodeGetVolumeStatsResponse, InspectError> {
        let want = Stats::parse(message, &self.kubelet)?;
        let host = Arc::clone(&self.host);
        let work = spawn_blocking(move || stats(&*host, want));
        let found = work.await.map_err(InspectError::Panicked)??;
        Ok(NodeGetVolumeStatsResponse { usage: usage(&found), volume_condition: Some(condition(&found)) })
    }
}

pub(crate) fn publish(host: &impl Host, want: Publish) -> Result<(), PublishError> {
    try_publish(host, &want).map_err(|source| PublishError::Failed {
        volume: want.volume,
        target: want.target.into(),
        source,
    })
}

fn try_publish(host: &impl Host, want: &Publish) -> Result<(), Failure> {
    let (mut at, seen) = host.look(want.question())?;
    let steps = plan::publish(want, &seen)?;
    for (index, step) in steps.iter().enumerate() {
        if let Err(error) = host.act(&mut at, *step) {
            take_back(host, &mut at, &steps[..index], want);
            return Err(error.into());
        }
    }
    if !steps.is_empty() {
        let Publish { volume, target, mode, attributes, .. } = want;
        info!(%volume, %target, %mode, read_only = attributes.read_only, "volume published");
    }
    Ok(())
}

/// kubelet does not unpublish what it could not publish.
fn take_back<H: Host>(host: &H, at: &mut H::At, done: &[Step], Publish { volume, target, .. }: &Publish) {
    for step in plan::undo(done) {
        if let Err(reason) = host.act(at, step) {
            let error: &dyn std::error::Error = &reason;
            warn!(%volume, %target, ?step, error, "half-made target stays behind");
            return;
        }
    }
}

pub(crate) fn unpublish(host: &impl Host, want: Unpublish) -> Result<(), UnpublishError> {
    try_unpublish(host, &want).map_err(|source| UnpublishError::Failed {
        volume: want.volume,
        target: want.target.into(),
        source,
    })
}

fn try_unpublish(host: &impl Host, want: &Unpublish) -> Result<(), Failure> {
    let (mut at, seen) = host.look(want.question())?;
    let steps = plan::unpublish(&seen)?;
    for step in &steps {
        host.act(&mut at, *step)?;
    }
    if !steps.is_empty() {
        let Unpublish { volume, target } = want;
        info!(%volume, %target, "volume unpublished");
    }
    Ok(())
}

fn expand(host: &impl Host, want: &Expand) -> Result<Bytes, Failure> {
    let Inspection { volume, found } = host.inspect(&want.volume, &want.path)?;
    let size = match (plan::is(volume, want.mode)?, found) {
        (Mode::Filesystem, Found::Filesystem(quota)) => quota.limits.bytes.ok_or(Refusal::NoQuota)?,
        (Mode::Filesystem, _) => return Err(Refusal::NotPublished.into()),
        // kubelet may name a target that is gone: of two pods, it remembers the one that came last.
        (Mode::Block, Found::Nothing) if !matches(&want.path.beneath(), DEVICES) => {
            return Err(Refusal::NotPublished.into());
        }
        (Mode::Block, _) => host.grow(&want.volume)?.ok_or(Refusal::NotPublished)?,
    };
    Ok(plan::expand(want.range, size)?)
}

pub(crate) fn stats(host: &impl Host, want: Stats) -> Result<Found, InspectError> {
    try_stats(host, &want).map_err(|source| InspectError::Failed {
        volume: want.volume,
        path: want.path.into(),
        source,
    })
}

fn try_stats(host: &impl Host, want: &Stats) -> Result<Found, Failure> {
    let Inspection { volume, found } = host.inspect(&want.volume, &want.path)?;
    match (volume, found) {
        (Volume::Unknown, _) => Err(Refusal::Unknown.into()),
        (Volume::Known(_) | Volume::NotAnnounced | Volume::Damaged, Found::Nothing) => {
            Err(Refusal::NotPublished.into())
        }
        (Volume::Known(_) | Volume::NotAnnounced | Volume::Damaged, found) => Ok(found),
    }
}

/// CSI counts in `int64`.
pub(crate) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[tonic::async_trait]
impl<H: Host> Node for NodeService<H> {
    async fn node_publish_volume(
        &self,
        request: Request<NodePublishVolumeRequest>,
    ) -> Result<Response<NodePublishVolumeResponse>, Status> {
        self.metrics.observe(Method::NodePublishVolume, self.publish(request.get_ref())).await
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<NodeUnpublishVolumeRequest>,
    ) -> Result<Response<NodeUnpublishVolumeResponse>, Status> {
        self.metrics.observe(Method::NodeUnpublishVolume, self.unpublish(request.get_ref())).await
    }

    async fn node_expand_volume(
        &self,
        request: Request<NodeExpandVolumeRequest>,
    ) -> Result<Response<NodeExpandVolumeResponse>, Status> {
        self.metrics.observe(Method::NodeExpandVolume, self.expand(request.get_ref())).await
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<NodeGetVolumeStatsRequest>,
    ) -> Result<Response<NodeGetVolumeStatsResponse>, Status> {
        self.metrics.observe(Method::NodeGetVolumeStats, self.stats(request.get_ref())).await
    }

    async fn node_get_info(&self, _: Request<NodeGetInfoRequest>) -> Result<Response<NodeGetInfoResponse>, Status> {
        self.metrics.observe(Method::NodeGetInfo, async { Ok::<_, Status>(node_info(&self.node)) }).await
    }

    async fn node_get_capabilities(
        &self,
        _: Request<NodeGetCapabilitiesRequest>,
    ) -> Result<Response<NodeGetCapabilitiesResponse>, Status> {
        self.metrics.observe(Method::NodeGetCapabilities, async { Ok::<_, Status>(node_capabilities()) }).await
    }

    async fn node_stage_volume(
        &self,
        _: Request<NodeStageVolumeRequest>,
    ) -> Result<Response<NodeStageVolumeResponse>, Status> {
        Err(Status::unimplemented(NOT_STAGED))
    }

    async fn node_unstage_volume(
        &self,
        _: Request<NodeUnstageVolumeRequest>,
    ) -> Result<Response<NodeUnstageVolumeResponse>, Status> {
        Err(Status::unimplemented(NOT_STAGED))
    }
}

const NOT_STAGED: &str = "STAGE_UNSTAGE_VOLUME is not announced: volumes are published without staging";
