//! The Node service, and the operations behind its calls.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use proto::csi::node_server::Node;
use proto::csi::node_service_capability::{Rpc, Type, rpc};
use proto::csi::{
    NodeExpandVolumeRequest, NodeExpandVolumeResponse, NodeGetCapabilitiesRequest, NodeGetCapabilitiesResponse,
    NodeGetInfoRequest, NodeGetInfoResponse, NodeGetStorageHealthRequest, NodeGetStorageHealthResponse,
    NodeGetVolumeHealthRequest, NodeGetVolumeHealthResponse, NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse,
    NodePublishVolumeRequest, NodePublishVolumeResponse, NodeServiceCapability, NodeStageVolumeRequest,
    NodeStageVolumeResponse, NodeUnpublishVolumeRequest, NodeUnpublishVolumeResponse, NodeUnstageVolumeRequest,
    NodeUnstageVolumeResponse,
};
use tonic::{Request, Response, Status};
use tracing::{info, warn};
use volume::{VolumeId, VolumeLocks};

use crate::condition::{Health, condition, health, storage_health, usage};
use crate::host::{Host, Inspection, PathContents};
use crate::identity::node_info;
use crate::layout::{DEVICES, matches};
use crate::plan::{self, PlanError, Step, Volume};
use crate::request::{Check, Expand, Mode, Publish, RequestError, Stats, TargetPath, Unpublish, signed};
use crate::status::{Call, CallError, Failure, PathRole};
use crate::threads::Threads;

/// The kubelet still reads the volume condition, which CSI 1.13 replaces by the volume health.
const CAPABILITIES: [rpc::Type; 6] = [
    rpc::Type::ExpandVolume,
    rpc::Type::GetVolumeStats,
    rpc::Type::VolumeCondition,
    rpc::Type::SingleNodeMultiWriter,
    rpc::Type::GetVolumeHealth,
    rpc::Type::GetStorageHealth,
];

/// A checked request for one volume at one path. [`Operation::run`] blocks the thread.
pub trait Operation: Sized + Send + 'static {
    type Message: Send + Sync;
    type Response: Send + 'static;

    const CALL: &'static Call;
    /// Parses a message, given the kubelet's directory. Fails if a field of the message is missing or invalid.
    const PARSE: fn(&Self::Message, &Path) -> Result<Self, RequestError>;

    /// Volume and path of the request. A request for the health may have no path.
    fn place(&self) -> (&VolumeId, Option<&TargetPath>);

    /// # Errors
    /// The host or the volume's state does not allow the operation. A failed publish undoes its changes.
    fn run(&self, host: &impl Host) -> Result<Self::Response, Failure>;
}

/// Serves one call on the current thread, for measurements. The plugin uses a separate thread for each call. The caller
/// makes one call at a time for each volume.
pub fn call<O: Operation>(host: &impl Host, kubelet: &Path, message: &O::Message) -> Result<O::Response, Status> {
    Ok(run(host, &parse::<O>(message, kubelet)?)?)
}

fn parse<O: Operation>(message: &O::Message, kubelet: &Path) -> Result<O, CallError> {
    O::PARSE(message, kubelet).map_err(|source| CallError::Request { call: O::CALL, source })
}

fn run<O: Operation>(host: &impl Host, operation: &O) -> Result<O::Response, CallError> {
    operation.run(host).map_err(|source| {
        let (volume, target) = operation.place();
        let path = target.map(|target| target.full().into());
        CallError::Failed { call: O::CALL, volume: volume.clone(), path, source }
    })
}

/// Maximum number of threads that read the state of volumes, and of those that measure the disk. A disk that hangs
/// blocks them, even after the client has canceled its calls.
pub(crate) const LOOKS: usize = 16;

/// Maximum number of threads that publish, unpublish and expand volumes, or detach unused devices, one for each volume.
///
/// This is half of tokio's blocking pool, which has 512 threads by default, and which the rest of the program uses too.
/// It limits clients with many calls on each connection. The kubelet opens a connection for each call, and reaches the
/// limit of connections first. Further calls wait, because the kubelet repeats a failed call only after a growing pause
/// of up to two minutes, which would delay pods.
pub(crate) const OPERATIONS: usize = 256;

pub(crate) struct NodeService<H> {
    pub(crate) node: String,
    pub(crate) kubelet: PathBuf,
    pub(crate) host: Arc<H>,
    pub(crate) locks: VolumeLocks,
    /// At most [`LOOKS`] threads.
    pub(crate) looks: Threads,
    /// At most [`OPERATIONS`] threads.
    pub(crate) operations: Threads,
}

impl<H: Host> NodeService<H> {
    async fn call<O: Operation>(&self, message: &O::Message) -> Result<Response<O::Response>, Status> {
        let operation: O = parse(message, &self.kubelet)?;
        // The lock precedes the permit: all calls for a volume that hangs have one permit.
        let (threads, guard) = if O::CALL.is_locked {
            (&self.operations, Some(self.locks.lock(operation.place().0).await))
        } else {
            (&self.looks, None)
        };
        let host = Arc::clone(&self.host);
        let work = move || {
            let _guard = guard; // held by the thread: the system calls continue if the kubelet cancels the call
            run(&*host, &operation)
        };
        Ok(Response::new(threads.run(work).await?))
    }
}

impl Operation for Publish {
    type Message = NodePublishVolumeRequest;
    type Response = NodePublishVolumeResponse;

    const CALL: &'static Call = &Call { verb: "publish", path: PathRole::Target, is_locked: true };
    const PARSE: fn(&Self::Message, &Path) -> Result<Self, RequestError> = Self::parse;

    fn place(&self) -> (&VolumeId, Option<&TargetPath>) {
        (&self.volume, Some(&self.target))
    }

    fn run(&self, host: &impl Host) -> Result<NodePublishVolumeResponse, Failure> {
        let (mut at, seen) = host.look(self.look_request())?;
        let steps = plan::publish(self, &seen)?;
        for (index, step) in steps.iter().enumerate() {
            if let Err(error) = host.act(&mut at, *step) {
                undo(host, at, &plan::undo(&steps[..index], *step), self);
                return Err(error.into());
            }
        }
        if !steps.is_empty() {
            let Self { volume, target, mode, attributes, .. } = self;
            info!(%volume, %target, %mode, read_only = attributes.read_only, "volume published");
        }
        Ok(NodePublishVolumeResponse {})
    }
}

/// Undoes a failed publish, because the kubelet does not unpublish a target that it could not publish.
fn undo<H: Host>(host: &H, mut at: H::At, steps: &[Step], Publish { volume, target, .. }: &Publish) {
    for step in steps {
        if let Err(error) = host.act(&mut at, *step) {
            warn!(%volume, %target, ?step, error = causes::of(&error), "cannot undo a failed publish");
            break;
        }
    }
    // A deletion during the call found the device, also if the target stays.
    if steps.contains(&Step::Detach) {
        drop(at);
        host.unpublished(volume);
    }
}

impl Operation for Unpublish {
    type Message = NodeUnpublishVolumeRequest;
    type Response = NodeUnpublishVolumeResponse;

    const CALL: &'static Call = &Call { verb: "unpublish", path: PathRole::Target, is_locked: true };
    const PARSE: fn(&Self::Message, &Path) -> Result<Self, RequestError> = Self::parse;

    fn place(&self) -> (&VolumeId, Option<&TargetPath>) {
        (&self.volume, Some(&self.target))
    }

    fn run(&self, host: &impl Host) -> Result<NodeUnpublishVolumeResponse, Failure> {
        let (mut at, seen) = host.look(self.look_request())?;
        let steps = plan::unpublish(&seen)?;
        for step in &steps {
            host.act(&mut at, *step)?;
        }
        if !steps.is_empty() {
            let Self { volume, target } = self;
            info!(%volume, %target, "volume unpublished");
            drop(at);
            host.unpublished(volume);
        }
        Ok(NodeUnpublishVolumeResponse {})
    }
}

impl Operation for Expand {
    type Message = NodeExpandVolumeRequest;
    type Response = NodeExpandVolumeResponse;

    const CALL: &'static Call = &Call { verb: "expand", path: PathRole::Location, is_locked: true };
    const PARSE: fn(&Self::Message, &Path) -> Result<Self, RequestError> = Self::parse;

    fn place(&self) -> (&VolumeId, Option<&TargetPath>) {
        (&self.volume, Some(&self.path))
    }

    fn run(&self, host: &impl Host) -> Result<NodeExpandVolumeResponse, Failure> {
        let Inspection { volume, found } = host.inspect(&self.volume, &self.path)?;
        let size = match (plan::is(volume, self.mode)?, found) {
            (Mode::Filesystem, PathContents::Filesystem(quota)) => quota.shown.bytes.ok_or(PlanError::NoQuota)?,
            (Mode::Filesystem, _) => return Err(PlanError::NotPublished.into()),
            // If two pods use the volume, the kubelet sends the target of the last one, even after that pod is gone.
            (Mode::Block, PathContents::Nothing) if !matches(self.path.beneath(), DEVICES) => {
                return Err(PlanError::NotPublished.into());
            }
            (Mode::Block, _) => host.grow(&self.volume)?.ok_or(PlanError::NotPublished)?,
        };
        let size = plan::expand(self.range, size)?;
        Ok(NodeExpandVolumeResponse { capacity_bytes: signed(size.get()) })
    }
}

impl Operation for Stats {
    type Message = NodeGetVolumeStatsRequest;
    type Response = NodeGetVolumeStatsResponse;

    // Statistics and health need no lock, because these calls change nothing. The kubelet requests them often.
    const CALL: &'static Call = &Call { verb: "read the statistics of", path: PathRole::Location, is_locked: false };
    const PARSE: fn(&Self::Message, &Path) -> Result<Self, RequestError> = Self::parse;

    fn place(&self) -> (&VolumeId, Option<&TargetPath>) {
        (&self.volume, Some(&self.path))
    }

    fn run(&self, host: &impl Host) -> Result<NodeGetVolumeStatsResponse, Failure> {
        let (found, health) = examine(host, &self.volume, &self.path)?;
        if matches!(found, PathContents::Nothing) {
            return Err(PlanError::NotPublished.into());
        }
        Ok(NodeGetVolumeStatsResponse { usage: usage(&found), volume_condition: Some(condition(&found, &health)) })
    }
}

/// The part of a volume that the path shows, and faults that this part does not show.
fn examine(host: &impl Host, volume: &VolumeId, path: &TargetPath) -> Result<(PathContents, Health), Failure> {
    let disk = host.disk_faults();
    let found = match host.inspect(volume, path) {
        Ok(Inspection { volume: Volume::Unknown, .. }) => return Err(PlanError::Unknown.into()),
        Ok(Inspection { found, .. }) => found,
        // The condition reports the faults of the disk. A file system that has shut down fails most operations.
        Err(_) if !disk.is_empty() => PathContents::Unusable,
        Err(error) => return Err(error.into()),
    };
    let limits_changed = match &found {
        PathContents::Filesystem(quota) => host.limits_changed(volume, quota),
        PathContents::Nothing | PathContents::Block { .. } | PathContents::Unusable => false,
    };
    Ok((found, Health { disk, limits_changed }))
}

impl Operation for Check {
    type Message = NodeGetVolumeHealthRequest;
    type Response = NodeGetVolumeHealthResponse;

    const CALL: &'static Call = &Call { verb: "read the health of", path: PathRole::Location, is_locked: false };
    const PARSE: fn(&Self::Message, &Path) -> Result<Self, RequestError> = Self::parse;

    fn place(&self) -> (&VolumeId, Option<&TargetPath>) {
        (&self.volume, self.path.as_ref())
    }

    fn run(&self, host: &impl Host) -> Result<NodeGetVolumeHealthResponse, Failure> {
        let (found, faults) = match &self.path {
            Some(path) => {
                let (found, faults) = examine(host, &self.volume, path)?;
                (Some(found), faults)
            }
            None => {
                let faults = Health { disk: host.disk_faults(), limits_changed: false };
                match host.volume(&self.volume) {
                    Ok(Volume::Unknown | Volume::NotAnnounced) => return Err(PlanError::Unknown.into()),
                    Ok(Volume::Known(_)) => (None, faults),
                    Ok(Volume::Damaged) => (Some(PathContents::Unusable), faults),
                    Err(_) if !faults.disk.is_empty() => (Some(PathContents::Unusable), faults),
                    Err(error) => return Err(error.into()),
                }
            }
        };
        Ok(NodeGetVolumeHealthResponse { volume_health: Some(health(&self.volume, found.as_ref(), &faults)) })
    }
}

#[tonic::async_trait]
impl<H: Host> Node for NodeService<H> {
    async fn node_publish_volume(
        &self,
        request: Request<NodePublishVolumeRequest>,
    ) -> Result<Response<NodePublishVolumeResponse>, Status> {
        self.call::<Publish>(request.get_ref()).await
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<NodeUnpublishVolumeRequest>,
    ) -> Result<Response<NodeUnpublishVolumeResponse>, Status> {
        self.call::<Unpublish>(request.get_ref()).await
    }

    async fn node_expand_volume(
        &self,
        request: Request<NodeExpandVolumeRequest>,
    ) -> Result<Response<NodeExpandVolumeResponse>, Status> {
        self.call::<Expand>(request.get_ref()).await
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<NodeGetVolumeStatsRequest>,
    ) -> Result<Response<NodeGetVolumeStatsResponse>, Status> {
        self.call::<Stats>(request.get_ref()).await
    }

    async fn node_get_volume_health(
        &self,
        request: Request<NodeGetVolumeHealthRequest>,
    ) -> Result<Response<NodeGetVolumeHealthResponse>, Status> {
        self.call::<Check>(request.get_ref()).await
    }

    async fn node_get_storage_health(
        &self,
        _: Request<NodeGetStorageHealthRequest>,
    ) -> Result<Response<NodeGetStorageHealthResponse>, Status> {
        Ok(Response::new(NodeGetStorageHealthResponse { backend_health: storage_health(&self.host.disk_faults()) }))
    }

    async fn node_get_info(&self, _: Request<NodeGetInfoRequest>) -> Result<Response<NodeGetInfoResponse>, Status> {
        Ok(Response::new(node_info(&self.node)))
    }

    async fn node_get_capabilities(
        &self,
        _: Request<NodeGetCapabilitiesRequest>,
    ) -> Result<Response<NodeGetCapabilitiesResponse>, Status> {
        let capability = |kind: rpc::Type| {
            let kind = Type::Rpc(Rpc { r#type: kind.into() });
            NodeServiceCapability { r#type: Some(kind) }
        };
        Ok(Response::new(NodeGetCapabilitiesResponse { capabilities: CAPABILITIES.map(capability).to_vec() }))
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
