//! The Node service: a few lines for each call.

use std::path::PathBuf;
use std::sync::Arc;

use fsquota::Quota;
use proto::csi::node_server::Node;
use proto::csi::volume_usage::Unit;
use proto::csi::{
    NodeExpandVolumeRequest, NodeExpandVolumeResponse, NodeGetCapabilitiesRequest, NodeGetCapabilitiesResponse,
    NodeGetInfoRequest, NodeGetInfoResponse, NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse,
    NodePublishVolumeRequest, NodePublishVolumeResponse, NodeStageVolumeRequest, NodeStageVolumeResponse,
    NodeUnpublishVolumeRequest, NodeUnpublishVolumeResponse, NodeUnstageVolumeRequest, NodeUnstageVolumeResponse,
    VolumeCondition, VolumeUsage,
};
use tokio::task::spawn_blocking;
use tonic::{Request, Response, Status};
use tracing::info;
use units::Bytes;

use crate::host::Host;
use crate::identity::{node_capabilities, node_info};
use crate::metrics::{Method, Metrics};
use crate::plan;
use crate::request::{Expand, Publish, Stats, Unpublish};
use crate::status::{Failure, InspectError, PublishError, UnpublishError};
use crate::turns::Turns;

pub(crate) struct NodeService<H> {
    pub(crate) node: String,
    pub(crate) kubelet: PathBuf,
    pub(crate) host: Arc<H>,
    pub(crate) turns: Turns,
    pub(crate) metrics: Metrics,
}

impl<H: Host> NodeService<H> {
    async fn publish(&self, message: &NodePublishVolumeRequest) -> Result<NodePublishVolumeResponse, PublishError> {
        let want = Publish::parse(message, &self.kubelet)?;
        let turn = self.turns.take(&want.volume).await;
        let host = Arc::clone(&self.host);
        let work = spawn_blocking(move || {
            let _turn = turn; // held by the thread: kubelet may give up, the mount call does not
            publish(&*host, &want).map_err(|source| PublishError::Failed {
                volume: want.volume,
                target: want.target.into(),
                source,
            })
        });
        work.await.map_err(PublishError::Panicked)??;
        Ok(NodePublishVolumeResponse {})
    }

    async fn unpublish(
        &self,
        message: &NodeUnpublishVolumeRequest,
    ) -> Result<NodeUnpublishVolumeResponse, UnpublishError> {
        let want = Unpublish::parse(message, &self.kubelet)?;
        let turn = self.turns.take(&want.volume).await;
        let host = Arc::clone(&self.host);
        let work = spawn_blocking(move || {
            let _turn = turn;
            unpublish(&*host, &want).map_err(|source| UnpublishError::Failed {
                volume: want.volume,
                target: want.target.into(),
                source,
            })
        });
        work.await.map_err(UnpublishError::Panicked)??;
        Ok(NodeUnpublishVolumeResponse {})
    }

    async fn expand(&self, message: &NodeExpandVolumeRequest) -> Result<NodeExpandVolumeResponse, InspectError> {
        let want = Expand::parse(message, &self.kubelet)?;
        let turn = self.turns.take(&want.volume).await;
        let host = Arc::clone(&self.host);
        let work = spawn_blocking(move || {
            let _turn = turn;
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
        let work = spawn_blocking(move || {
            stats(&*host, &want).map_err(|source| InspectError::Failed {
                volume: want.volume,
                path: want.path.into(),
                source,
            })
        });
        let quota = work.await.map_err(InspectError::Panicked)??;
        Ok(NodeGetVolumeStatsResponse { usage: usage(&quota), volume_condition: Some(condition(&quota)) })
    }
}

fn publish(host: &impl Host, want: &Publish) -> Result<(), Failure> {
    let (at, seen) = host.look(want.question())?;
    let steps = plan::publish(want, &seen)?;
    for step in &steps {
        host.act(&at, *step)?;
    }
    if !steps.is_empty() {
        let Publish { volume, target, attributes, .. } = want;
        info!(%volume, %target, read_only = attributes.read_only, "volume published");
    }
    Ok(())
}

fn unpublish(host: &impl Host, want: &Unpublish) -> Result<(), Failure> {
    let (at, seen) = host.look(want.question())?;
    let steps = plan::unpublish(&seen)?;
    for step in &steps {
        host.act(&at, *step)?;
    }
    if !steps.is_empty() {
        let Unpublish { volume, target } = want;
        info!(%volume, %target, "volume unpublished");
    }
    Ok(())
}

fn expand(host: &impl Host, want: &Expand) -> Result<Bytes, Failure> {
    let (at, seen) = host.look(want.question())?;
    plan::published(&seen)?;
    Ok(plan::expand(want.range, host.quota(&at)?.limits.bytes)?)
}

fn stats(host: &impl Host, want: &Stats) -> Result<Quota, Failure> {
    let (at, seen) = host.look(want.question())?;
    plan::published(&seen)?;
    Ok(host.quota(&at)?)
}

/// What has no limit has no total, and CSI has no other way to say so than to leave it out.
fn usage(quota: &Quota) -> Vec<VolumeUsage> {
    let Quota { limits, used, .. } = quota;
    let entry = |unit: Unit, total: u64, used: u64| VolumeUsage {
        available: signed(total.saturating_sub(used)),
        total: signed(total),
        used: signed(used),
        unit: unit.into(),
    };
    let bytes = limits.bytes.map(|total| entry(Unit::Bytes, total.get(), used.bytes.get()));
    let inodes = limits.inodes.map(|total| entry(Unit::Inodes, total.get(), used.inodes.get()));
    bytes.into_iter().chain(inodes).collect()
}

fn condition(Quota { limits, used, .. }: &Quota) -> VolumeCondition {
    let abnormal = |message: String| VolumeCondition { abnormal: true, message };
    match (limits.bytes, limits.inodes) {
        (None, _) | (_, None) => abnormal("the volume has no quota and can fill the node's disk".to_owned()),
        (Some(limit), _) if used.bytes > limit => abnormal(format!(
            "the volume holds {}, more than its limit of {limit}; delete files or expand it",
            used.bytes
        )),
        (_, Some(limit)) if used.inodes > limit => abnormal(format!(
            "the volume holds {}, more than its limit of {limit}; delete files or expand it",
            used.inodes
        )),
        (Some(_), Some(_)) => VolumeCondition { abnormal: false, message: "the volume works".to_owned() },
    }
}

/// CSI counts in `int64`.
fn signed(number: u64) -> i64 {
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
