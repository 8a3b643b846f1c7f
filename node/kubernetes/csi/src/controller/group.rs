//! The GroupController service: snapshots of several volumes of this node at one instant.

use std::collections::BTreeMap;

use proto::csi::group_controller_server::GroupController;
use proto::csi::group_controller_service_capability::{self, rpc};
use proto::csi::{
    CreateVolumeGroupSnapshotRequest, CreateVolumeGroupSnapshotResponse, DeleteVolumeGroupSnapshotRequest,
    DeleteVolumeGroupSnapshotResponse, GetVolumeGroupSnapshotRequest, GetVolumeGroupSnapshotResponse,
    GroupControllerGetCapabilitiesRequest, GroupControllerGetCapabilitiesResponse, GroupControllerServiceCapability,
};
use tonic::{Request, Response, Status};
use volume::{GroupRequest, Record, Taken, VolumeId, Volumes};

use crate::controller::request::Named;
use crate::controller::{ControllerService, pauses, snapshots};
use crate::host::Host;
use crate::status::{Change, ControllerError};

type Members = BTreeMap<VolumeId, Record>;

/// Makes one pass over the snapshots of a group.
fn take(volumes: &dyn Volumes, request: &GroupRequest) -> Result<Taken<Members>, ControllerError> {
    snapshots::check_group(request, &members(volumes, &request.id)?)?;
    volumes.take_group(request).map_err(Change::Snapshot.failed())
}

fn delete(volumes: &dyn Volumes, group: &VolumeId, listed: &[String]) -> Result<(), ControllerError> {
    let members = members(volumes, group)?;
    // No member is left to compare the list with.
    if members.is_empty() {
        return Ok(());
    }
    snapshots::check_listed(group, listed, &members)?;
    members.keys().try_for_each(|id| volumes.remove_snapshot(id).map(drop).map_err(Change::Delete.failed()))
}

fn members(volumes: &dyn Volumes, group: &VolumeId) -> Result<Members, ControllerError> {
    Ok(snapshots::members(group, volumes.records()?.readable))
}

#[tonic::async_trait]
impl<H: Host> GroupController for ControllerService<H> {
    async fn group_controller_get_capabilities(
        &self,
        _: Request<GroupControllerGetCapabilitiesRequest>,
    ) -> Result<Response<GroupControllerGetCapabilitiesResponse>, Status> {
        let rpc =
            group_controller_service_capability::Rpc { r#type: rpc::Type::CreateDeleteGetVolumeGroupSnapshot.into() };
        let r#type = Some(group_controller_service_capability::Type::Rpc(rpc));
        let capabilities = vec![GroupControllerServiceCapability { r#type }];
        Ok(Response::new(GroupControllerGetCapabilitiesResponse { capabilities }))
    }

    /// Returns when the blocks of all snapshots are copied, as for a single one.
    async fn create_volume_group_snapshot(
        &self,
        request: Request<CreateVolumeGroupSnapshotRequest>,
    ) -> Result<Response<CreateVolumeGroupSnapshotResponse>, Status> {
        let message = request.get_ref();
        let name = self.check_name(&message.name, &message.parameters)?;
        let request = snapshots::group(name, message).map_err(ControllerError::from)?;
        let id = request.id.clone();
        let next = pauses(|taken: &Result<Taken<Members>, _>| taken.as_ref().ok()?.copying);
        let taken = self.change(&id, next, move |volumes, _| take(volumes, &request)).await?;
        let group_snapshot = snapshots::group_message(&id, &taken.snapshots);
        Ok(Response::new(CreateVolumeGroupSnapshotResponse { group_snapshot }))
    }

    async fn delete_volume_group_snapshot(
        &self,
        request: Request<DeleteVolumeGroupSnapshotRequest>,
    ) -> Result<Response<DeleteVolumeGroupSnapshotResponse>, Status> {
        let DeleteVolumeGroupSnapshotRequest { group_snapshot_id, snapshot_ids, secrets: _ } = request.into_inner();
        match Named::snapshot("group_snapshot_id", &group_snapshot_id).map_err(ControllerError::from)? {
            Named::Impossible => {}
            Named::Volume(id) => {
                self.change(&id, |_| None, move |volumes, id| delete(volumes, id, &snapshot_ids)).await?;
            }
        }
        Ok(Response::new(DeleteVolumeGroupSnapshotResponse {}))
    }

    async fn get_volume_group_snapshot(
        &self,
        request: Request<GetVolumeGroupSnapshotRequest>,
    ) -> Result<Response<GetVolumeGroupSnapshotResponse>, Status> {
        let GetVolumeGroupSnapshotRequest { group_snapshot_id, snapshot_ids, secrets: _ } = request.into_inner();
        let named = Named::snapshot("group_snapshot_id", &group_snapshot_id).map_err(ControllerError::from)?;
        let Named::Volume(id) = named else { return Err(ControllerError::Impossible.into()) };
        let group = id.clone();
        let members = self.on_disk(move |volumes| members(volumes, &group)).await?;
        let missing = || ControllerError::NoSnapshot(id.clone());
        let group_snapshot = Some(snapshots::group_message(&id, &members).ok_or_else(missing)?);
        snapshots::check_listed(&id, &snapshot_ids, &members)?;
        Ok(Response::new(GetVolumeGroupSnapshotResponse { group_snapshot }))
    }
}
