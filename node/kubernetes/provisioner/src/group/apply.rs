//! Takes the snapshots of groups, writes their state to the contents, and removes them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError};

use apiclient::is_missing;
use cluster::snapshot::MANAGED_BY;
use cluster::snapshot::group::PROTECTION;
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::runtime::controller::Action;
use kube::{Api, ResourceExt as _};
use serde_json::json;
use tracing::{Instrument as _, info, info_span};
use volume::{GroupRequest, Record, SnapshotParameters, SnapshotRequest, VolumeId, Volumes};

use crate::context::{Outcome, Provisioner, take_after};
use crate::error::{Error, api};
use crate::group::object::{GroupClass, GroupContent, GroupContentStatus, GroupVersion};
use crate::group::plan::{self, GroupPlan, GroupRejection};
use crate::listing::{list_all, list_each};
use crate::pv::object;
use crate::snapshot::apply::{backoff_key, patch, patch_status, release, show_failure};
use crate::snapshot::listing::ContentListing;
use crate::snapshot::plan::ends_snapshot;

pub(crate) async fn reconcile_group(
    content: Arc<GroupContent>,
    provisioner: Arc<Provisioner>,
) -> Result<Action, Error> {
    let key = backoff_key(&*content);
    if let Some(left) = provisioner.attempts.wait(&key) {
        return Ok(Action::requeue(left));
    }
    let span = info_span!("group", content = content.name_any());
    let served = provisioner.serve_group(&content).instrument(span).await;
    match &served {
        Ok(Outcome::Occupied) => {}
        Ok(_) => provisioner.attempts.succeeded(&key),
        // The status does not get an error if the API server does not answer, or the content has changed.
        Err(Error::Api(_)) => {}
        Err(error) => provisioner.report_group_failure(&content, error).await?,
    }
    served.map(Outcome::action)
}

impl Provisioner {
    pub(crate) fn groups(&self, version: GroupVersion) -> Api<GroupContent> {
        Api::all_with(self.client.clone(), &version)
    }

    /// API version that the watch has found.
    fn group_version(&self) -> GroupVersion {
        *self.group_version.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn served_groups(&self) -> Api<GroupContent> {
        self.groups(self.group_version())
    }

    /// Lists all contents of groups. The list is empty in a cluster without the kind.
    pub(crate) async fn all_groups(&self) -> Result<Vec<GroupContent>, Error> {
        for version in GroupVersion::ALL {
            match list_all(&self.groups(version)).await {
                Ok(contents) => return Ok(contents),
                Err(error) if is_missing(&error) => {}
                Err(error) => return Err(api("list the contents of groups")(error).into()),
            }
        }
        Ok(Vec::new())
    }

    async fn serve_group(&self, content: &GroupContent) -> Result<Outcome, Error> {
        match plan::plan(content, &self.node, &self.places(content).await?)? {
            GroupPlan::Ignore => {}
            GroupPlan::Adopt => self.adopt_group(content).await?,
            GroupPlan::Take(members) => return self.take_group(content, members).await,
            GroupPlan::Find(ids) => self.find_group(content, &ids).await?,
            GroupPlan::Delete(ids) => return self.delete_group(content, &ids).await,
            GroupPlan::Release => release(&self.served_groups(), content, PROTECTION).await?,
        }
        Ok(Outcome::Complete)
    }

    /// Returns the nodes of the content's volumes, and of its snapshots that are on this node. PVs are read only if a
    /// volume is not on this node.
    async fn places(&self, content: &GroupContent) -> Result<BTreeMap<VolumeId, String>, Error> {
        let source = &content.spec.source;
        let is_needed = match content.metadata.deletion_timestamp {
            None => !content.is_ready(),
            Some(_) => content.node().is_none() && source.group_snapshot_handles.is_some(),
        };
        if !is_needed {
            return Ok(BTreeMap::new());
        }
        let snapshots = source.group_snapshot_handles.iter().flat_map(|handles| &handles.volume_snapshot_handles);
        let wanted: BTreeSet<VolumeId> =
            source.volume_handles.iter().chain(snapshots).filter_map(|handle| handle.parse().ok()).collect();
        let records = self.on_disk(|store| store.records()).await??.readable;
        let here = |id: &&VolumeId| records.contains_key(*id);
        let mut places: BTreeMap<_, _> = wanted.iter().filter(here).map(|id| (id.clone(), self.node.clone())).collect();
        if source.group_snapshot_handles.is_none() && places.len() < wanted.len() {
            let add = |pv: PersistentVolume| {
                let (Some(id), Some(node)) = (object::handle(&pv), object::node_of(&pv)) else { return };
                // A PV of this node whose volume is missing on the disk has no place.
                if wanted.contains(&id) && node != self.node {
                    places.insert(id, node.to_owned());
                }
            };
            list_each(&self.pvs, add).await.map_err(api("list the PVs"))?;
        }
        Ok(places)
    }

    /// Takes the snapshots, and writes their state to the status.
    async fn take_group(
        &self,
        content: &GroupContent,
        members: BTreeMap<VolumeId, SnapshotRequest>,
    ) -> Result<Outcome, Error> {
        let Some(_guards) = self.try_lock_all(members.keys()) else { return Ok(Outcome::Occupied) };
        let is_shown = content.status.as_ref().is_some_and(|status| status.creation_time.is_some());
        // Earlier releases wrote the instant before the members were ready, and could undo the members then.
        let ids: Vec<VolumeId> = members.keys().cloned().collect();
        let find = move |store: &dyn Volumes| -> Option<BTreeMap<VolumeId, Record>> {
            ids.into_iter().map(|id| store.record(&id).ok().flatten().map(|record| (id, record))).collect()
        };
        let found = self.on_disk(find).await?;
        let is_new = !is_shown || found.is_none();
        let uid = content.uid().unwrap_or_default();
        let records = match found.filter(|records| records.values().all(|record| record.is_taken_for(&uid))) {
            Some(records) => records,
            None => match self.take_members(content, members, is_new).await? {
                Some(records) => records,
                None => return Ok(Outcome::Occupied),
            },
        };
        self.write_group_status(content, &plan::status(content, &records)).await?;
        info!(snapshots = records.len(), "snapshots of a group ready");
        if is_new {
            self.events.group_taken(content, &self.node, &records, self.free().await);
        }
        Ok(Outcome::Complete)
    }

    /// Returns `None` if other passes have a source or all places.
    async fn take_members(
        &self,
        content: &GroupContent,
        mut members: BTreeMap<VolumeId, SnapshotRequest>,
        is_new: bool,
    ) -> Result<Option<BTreeMap<VolumeId, Record>>, Error> {
        let id: VolumeId = content.handle().and_then(|handle| handle.parse().ok()).ok_or(Error::NoUid)?;
        let sources: BTreeSet<_> = members.values().map(|member| member.source.clone()).collect();
        // A pass that waits for a turn is repeated each second, and sends no request.
        if self.clone_turn(&sources).is_none() {
            return Ok(None);
        }
        let class = content.spec.volume_group_snapshot_class_name.as_deref().filter(|class| !class.is_empty());
        let SnapshotParameters { max_pause, sharing } = match class {
            Some(class) => match self.group_parameters(class).await {
                Err(Error::UnknownGroupClass { .. } | Error::GroupRejected(_)) if !is_new => {
                    SnapshotParameters::default()
                }
                found => found?,
            },
            None => SnapshotParameters::default(),
        };
        members.values_mut().for_each(|member| member.sharing = sharing);
        let Some(turn) = self.clone_turn(&sources) else { return Ok(None) };
        let want = GroupRequest { id, members, max_pause };
        let taken = self.on_disk(move |store| store.take_group(&want)).await?;
        drop(turn);
        let taken = taken.map_err(|error| match error {
            volume::Error::Removed { id } => Error::GroupRejected(GroupRejection::Removed(id)),
            error => Error::of_claim(error),
        });
        Ok(Some(taken?.snapshots))
    }

    /// Reads the parameters of the class, which the content does not have.
    async fn group_parameters(&self, class: &str) -> Result<SnapshotParameters, Error> {
        let classes = Api::<GroupClass>::all_with(self.client.clone(), &self.group_version());
        match classes.get(class).await {
            Ok(found) => Ok(plan::parameters(&found)?),
            Err(error) if is_missing(&error) => Err(Error::UnknownGroupClass { class: class.to_owned() }),
            Err(error) => Err(api("read the VolumeGroupSnapshotClass")(error).into()),
        }
    }

    async fn find_group(&self, content: &GroupContent, ids: &BTreeSet<VolumeId>) -> Result<(), Error> {
        let mut records = self.on_disk(|store| store.records()).await??.readable;
        let is_ready = |record: &Record| record.mode.is_snapshot() && record.state.is_reported();
        records.retain(|id, record| ids.contains(id) && is_ready(record));
        if let Some(missing) = ids.iter().find(|id| !records.contains_key(*id)) {
            return Err(Error::NoSnapshot { id: missing.clone() });
        }
        self.write_group_status(content, &plan::status(content, &records)).await
    }

    async fn delete_group(&self, content: &GroupContent, ids: &BTreeSet<VolumeId>) -> Result<Outcome, Error> {
        let Some(_guards) = self.try_lock_all(ids) else { return Ok(Outcome::Occupied) };
        let Some(listing) = self.listed_contents(content.arrival, ids).await? else { return Ok(Outcome::Occupied) };
        let place = take_after(|| self.removal_place(ids), self.prepare_group_removal(content, ids, &listing)).await?;
        let Some(place) = place else { return Ok(Outcome::Occupied) };
        for id in ids {
            if self.is_new_removal(id) {
                let content_uid = content.uid();
                info!(snapshot = %id, content_uid, "audit: deleting the snapshot of a group with policy Delete");
            }
            if self.remove_snapshot(id).await?.is_none() {
                return Ok(Outcome::Occupied);
            }
        }
        drop(place);
        release(&self.served_groups(), content, PROTECTION).await?;
        Ok(Outcome::Complete)
    }

    /// Adopts the contents of the group's members, and verifies that no other content needs their snapshots.
    async fn prepare_group_removal(
        &self,
        content: &GroupContent,
        ids: &BTreeSet<VolumeId>,
        listing: &ContentListing,
    ) -> Result<(), Error> {
        let handle = content.handle();
        for id in ids {
            for other in listing.of(id) {
                if other.spec.source.snapshot_handle.is_none() && other.group() == handle.as_deref() {
                    // This node has to remove the finalizer of the member's content, also when the disk does not show
                    // any more that the snapshot was on this node.
                    if other.node().is_none() {
                        self.adopt(other).await?;
                    }
                // An administrator may have created a content for the snapshot, or the contents of a group that exists.
                } else if content.spec.source.group_snapshot_handles.is_none() && !ends_snapshot(other) {
                    return Err(Error::SharedSnapshot { other: other.name_any(), id: id.clone() });
                }
            }
        }
        Ok(())
    }

    async fn adopt_group(&self, content: &GroupContent) -> Result<(), Error> {
        // Of several nodes that adopt the content, one succeeds.
        let version = content.resource_version();
        let label = json!({"uid": content.uid(), "resourceVersion": version, "labels": {MANAGED_BY: self.node}});
        patch(&self.served_groups(), content, label).await?;
        info!("content of a group is served by this node");
        Ok(())
    }

    async fn write_group_status(&self, content: &GroupContent, wanted: &GroupContentStatus) -> Result<(), Error> {
        if content.status.as_ref() == Some(wanted) {
            return Ok(());
        }
        patch_status(&self.served_groups(), content, json!(wanted)).await
    }

    /// Reports a failure in the status and by an event.
    async fn report_group_failure(&self, content: &GroupContent, error: &Error) -> Result<(), Error> {
        if content.metadata.deletion_timestamp.is_some() {
            self.events.group_delete_failed(content, error);
            return Ok(());
        }
        let shown = content.status.as_ref().and_then(|status| status.error.as_ref());
        let report = || self.events.group_failed(content, error);
        show_failure(&self.served_groups(), content, shown, error, report).await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;
    use std::time::{Duration, SystemTime};

    use cluster::snapshot::group::BEING_DELETED;
    use http::Method;
    use tokio::time::{advance, timeout};
    use units::Bytes;
    use volume::{Cloning, DRIVER_NAME, Mode, Sharing, State};

    use super::*;
    use crate::context::OCCUPIED;
    use crate::fixture::{self, NODE, id};

    fn content() -> Arc<GroupContent> {
        let content = json!({
            "metadata": {"name": "taken", "uid": "taken", "labels": {MANAGED_BY: NODE}},
            "spec": {
                "driver": DRIVER_NAME, "deletionPolicy": "Delete", "source": {"volumeHandles": ["pvc-1", "pvc-2"]},
            },
        });
        Arc::new(serde_json::from_value(content).expect("a content"))
    }

    fn deleted() -> Arc<GroupContent> {
        let content = json!({
            "metadata": {
                "name": "taken", "uid": "taken", "labels": {MANAGED_BY: NODE}, "finalizers": [PROTECTION],
                "deletionTimestamp": "2026-01-01T00:00:00Z", "annotations": {BEING_DELETED: "yes"},
            },
            "spec": {
                "driver": DRIVER_NAME, "deletionPolicy": "Delete", "source": {"volumeHandles": ["pvc-1", "pvc-2"]},
            },
        });
        Arc::new(serde_json::from_value(content).expect("a content"))
    }

    /// Regression: the announcement of a thin member was not durable if its sync had failed.
    #[tokio::test(start_paused = true)]
    async fn thin_members_are_reported_after_a_call_of_the_store() {
        let sources = ["pvc-1", "pvc-2"].map(id);
        for (sharing, calls) in [(Sharing::Temporary, 0), (Sharing::Permanent, 1)] {
            let (provisioner, disk) = fixture::unanswered(&sources.each_ref());
            for member in ["group-taken-pvc-1", "group-taken-pvc-2"] {
                let mode = Mode::Snapshot { taken: SystemTime::UNIX_EPOCH, sharing };
                let mut record = fixture::record(mode, State::Announced);
                record.claim.uid = "taken".into();
                disk.put(&id(member), record);
            }
            let mut pass = Box::pin(reconcile_group(content(), provisioner));
            assert!(timeout(Duration::from_secs(1), &mut pass).await.is_err(), "the status is written");
            assert_eq!(disk.pauses().len(), calls, "{sharing:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn other_clones_begin_while_the_status_is_not_written() {
        let sources = ["pvc-1", "pvc-2"].map(id);
        let (provisioner, disk) = fixture::unanswered(&sources.each_ref());
        let mut pass = Box::pin(reconcile_group(content(), Arc::clone(&provisioner)));
        assert!(timeout(Duration::from_secs(1), &mut pass).await.is_err(), "the status is written without an answer");
        assert!(disk.record(&id("group-taken-pvc-2")).is_some());
        assert!(fixture::has_turns(&provisioner, sources.each_ref()));
    }

    /// Regression: a pass that waited for its turn read the class each second.
    #[tokio::test(start_paused = true)]
    async fn a_group_that_waits_for_its_turn_sends_no_request() {
        let sources = ["pvc-1", "pvc-2"].map(id);
        let (provisioner, _disk) = fixture::unanswered(&sources.each_ref());
        let mut content = GroupContent::clone(&content());
        content.spec.volume_group_snapshot_class_name = Some("local".into());
        let content = Arc::new(content);
        let limit = Duration::from_secs(1);
        let pass = || timeout(limit, reconcile_group(Arc::clone(&content), Arc::clone(&provisioner)));
        let turn = provisioner.clone_turn([&sources[1]]).expect("a turn");
        let waiting = pass().await.expect("it sends no request").expect("it waits");
        assert_eq!(waiting, Outcome::Occupied.action());
        drop(turn);
        assert!(pass().await.is_err(), "the class is read without an answer");
    }

    /// Regression: root on a worker could keep other nodes from removing groups, by a content of its own for each.
    #[tokio::test(start_paused = true)]
    async fn a_content_of_another_node_does_not_keep_a_group() {
        let contents = [json!({
            "metadata": {"name": "foreign", "uid": "foreign", "labels": {MANAGED_BY: "another"}},
            "spec": {"driver": DRIVER_NAME, "source": {"snapshotHandle": "group-taken-pvc-1"}},
        })];
        let client = fixture::client(move |request| {
            let is_list = *request.method() == Method::GET;
            Some(if is_list { fixture::page(&contents, request) } else { (200, "{}".to_owned()) })
        });
        let (provisioner, _disk) = fixture::with_client(client);
        let removed = reconcile_group(deleted(), provisioner).await.expect("no error");
        assert_eq!(removed, Outcome::Complete.action());
    }

    /// Regression: while a client of CSI cloned one of the volumes, a pass listed all contents each second.
    #[tokio::test(start_paused = true)]
    async fn a_removal_pauses_while_another_operation_has_a_source() {
        let (content, (client, lists)) = (deleted(), fixture::empty());
        let (provisioner, disk) = fixture::with_client(client);
        let members = ["group-taken-pvc-1", "group-taken-pvc-2"].map(id);
        let mode = Mode::Snapshot { taken: SystemTime::UNIX_EPOCH, sharing: Sharing::Permanent };
        for (member, source) in members.iter().zip(["pvc-1", "pvc-2"]) {
            let cloning = Some(Cloning::new(id(source), Bytes::GIB));
            disk.put(member, Record { cloning, ..fixture::record(mode, State::Announced) });
        }
        let pass = async || reconcile_group(Arc::clone(&content), Arc::clone(&provisioner)).await.expect("no error");
        disk.set_locked(&id("pvc-2"), true);
        for _ in 0..2 {
            assert_eq!(pass().await, Outcome::Occupied.action());
            assert_eq!(lists.load(Ordering::Relaxed), 1);
            assert!(members.iter().all(|member| !provisioner.is_new_removal(member)), "each is logged once");
        }
        assert_eq!(members.each_ref().map(|member| disk.record(member).is_some()), [false, true]);
        disk.set_locked(&id("pvc-2"), false);
        advance(OCCUPIED).await;
        assert_eq!(pass().await, Outcome::Complete.action());
        assert_eq!(members.each_ref().map(|member| disk.record(member)), [None, None]);
    }
}
