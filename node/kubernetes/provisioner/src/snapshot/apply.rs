//! Takes snapshots, writes their state to the contents, and removes them.

use std::fmt::Debug;
use std::sync::Arc;

use apiclient::is_missing;
use cluster::snapshot::{MANAGED_BY, PROTECTION};
use dir::Ensured;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::runtime::controller::Action;
use kube::{Api, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tracing::{Instrument as _, debug, info, info_span, warn};
use volume::{Record, SnapshotParameters, SnapshotRequest, VolumeId, VolumeRefusal};

use crate::backoff;
use crate::context::{Outcome, Provisioner, take_after};
use crate::error::{Error, api, unless_gone};
use crate::events::shortened;
use crate::metrics::Object;
use crate::snapshot::listing::ContentListing;
use crate::snapshot::object::{Arrival, Content, SnapshotClass, SnapshotError};
use crate::snapshot::plan::{self, SnapshotPlan};

pub(crate) async fn reconcile_content(content: Arc<Content>, provisioner: Arc<Provisioner>) -> Result<Action, Error> {
    let key = backoff_key(&*content);
    if let Some(left) = provisioner.attempts.wait(&key) {
        return Ok(Action::requeue(left));
    }
    let span = info_span!("snapshot", content = content.name_any());
    let served = provisioner.serve(&content).instrument(span).await;
    match &served {
        Ok(Outcome::Occupied) => {}
        Ok(_) => provisioner.attempts.succeeded(&key),
        // The status does not get an error if the API server does not answer, or the content has changed.
        Err(Error::Api(_)) => {}
        Err(error) => provisioner.report_failure(&content, error).await?,
    }
    served.map(Outcome::action)
}

/// Counts the failure of a pass over the content of a snapshot or a group, and schedules the next pass.
pub(crate) fn failed<K: Resource>(content: Arc<K>, error: &Error, provisioner: Arc<Provisioner>) -> Action {
    provisioner.metrics.failed(Object::Snapshot, error.kind());
    let (content_name, cause): (_, &dyn std::error::Error) = (content.name_any(), error);
    // A rejected content cannot succeed later; only another content can.
    if matches!(error, Error::SnapshotRejected(_) | Error::GroupRejected(_)) {
        warn!(content = content_name, error = cause, "content rejected");
        return Action::requeue(backoff::MOST);
    }
    let retry = provisioner.attempts.pass_failed(&backoff_key(&*content), error);
    warn!(content = content_name, error = cause, attempt = retry.attempt, "pass over content failed, will retry");
    Action::requeue(retry.after)
}

/// Back-off key of a content. The deletion has its own key, so that it does not wait for the back-off of a snapshot
/// that cannot be taken.
pub(crate) fn backoff_key<K: Resource>(content: &K) -> String {
    let uid = content.uid().unwrap_or_default();
    if content.meta().deletion_timestamp.is_some() { format!("{uid} deleted") } else { uid }
}

/// Removes the finalizer, which ends the deletion.
pub(crate) async fn release<K>(contents: &Api<K>, content: &K, protection: &str) -> Result<(), Error>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let others: Vec<_> = content.finalizers().iter().filter(|name| *name != protection).collect();
    let version = content.resource_version();
    patch(contents, content, json!({"uid": content.uid(), "resourceVersion": version, "finalizers": others})).await
}

pub(crate) async fn patch<K>(contents: &Api<K>, content: &K, metadata: Value) -> Result<(), Error>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let patch = Patch::Merge(json!({ "metadata": metadata }));
    let patched = contents.patch(&content.name_any(), &PatchParams::default(), &patch).await;
    unless_gone(patched, "write the content")?;
    Ok(())
}

pub(crate) async fn patch_status<K>(contents: &Api<K>, content: &K, status: Value) -> Result<(), Error>
where
    K: Resource + DeserializeOwned,
{
    let patch = Patch::Merge(json!({"metadata": {"uid": content.uid()}, "status": status}));
    let patched = contents.patch_status(&content.name_any(), &PatchParams::default(), &patch).await;
    unless_gone(patched, "write the status of the content")?;
    Ok(())
}

/// Writes the failure to the status, unless the status has it.
pub(crate) async fn show_failure<K>(
    contents: &Api<K>,
    content: &K,
    shown: Option<&SnapshotError>,
    error: &Error,
    report: impl FnOnce(),
) -> Result<(), Error>
where
    K: Resource + DeserializeOwned,
{
    let message = shortened(causes::line(error));
    let is_shown = shown.is_some_and(|shown| shown.message.as_ref() == Some(&message));
    // The status of a rejected content starts another pass at once, before the event of this one exists.
    if !(is_shown && matches!(error, Error::SnapshotRejected(_) | Error::GroupRejected(_))) {
        report();
    }
    if is_shown {
        return Ok(());
    }
    let error = json!({"time": Timestamp::now().to_string(), "message": message});
    patch_status(contents, content, json!({"readyToUse": false, "error": error})).await
}

impl Provisioner {
    async fn serve(&self, content: &Content) -> Result<Outcome, Error> {
        let records = match content.node() {
            Some(_) => None,
            None => Some(self.on_disk(|store| store.records()).await??.readable),
        };
        let is_on_disk = |id: &VolumeId| records.as_ref().is_some_and(|records| records.contains_key(id));
        let plan = plan::plan(content, &self.node, is_on_disk)?;
        if content.node().is_some() || plan == SnapshotPlan::Adopt {
            self.note_distribution(content);
        }
        let id = match &plan {
            SnapshotPlan::Take(id, _) | SnapshotPlan::Find(id) | SnapshotPlan::Delete(id) => Some(id),
            SnapshotPlan::Ignore | SnapshotPlan::Adopt | SnapshotPlan::Release => None,
        };
        let _guard = match id.map(|id| self.locks.try_lock(id)) {
            Some(None) => return Ok(Outcome::Occupied),
            guard => guard,
        };
        match plan {
            SnapshotPlan::Ignore => {}
            SnapshotPlan::Adopt => self.adopt(content).await?,
            SnapshotPlan::Take(id, request) => return self.take(content, &id, request).await,
            SnapshotPlan::Find(id) => self.find(content, &id).await?,
            SnapshotPlan::Delete(id) => return self.delete_snapshot(content, &id).await,
            SnapshotPlan::Release => release(&self.contents, content, PROTECTION).await?,
        }
        Ok(Outcome::Complete)
    }

    /// Takes the snapshot, and writes its state to the status. [`copy`](super::copy) copies its blocks.
    async fn take(&self, content: &Content, id: &VolumeId, mut want: SnapshotRequest) -> Result<Outcome, Error> {
        let is_shown = content.status.as_ref().is_some_and(|status| status.snapshot_handle.is_some());
        // Earlier releases wrote the handle before a snapshot was ready, and could undo the snapshot then.
        let found = self.on_volume(id, |store, id| store.record(id)).await?.map_err(Error::of_claim)?;
        let is_new = !is_shown || found.is_none();
        let record = if let Some(record) = found.filter(|record| record.is_taken_for(&want.claim.uid)) {
            record
        } else {
            // A pass that waits for a turn is repeated each second, and sends no request.
            if self.clone_turn([&want.source]).is_none() {
                return Ok(Outcome::Occupied);
            }
            if !want.class.is_empty() {
                match self.snapshot_parameters(&want.class).await {
                    Err(Error::UnknownSnapshotClass { .. } | Error::SnapshotRejected(_)) if !is_new => {}
                    found => SnapshotParameters { max_pause: want.max_pause, sharing: want.sharing } = found?,
                }
            }
            let Some(turn) = self.clone_turn([&want.source]) else { return Ok(Outcome::Occupied) };
            let taken = self.on_volume(id, move |store, id| store.take_snapshot(id, &want)).await?;
            drop(turn);
            taken.map_err(Error::of_claim)?.snapshots
        };
        self.write_state(content, id, &record).await?;
        info!(snapshot = %id, source = content.spec.source.volume_handle, size = %record.size, "snapshot ready");
        if is_new {
            self.events.snapshot_taken(content, &self.node, &record, self.free().await);
        }
        Ok(Outcome::Complete)
    }

    /// Reads the parameters of the class, which the content does not have.
    async fn snapshot_parameters(&self, class: &str) -> Result<SnapshotParameters, Error> {
        let classes = Api::<SnapshotClass>::all(self.client.clone());
        match classes.get(class).await {
            Ok(found) => Ok(plan::parameters(&found)?),
            Err(error) if is_missing(&error) => Err(Error::UnknownSnapshotClass { class: class.to_owned() }),
            Err(error) => Err(api("read the VolumeSnapshotClass")(error).into()),
        }
    }

    /// Record of a snapshot. `None` also if the record is unreadable, or is that of a volume.
    pub(crate) async fn snapshot_record(&self, id: &VolumeId) -> Result<Option<Record>, Error> {
        let found = match self.on_volume(id, |store, id| store.record(id)).await? {
            Err(volume::Error::Closed { .. }) => None,
            found => found.map_err(Error::Store)?,
        };
        Ok(found.filter(|record| record.mode.is_snapshot()))
    }

    async fn find(&self, content: &Content, id: &VolumeId) -> Result<(), Error> {
        let found = self.snapshot_record(id).await?.filter(|record| record.state.is_reported());
        let record = found.ok_or_else(|| Error::NoSnapshot { id: id.clone() })?;
        self.write_state(content, id, &record).await
    }

    /// Deletes the snapshot. The caller has the lock of the snapshot.
    async fn delete_snapshot(&self, content: &Content, id: &VolumeId) -> Result<Outcome, Error> {
        let Some(listing) = self.listed_contents(content.arrival, [id]).await? else { return Ok(Outcome::Occupied) };
        let place = take_after(|| self.removal_place([id]), self.prepare_removal(content, id, &listing)).await?;
        let Some(place) = place else { return Ok(Outcome::Occupied) };
        if self.is_new_removal(id) {
            let content_uid = content.uid();
            info!(snapshot = %id, content_uid, "audit: deleting the snapshot of a content with policy Delete");
        }
        let removed = self.remove_snapshot(id).await?;
        drop(place);
        match removed {
            Some(Ensured::Created(())) => info!(snapshot = %id, "snapshot removed"),
            Some(Ensured::Unchanged(())) => {}
            None => return Ok(Outcome::Occupied),
        }
        release(&self.contents, content, PROTECTION).await?;
        Ok(Outcome::Complete)
    }

    /// Removes a snapshot, or the copy of an unfinished rollback. `None` if another operation has its source: the next
    /// pass continues after a back-off, until which [`Provisioner::removal_place`] returns no place.
    pub(crate) async fn remove_snapshot(&self, id: &VolumeId) -> Result<Option<Ensured<()>>, Error> {
        match self.on_volume(id, |store, id| store.remove_snapshot(id)).await? {
            Err(error) if error.is_locked() => {
                let retry = self.removal_locked(id);
                debug!(snapshot = %id, %error, attempt = retry.attempt, "removal waits");
                Ok(None)
            }
            removed => {
                self.removal_ended(id);
                removed.map(Some).map_err(Error::Store)
            }
        }
    }

    /// The contents at the `deletion` of a content or later, for the removal of these snapshots. `None` if the pass has
    /// to wait: for a place, or for the next list.
    pub(crate) async fn listed_contents<'a>(
        &self,
        deletion: Arrival,
        ids: impl IntoIterator<Item = &'a VolumeId>,
    ) -> Result<Option<Arc<ContentListing>>, Error> {
        // A pass that waits for a place is repeated each second, and sends no request.
        if self.removal_place(ids).is_none() {
            return Ok(None);
        }
        let read = ContentListing::read(&self.contents, &self.node);
        Ok(self.content_listings.in_turn(deletion.0, read).await?)
    }

    /// Verifies that no other content needs the snapshot, and ends its rollback.
    async fn prepare_removal(&self, content: &Content, id: &VolumeId, listing: &ContentListing) -> Result<(), Error> {
        // An administrator may have created a second content for the snapshot.
        let is_other = |other: &&Content| other.metadata.uid != content.metadata.uid && !plan::ends_snapshot(other);
        if let Some(other) = listing.of(id).iter().find(is_other) {
            return Err(Error::SharedSnapshot { other: other.name_any(), id: id.clone() });
        }
        self.end_rollback_of(id).await
    }

    /// Ends the rollback whose former content the snapshot keeps. A pass that ended the request on the claim may not
    /// have ended the rollback in the record. As long as the claim has the request, the snapshot shows that it was
    /// served.
    async fn end_rollback_of(&self, id: &VolumeId) -> Result<(), Error> {
        let Some(record) = self.snapshot_record(id).await?.filter(Record::is_exchanged) else { return Ok(()) };
        if self.has_request(id, &record).await? {
            return Err(Error::Store(volume::Error::Refused {
                id: id.clone(),
                source: VolumeRefusal::RollingBack(
                    record.rollback().map_or_else(|| id.clone(), |of| of.volume.clone()),
                ),
            }));
        }
        self.on_volume(id, |store, id| store.end_rollback(id)).await?.map_err(Error::Store)?;
        Ok(())
    }

    /// Records whether the snapshot controller named the node of a content of this node. Publishes an event once if the
    /// controller did not.
    fn note_distribution(&self, content: &Content) {
        if !plan::shows_distribution(content) {
            return;
        }
        let created = content.metadata.creation_timestamp.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0);
        let support = self.metrics.snapshot_support();
        if content.node().is_some() {
            support.labelled(created);
        } else if support.unlabelled(created) {
            warn!(
                "the snapshot controller created a content without its node; start it with --enable-distributed-snapshotting"
            );
            self.events.snapshots_not_distributed(content, &self.node);
        }
    }

    pub(crate) async fn adopt(&self, content: &Content) -> Result<(), Error> {
        let label = json!({"uid": content.uid(), "labels": {MANAGED_BY: self.node}});
        patch(&self.contents, content, label).await?;
        info!("content without a node is served by this node");
        Ok(())
    }

    /// Writes the state of the snapshot into the status, if it differs.
    async fn write_state(&self, content: &Content, id: &VolumeId, record: &Record) -> Result<(), Error> {
        let wanted = plan::status(id, record);
        if content.status.as_ref() == Some(&wanted) {
            return Ok(());
        }
        let status = json!({
            "snapshotHandle": wanted.snapshot_handle, "creationTime": wanted.creation_time,
            "restoreSize": wanted.restore_size, "readyToUse": wanted.ready_to_use, "error": null,
        });
        patch_status(&self.contents, content, status).await
    }

    /// Reports a failure in the status and by an event.
    async fn report_failure(&self, content: &Content, error: &Error) -> Result<(), Error> {
        if content.metadata.deletion_timestamp.is_some() {
            self.events.snapshot_delete_failed(content, error);
            return Ok(());
        }
        let shown = content.status.as_ref().and_then(|status| status.error.as_ref());
        let report = || self.events.snapshot_failed(content, error);
        show_failure(&self.contents, content, shown, error, report).await
    }
}

#[cfg(test)]
mod tests {
    use std::iter;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::{Duration, SystemTime};

    use cluster::snapshot::BEING_DELETED;
    use tokio::time::{advance, timeout};
    use units::Bytes;
    use volume::{Cloning, DRIVER_NAME, Mode, Sharing, State};

    use super::*;
    use crate::context::OCCUPIED;
    use crate::fixture::{self, NODE, id};

    fn deleted_content(uid: &str) -> Arc<Content> {
        let content = json!({
            "metadata": {
                "name": uid, "uid": uid, "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": [PROTECTION],
                "labels": {MANAGED_BY: NODE}, "annotations": {BEING_DELETED: "yes"},
            },
            "spec": {"driver": DRIVER_NAME, "deletionPolicy": "Delete", "source": {"volumeHandle": "pvc-1"}},
        });
        Arc::new(serde_json::from_value(content).expect("a content"))
    }

    #[tokio::test(start_paused = true)]
    async fn other_clones_begin_while_the_status_is_not_written() {
        let source = id("pvc-1");
        let (provisioner, disk) = fixture::unanswered(&[&source]);
        let content = json!({
            "metadata": {"name": "taken", "uid": "taken", "labels": {MANAGED_BY: NODE}},
            "spec": {"driver": DRIVER_NAME, "deletionPolicy": "Delete", "source": {"volumeHandle": "pvc-1"}},
        });
        let content = serde_json::from_value(content).expect("a content");
        let mut pass = Box::pin(reconcile_content(Arc::new(content), Arc::clone(&provisioner)));
        assert!(timeout(Duration::from_secs(1), &mut pass).await.is_err(), "the status is written without an answer");
        assert!(disk.record(&id("snapshot-taken")).is_some());
        assert!(fixture::has_turns(&provisioner, [&source, &id("pvc-other")]));
    }

    /// Regression: a pass that waited for its turn read the class each second.
    #[tokio::test(start_paused = true)]
    async fn a_snapshot_that_waits_for_its_turn_sends_no_request() {
        let source = id("pvc-1");
        let (provisioner, _disk) = fixture::unanswered(&[&source]);
        let content = json!({
            "metadata": {"name": "taken", "uid": "taken", "labels": {MANAGED_BY: NODE}},
            "spec": {
                "driver": DRIVER_NAME, "deletionPolicy": "Delete", "source": {"volumeHandle": "pvc-1"},
                "volumeSnapshotClassName": "local",
            },
        });
        let content: Arc<Content> = Arc::new(serde_json::from_value(content).expect("a content"));
        let limit = Duration::from_secs(1);
        let pass = || timeout(limit, reconcile_content(Arc::clone(&content), Arc::clone(&provisioner)));
        let turn = provisioner.clone_turn([&source]).expect("a turn");
        let waiting = pass().await.expect("it sends no request").expect("it waits");
        assert_eq!(waiting, Outcome::Occupied.action());
        drop(turn);
        assert!(pass().await.is_err(), "the class is read without an answer");
    }

    /// Regression: four deletions kept all places until the API server answered.
    #[tokio::test(start_paused = true)]
    async fn other_snapshots_are_removed_while_a_list_has_no_answer() {
        let requests = Arc::<AtomicU32>::default();
        let counter = Arc::clone(&requests);
        let client = fixture::client(move |_| {
            counter.fetch_add(1, Ordering::Relaxed);
            None
        });
        let (provisioner, _) = fixture::with_client(client);
        let all_places = || iter::from_fn(|| provisioner.removal_place([])).collect::<Vec<_>>();
        let count = all_places().len();
        let mut first = Box::pin(reconcile_content(deleted_content("first"), Arc::clone(&provisioner)));
        assert!(timeout(Duration::from_secs(1), &mut first).await.is_err());
        assert_eq!(requests.load(Ordering::Relaxed), 1);
        let places = all_places();
        assert_eq!(places.len(), count);
        // A pass that waits for a place sends no request.
        let second = reconcile_content(deleted_content("second"), Arc::clone(&provisioner)).await;
        assert_eq!(second.expect("it waits"), Outcome::Occupied.action());
        assert_eq!(requests.load(Ordering::Relaxed), 1);
    }

    /// Regression: each deletion listed all contents of the cluster.
    #[tokio::test(start_paused = true)]
    async fn removals_share_a_list_from_after_their_deletions() {
        let (client, lists) = fixture::empty();
        let (provisioner, _disk) = fixture::with_client(client);
        let pass = async |content: &Arc<Content>| {
            let ended = reconcile_content(Arc::clone(content), Arc::clone(&provisioner)).await.expect("no error");
            assert_eq!(ended, Outcome::Complete.action());
        };
        let contents: Vec<_> = (0..100).map(|number| deleted_content(&number.to_string())).collect();
        for content in &contents {
            pass(content).await;
        }
        assert_eq!(lists.load(Ordering::Relaxed), 1);
        // The list may lack another content of this snapshot.
        advance(OCCUPIED).await;
        pass(&deleted_content("later")).await;
        assert_eq!(lists.load(Ordering::Relaxed), 2);
    }

    /// A thin snapshot of a volume, `snapshot-1`.
    fn thin(source: &VolumeId) -> Record {
        let mode = Mode::Snapshot { taken: SystemTime::UNIX_EPOCH, sharing: Sharing::Permanent };
        let cloning = Some(Cloning::new(source.clone(), Bytes::GIB));
        Record { cloning, ..fixture::record(mode, State::Announced) }
    }

    /// Regression: four removals had all places while the volume of their snapshots was being cloned.
    #[tokio::test(start_paused = true)]
    async fn a_removal_has_no_place_while_another_pass_has_the_source() {
        let source = id("pvc-1");
        let (provisioner, disk) = fixture::unanswered(&[&source]);
        disk.put(&id("snapshot-1"), thin(&source));
        let limit = Duration::from_secs(1);
        let pass = || timeout(limit, reconcile_content(deleted_content("1"), Arc::clone(&provisioner)));
        let turn = provisioner.clone_turn([&source]).expect("a turn");
        let waiting = pass().await.expect("it sends no request").expect("it waits");
        assert_eq!(waiting, Outcome::Occupied.action());
        drop(turn);
        assert!(pass().await.is_err(), "the list of contents has no answer");
    }

    /// Clients of CSI do not have the locks of the provisioner. Regression: while such a client cloned the volume, a
    /// pass listed all contents and changed the disk each second.
    #[tokio::test(start_paused = true)]
    async fn a_removal_continues_when_no_other_operation_has_the_source() {
        let (source, (client, lists)) = (id("pvc-1"), fixture::empty());
        let (provisioner, disk) = fixture::with_client(client);
        disk.put(&id("snapshot-1"), thin(&source));
        let pass = async || reconcile_content(deleted_content("1"), Arc::clone(&provisioner)).await.expect("no error");
        disk.set_locked(&source, true);
        assert!(provisioner.is_new_removal(&id("snapshot-1")));
        for _ in 0..300 {
            assert_eq!(pass().await, Outcome::Occupied.action());
            assert!(!provisioner.is_new_removal(&id("snapshot-1")), "it is logged once");
            advance(OCCUPIED).await;
        }
        let sent = lists.load(Ordering::Relaxed);
        assert!((25..=65).contains(&sent), "{sent} lists in 5 minutes");
        assert!(disk.record(&id("snapshot-1")).is_some());
        disk.set_locked(&source, false);
        advance(Duration::from_secs(10)).await;
        assert_eq!(pass().await, Outcome::Complete.action());
        assert_eq!(disk.record(&id("snapshot-1")), None);
        assert_eq!(lists.load(Ordering::Relaxed), sent + 1);
    }
}
