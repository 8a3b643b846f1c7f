//! The Controller service of this node's volumes. `group` has the GroupController service.
//!
//! The service changes only volumes whose record names it as the [`Owner`](volume::Owner). It lists and clones the
//! provisioner's volumes, but does not change them. While the provisioner runs, the service creates no volumes and
//! snapshots for objects of the cluster.

pub(crate) mod cluster_object;
mod group;
pub(crate) mod plan;
mod request;
mod snapshots;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use proto::csi::controller_server::Controller;
use proto::csi::controller_service_capability::{self, rpc};
use proto::csi::list_volumes_response::Entry;
use proto::csi::validate_volume_capabilities_response::Confirmed;
use proto::csi::{
    ControllerExpandVolumeRequest, ControllerExpandVolumeResponse, ControllerGetCapabilitiesRequest,
    ControllerGetCapabilitiesResponse, ControllerGetVolumeHealthRequest, ControllerGetVolumeHealthResponse,
    ControllerGetVolumeRequest, ControllerGetVolumeResponse, ControllerListVolumeHealthRequest,
    ControllerListVolumeHealthResponse, ControllerModifyVolumeRequest, ControllerModifyVolumeResponse,
    ControllerPublishVolumeRequest, ControllerPublishVolumeResponse, ControllerServiceCapability,
    ControllerUnpublishVolumeRequest, ControllerUnpublishVolumeResponse, CreateSnapshotRequest, CreateSnapshotResponse,
    CreateVolumeRequest, CreateVolumeResponse, DeleteSnapshotRequest, DeleteSnapshotResponse, DeleteVolumeRequest,
    DeleteVolumeResponse, GetCapacityRequest, GetCapacityResponse, GetSnapshotRequest, GetSnapshotResponse,
    ListSnapshotsRequest, ListSnapshotsResponse, ListVolumesRequest, ListVolumesResponse,
    ValidateVolumeCapabilitiesRequest, ValidateVolumeCapabilitiesResponse, Volume, list_snapshots_response,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::sleep;
use tonic::{Request, Response, Status};
use units::Bytes;
use volume::{
    Copying, Error, IdlePasses, Owner, Record, SourcePauses, State, Taken, VolumeGuard, VolumeId, VolumeLocks,
    VolumeMode, Volumes,
};

use crate::condition::{Health, abnormal, health};
use crate::controller::cluster_object::{ClusterObject, Provisioner};
use crate::controller::request::{Capacity, Create, Grow, Modify, Named, Page, Placement, RequestName, Validate};
use crate::controller::snapshots::Take;
use crate::host::{Host, PathContents};
use crate::identity::topology;
use crate::request::{signed, volume_id};
use crate::server::CONNECTIONS;
use crate::status::{Change, ControllerError};
use crate::threads::{Threads, blocking};

const CAPABILITIES: [rpc::Type; 12] = [
    rpc::Type::CreateDeleteVolume,
    rpc::Type::ListVolumes,
    rpc::Type::GetCapacity,
    rpc::Type::CreateDeleteSnapshot,
    rpc::Type::ListSnapshots,
    rpc::Type::GetSnapshot,
    rpc::Type::CloneVolume,
    rpc::Type::ExpandVolume,
    rpc::Type::ModifyVolume,
    rpc::Type::SingleNodeMultiWriter,
    rpc::Type::GetVolumeHealth,
    rpc::Type::ListVolumeHealth,
];

/// Maximum number of entries of a response, so that it fits into a gRPC message (4 MiB).
const VOLUMES: usize = 10_000;
/// Maximum number of entries with the health of a volume. Each entry has the faults of the disk, too.
const HEALTH: usize = 1_000;

/// Maximum number of calls that change volumes at the same time. A copy can take hours, and its call keeps a
/// connection meanwhile: the kubelet needs the others, see [`CONNECTIONS`].
pub(crate) const CHANGES: usize = CONNECTIONS / 2;

pub(crate) struct ControllerService<H> {
    pub(crate) node: String,
    /// Source of the disk's faults.
    pub(crate) host: Arc<H>,
    pub(crate) volumes: Arc<dyn Volumes>,
    pub(crate) provisioner: Provisioner,
    /// Locks of the Node service, which both services use.
    pub(crate) locks: VolumeLocks,
    /// Permits for [`CHANGES`] calls.
    pub(crate) changes: Arc<Semaphore>,
    /// Threads that measure the disk.
    pub(crate) measurements: Threads,
}

impl<H: Host> ControllerService<H> {
    async fn on_disk<T: Send + 'static>(&self, work: impl FnOnce(&dyn Volumes) -> T + Send + 'static) -> T {
        let volumes = Arc::clone(&self.volumes);
        blocking(move || work(&*volumes)).await
    }

    /// Repeats a change of one volume or snapshot while `next` returns the pause before another pass. The thread of a
    /// pass has the lock, and other calls for the volume wait, also during a pause. If the client cancels the call, the
    /// call ends after the current pass, and the client's next call continues.
    async fn change<T: Send + 'static>(
        &self,
        id: &VolumeId,
        mut next: impl FnMut(&Result<T, ControllerError>) -> Option<Duration> + Send,
        change: impl Fn(&dyn Volumes, &VolumeId) -> Result<T, ControllerError> + Clone + Send + 'static,
    ) -> Result<T, ControllerError> {
        let begun =
            Arc::clone(&self.changes).try_acquire_owned().map_err(|_| ControllerError::Busy { most: CHANGES })?;
        let mut held = (self.locks.lock(id).await, begun);
        loop {
            let (id, change) = (id.clone(), change.clone());
            let pass =
                move |volumes: &dyn Volumes| -> ((VolumeGuard, OwnedSemaphorePermit), Result<T, ControllerError>) {
                    (held, change(volumes, &id))
                };
            let (returned, changed) = self.on_disk(pass).await;
            let Some(pause) = next(&changed) else { return changed };
            held = returned;
            sleep(pause).await;
        }
    }

    /// Checks the name, and rejects a request for an object of the cluster while the node's own provisioner serves
    /// these objects. This check precedes all others: after `RESOURCE_EXHAUSTED`, external-provisioner would let the
    /// scheduler select another node for a claim that the provisioner is serving.
    fn check_name<'a>(
        &self,
        name: &'a str,
        parameters: impl IntoIterator<Item = (&'a String, &'a String)>,
    ) -> Result<RequestName<'a>, ControllerError> {
        let name = RequestName::parse(name)?;
        let found = match self.provisioner {
            Provisioner::Own => ClusterObject::of(name.as_str(), parameters),
            Provisioner::External => None,
        };
        found.map_or(Ok(name), |object| Err(ControllerError::OfCluster { name: name.as_str().to_owned(), object }))
    }

    fn disk_health(&self) -> Health {
        Health { disk: self.host.disk_faults(), limits_changed: false }
    }

    fn message(&self, id: &VolumeId, size: Bytes) -> Volume {
        Volume {
            capacity_bytes: signed(size.get()),
            volume_id: id.to_string(),
            volume_context: HashMap::new(),
            content_source: None,
            accessible_topology: vec![topology(&self.node)],
        }
    }
}

/// Creates the volume, or completes a creation that an earlier call began.
fn create(volumes: &dyn Volumes, want: &Create) -> Result<Record, ControllerError> {
    let failed = Change::Create.failed();
    let find = |id: &VolumeId| volumes.record(id).map_err(failed);
    let record = find(&want.id)?;
    let source = match (&record, &want.source) {
        (None, Some(source)) => find(source.id())?,
        // The source of an existing volume may be deleted already.
        _ => None,
    };
    let request = plan::create(want, record.as_ref(), source.as_ref())?;
    if record.is_none() && !want.io.is_none() {
        // The check precedes all changes, because the client may not call DeleteVolume after this error.
        let failed = |source| failed(Error::Throttle { id: want.id.clone(), source });
        volumes.check_io_limits().map_err(failed)?;
    }
    let mut record = volumes.provision(&want.id, &request).map_err(failed)?.into_inner();
    // The limits are set before a pod can use the volume. An announced volume keeps its limits.
    if record.state == State::Staged && record.io != want.io {
        record = volumes.limit_io(&want.id, want.io).map_err(failed)?.into_inner();
    }
    volumes.announce(&want.id).map_err(failed)?;
    // Makes the announcement durable: after a power cut, no other call would repeat it.
    volumes.live_volume(&want.id)?;
    Ok(record)
}

/// The record of a volume that this service may change.
fn owned(volumes: &dyn Volumes, id: &VolumeId, change: Change) -> Result<Option<Record>, ControllerError> {
    match volumes.record(id).map_err(change.failed())? {
        Some(Record { owner: Owner::Provisioner | Owner::Rollback(_), claim, .. }) => {
            Err(ControllerError::OfProvisioner { change, id: id.clone(), claim })
        }
        record => Ok(record),
    }
}

fn delete(volumes: &dyn Volumes, id: &VolumeId) -> Result<(), ControllerError> {
    let removed = match owned(volumes, id, Change::Delete)?.map(|record| record.state) {
        None => return Ok(()),
        Some(State::Staged | State::Complete) => volumes.undo(id),
        Some(State::Announced) => volumes.retire(id).and_then(|_| volumes.discard(id)),
    };
    removed.map(drop).map_err(Change::Delete.failed())
}

/// Returns the size, and whether a pod has the block device, whose size the kubelet then refreshes.
fn expand(volumes: &dyn Volumes, id: &VolumeId, want: &Grow) -> Result<(Bytes, bool), ControllerError> {
    let record = owned(volumes, id, Change::Expand)?.ok_or_else(|| ControllerError::Unknown(id.clone()))?;
    if let Some(mode) = want.mode.map(VolumeMode::from)
        && mode != record.mode.into()
    {
        return Err(ControllerError::Mode { id: id.clone(), is: record.mode });
    }
    let size = want.range.grown(record.size)?;
    let record = volumes.expand(id, size).map_err(Change::Expand.failed())?.into_inner();
    Ok((record.size, volumes.live_volume(id)?.attached))
}

fn modify(volumes: &dyn Volumes, id: &VolumeId, want: &Modify) -> Result<(), ControllerError> {
    let record = owned(volumes, id, Change::Modify)?.ok_or_else(|| ControllerError::Unknown(id.clone()))?;
    let io = want.limits(record.io, record.mode.into())?;
    volumes.limit_io(id, io).map(drop).map_err(Change::Modify.failed())
}

/// The pauses between the passes over a copy.
fn pauses<T>(
    copying: impl Fn(&Result<T, ControllerError>) -> Option<Copying>,
) -> impl FnMut(&Result<T, ControllerError>) -> Option<Duration> {
    let mut pauses = SourcePauses::default();
    move |done| match copying(done)? {
        Copying::InPart => Some(Duration::ZERO),
        Copying::Waits => Some(pauses.pause()),
    }
}

fn delete_snapshot(volumes: &dyn Volumes, id: &VolumeId) -> Result<(), ControllerError> {
    match owned(volumes, id, Change::Delete)?.and_then(|record| snapshots::group_of(id, &record)) {
        Some(group) => Err(ControllerError::Member { id: id.clone(), group }),
        None => volumes.remove_snapshot(id).map(drop).map_err(Change::Delete.failed()),
    }
}

#[tonic::async_trait]
impl<H: Host> Controller for ControllerService<H> {
    async fn create_volume(
        &self,
        request: Request<CreateVolumeRequest>,
    ) -> Result<Response<CreateVolumeResponse>, Status> {
        let message = request.get_ref();
        let name = self.check_name(&message.name, message.parameters.iter().chain(&message.mutable_parameters))?;
        let want = Create::parse(name, message, &self.node).map_err(ControllerError::from)?;
        if want.place == Placement::Elsewhere {
            return Err(ControllerError::Elsewhere { node: self.node.clone() }.into());
        }
        let id = want.id.clone();
        let want = Arc::new(want);
        let next = pauses(|created: &Result<Record, _>| match created {
            Err(ControllerError::Volume { source, .. }) => source.copying(),
            _ => None,
        });
        let record = self.change(&id, next, move |volumes, _| create(volumes, &want)).await?;
        let volume =
            Volume { content_source: request.into_inner().volume_content_source, ..self.message(&id, record.size) };
        Ok(Response::new(CreateVolumeResponse { volume: Some(volume) }))
    }

    async fn delete_volume(
        &self,
        request: Request<DeleteVolumeRequest>,
    ) -> Result<Response<DeleteVolumeResponse>, Status> {
        let mut idle = IdlePasses::default();
        let next = move |deleted: &Result<(), ControllerError>| match deleted {
            Err(ControllerError::Volume { source, .. }) => idle.continues(source).then_some(Duration::ZERO),
            _ => None,
        };
        match Named::parse(&request.get_ref().volume_id).map_err(ControllerError::from)? {
            Named::Impossible => {}
            Named::Volume(id) => self.change(&id, next, delete).await?,
        }
        Ok(Response::new(DeleteVolumeResponse {}))
    }

    async fn controller_expand_volume(
        &self,
        request: Request<ControllerExpandVolumeRequest>,
    ) -> Result<Response<ControllerExpandVolumeResponse>, Status> {
        let want = Grow::parse(request.get_ref()).map_err(ControllerError::from)?;
        let id = want.id.clone();
        let want = Arc::new(want);
        let (size, node_expansion_required) =
            self.change(&id, |_| None, move |volumes, id| expand(volumes, id, &want)).await?;
        let capacity_bytes = signed(size.get());
        Ok(Response::new(ControllerExpandVolumeResponse { capacity_bytes, node_expansion_required }))
    }

    async fn validate_volume_capabilities(
        &self,
        request: Request<ValidateVolumeCapabilitiesRequest>,
    ) -> Result<Response<ValidateVolumeCapabilitiesResponse>, Status> {
        let want = Validate::parse(request.get_ref()).map_err(ControllerError::from)?;
        let Named::Volume(id) = want.id else { return Err(ControllerError::Impossible.into()) };
        let found = self.volumes.record(&id).map_err(ControllerError::Read)?;
        let record = found.filter(|record| !record.mode.is_snapshot()).ok_or(ControllerError::Unknown(id))?;
        let rejection = plan::validate(want.mode, want.parameters, &want.mutable, &record).err();
        let message = request.into_inner();
        let response = match rejection {
            Some(rejection) => {
                ValidateVolumeCapabilitiesResponse { message: causes::line(&rejection), confirmed: None }
            }
            None => ValidateVolumeCapabilitiesResponse {
                confirmed: Some(Confirmed {
                    volume_context: message.volume_context,
                    volume_capabilities: message.volume_capabilities,
                    parameters: message.parameters,
                    mutable_parameters: message.mutable_parameters,
                }),
                message: String::new(),
            },
        };
        Ok(Response::new(response))
    }

    async fn list_volumes(
        &self,
        request: Request<ListVolumesRequest>,
    ) -> Result<Response<ListVolumesResponse>, Status> {
        let ListVolumesRequest { max_entries, starting_token } = request.get_ref();
        let page = Page::parse(*max_entries, starting_token, VOLUMES).map_err(ControllerError::from)?;
        let mut records = self.on_disk(|volumes| volumes.records()).await.map_err(ControllerError::from)?.readable;
        records.retain(|_, record| record.state == State::Announced && !record.mode.is_snapshot());
        let (found, next_token) = page.of(records);
        let entry =
            |(id, record): (VolumeId, Record)| Entry { volume: Some(self.message(&id, record.size)), status: None };
        Ok(Response::new(ListVolumesResponse { entries: found.into_iter().map(entry).collect(), next_token }))
    }

    async fn get_capacity(
        &self,
        request: Request<GetCapacityRequest>,
    ) -> Result<Response<GetCapacityResponse>, Status> {
        let Capacity { mode, parameters, place } =
            Capacity::parse(request.get_ref(), &self.node).map_err(ControllerError::from)?;
        if place == Placement::Elsewhere {
            let maximum_volume_size = Some(0);
            return Ok(Response::new(GetCapacityResponse { maximum_volume_size, ..GetCapacityResponse::default() }));
        }
        let volumes = Arc::clone(&self.volumes);
        let space = self.measurements.run(move || volumes.space()).await.map_err(ControllerError::from)?;
        let modes = mode.map_or(vec![VolumeMode::Filesystem, VolumeMode::Block], |mode| vec![mode.into()]);
        let largest = modes.into_iter().map(|mode| space.largest(|size| parameters.mode(mode, size))).max();
        Ok(Response::new(GetCapacityResponse {
            available_capacity: signed(space.free().get()),
            maximum_volume_size: largest.map(|size| signed(size.get())),
            minimum_volume_size: None,
        }))
    }

    async fn controller_get_capabilities(
        &self,
        _: Request<ControllerGetCapabilitiesRequest>,
    ) -> Result<Response<ControllerGetCapabilitiesResponse>, Status> {
        let capability = |kind: rpc::Type| ControllerServiceCapability {
            r#type: Some(controller_service_capability::Type::Rpc(controller_service_capability::Rpc {
                r#type: kind.into(),
            })),
        };
        let capabilities = CAPABILITIES.map(capability).to_vec();
        Ok(Response::new(ControllerGetCapabilitiesResponse { capabilities }))
    }

    async fn controller_publish_volume(
        &self,
        _: Request<ControllerPublishVolumeRequest>,
    ) -> Result<Response<ControllerPublishVolumeResponse>, Status> {
        Err(unannounced("PUBLISH_UNPUBLISH_VOLUME"))
    }

    async fn controller_unpublish_volume(
        &self,
        _: Request<ControllerUnpublishVolumeRequest>,
    ) -> Result<Response<ControllerUnpublishVolumeResponse>, Status> {
        Err(unannounced("PUBLISH_UNPUBLISH_VOLUME"))
    }

    /// Returns when the blocks are copied: no other service copies them. If the client cancels a call that has taken the
    /// snapshot, its next call continues.
    async fn create_snapshot(
        &self,
        request: Request<CreateSnapshotRequest>,
    ) -> Result<Response<CreateSnapshotResponse>, Status> {
        let message = request.get_ref();
        let name = self.check_name(&message.name, &message.parameters)?;
        let Take { id, request } = Take::parse(name, message).map_err(ControllerError::from)?;
        let next = pauses(|taken: &Result<Taken<Record>, _>| taken.as_ref().ok()?.copying);
        let take = self.change(&id, next, move |volumes, id| {
            volumes.take_snapshot(id, &request).map_err(Change::Snapshot.failed())
        });
        let taken = take.await?;
        Ok(Response::new(CreateSnapshotResponse { snapshot: snapshots::message(&id, &taken.snapshots) }))
    }

    async fn delete_snapshot(
        &self,
        request: Request<DeleteSnapshotRequest>,
    ) -> Result<Response<DeleteSnapshotResponse>, Status> {
        match Named::snapshot("snapshot_id", &request.get_ref().snapshot_id).map_err(ControllerError::from)? {
            Named::Impossible => {}
            Named::Volume(id) => self.change(&id, |_| None, delete_snapshot).await?,
        }
        Ok(Response::new(DeleteSnapshotResponse {}))
    }

    async fn list_snapshots(
        &self,
        request: Request<ListSnapshotsRequest>,
    ) -> Result<Response<ListSnapshotsResponse>, Status> {
        let ListSnapshotsRequest { max_entries, starting_token, source_volume_id, snapshot_id, secrets: _ } =
            request.get_ref();
        let page = Page::parse(*max_entries, starting_token, VOLUMES).map_err(ControllerError::from)?;
        let is_asked = |asked: &str, found: &str| asked.is_empty() || asked == found;
        let records = self.on_disk(|volumes| volumes.records()).await.map_err(ControllerError::from)?.readable;
        let found = records.into_iter().filter_map(|(id, record)| {
            let found = snapshots::message(&id, &record)?;
            let is_found =
                is_asked(snapshot_id, &found.snapshot_id) && is_asked(source_volume_id, &found.source_volume_id);
            is_found.then_some((id, found))
        });
        let (found, next_token) = page.of(found.collect());
        let entry = |(_, snapshot)| list_snapshots_response::Entry { snapshot: Some(snapshot) };
        Ok(Response::new(ListSnapshotsResponse { entries: found.into_iter().map(entry).collect(), next_token }))
    }

    async fn get_snapshot(
        &self,
        request: Request<GetSnapshotRequest>,
    ) -> Result<Response<GetSnapshotResponse>, Status> {
        let named = Named::snapshot("snapshot_id", &request.get_ref().snapshot_id).map_err(ControllerError::from)?;
        let Named::Volume(id) = named else { return Err(ControllerError::Impossible.into()) };
        let record = self.volumes.record(&id).map_err(ControllerError::Read)?;
        let found = record.and_then(|record| snapshots::message(&id, &record));
        let snapshot = Some(found.ok_or(ControllerError::NoSnapshot(id))?);
        Ok(Response::new(GetSnapshotResponse { snapshot }))
    }

    async fn controller_get_volume(
        &self,
        _: Request<ControllerGetVolumeRequest>,
    ) -> Result<Response<ControllerGetVolumeResponse>, Status> {
        Err(unannounced("GET_VOLUME"))
    }

    /// The faults of the disk, which all volumes have in common, and of the volume's record.
    async fn controller_get_volume_health(
        &self,
        request: Request<ControllerGetVolumeHealthRequest>,
    ) -> Result<Response<ControllerGetVolumeHealthResponse>, Status> {
        let id = volume_id(&request.get_ref().volume_id).map_err(ControllerError::from)?;
        let found = match self.volumes.record(&id) {
            Ok(Some(record)) if !record.mode.is_snapshot() => None,
            Ok(_) => return Err(ControllerError::Unknown(id).into()),
            Err(Error::Closed { .. }) => Some(PathContents::Unusable),
            Err(other) => return Err(ControllerError::Read(other).into()),
        };
        let volume_health = Some(health(&id, found.as_ref(), &self.disk_health()));
        Ok(Response::new(ControllerGetVolumeHealthResponse { volume_health }))
    }

    /// Lists the volumes for which [`Self::controller_get_volume_health`] reports a fault.
    async fn controller_list_volume_health(
        &self,
        request: Request<ControllerListVolumeHealthRequest>,
    ) -> Result<Response<ControllerListVolumeHealthResponse>, Status> {
        let ControllerListVolumeHealthRequest { max_entries, starting_token, secrets: _ } = request.get_ref();
        let page = Page::parse(*max_entries, starting_token, HEALTH).map_err(ControllerError::from)?;
        let records = self.on_disk(|volumes| volumes.records()).await.map_err(ControllerError::from)?;
        let (found, next_token) = page.of(abnormal(records, &self.disk_health()));
        let entries = found.into_iter().map(|(_, health)| health).collect();
        Ok(Response::new(ControllerListVolumeHealthResponse { entries, next_token }))
    }

    async fn controller_modify_volume(
        &self,
        request: Request<ControllerModifyVolumeRequest>,
    ) -> Result<Response<ControllerModifyVolumeResponse>, Status> {
        let want = Modify::parse(request.get_ref()).map_err(ControllerError::from)?;
        let id = want.id.clone();
        self.change(&id, |_| None, move |volumes, id| modify(volumes, id, &want)).await?;
        Ok(Response::new(ControllerModifyVolumeResponse {}))
    }
}

fn unannounced(capability: &str) -> Status {
    Status::unimplemented(format!("{capability} is not announced"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_that_wait_for_their_source_have_growing_pauses() {
        let mut next = pauses(|copying: &Result<Option<Copying>, _>| *copying.as_ref().ok()?);
        let passes = [Some(Copying::InPart), Some(Copying::Waits), Some(Copying::Waits), None];
        let found = passes.map(|copying| next(&Ok(copying)).map(|pause| pause.as_millis()));
        assert_eq!(found, [Some(0), Some(500), Some(1000), None]);
    }
}
