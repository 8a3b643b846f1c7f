//! Gives the volume of a bound claim the content of a snapshot, as [`plan`](super::plan) decides.
//!
//! The order is: the ID of the kept snapshot on the claim, the content on the disk, the objects of the kept snapshot,
//! the end of the request on the claim, the end in the record. A pass may end after any step.

use std::time::Duration;

use cluster::claim::{RESTORE_FROM, ROLLBACK};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt as _;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use tracing::{debug, info, warn};
use volume::{Claim, Record, Rollback, RollbackError, RollbackRequest, VolumeId};

use crate::claim::plan::full_name;
use crate::context::{NEXT_PASS, Outcome, Provisioner, take_after};
use crate::error::{ApiError, Error, api};
use crate::events::RollbackWait;
use crate::metrics::Object;
use crate::rollback::plan::{self, RollbackRejection, Step, VolumeContent};

/// Between the UID of the claim and the request in a back-off key.
const INFIX: &str = " rollback ";

/// Longest pause of a rollback that waits for the end of a clone or snapshot.
const SHARED: Duration = Duration::from_secs(10);

/// Runs one pass over the rollback of a claim. Returns the pause until the next pass.
pub(crate) async fn roll_back_claim(
    claim: &PersistentVolumeClaim,
    id: &VolumeId,
    step: Step,
    provisioner: &Provisioner,
) -> Result<Option<Duration>, Error> {
    let (snapshot, kept) = match &step {
        Step::Done => return Ok(provisioner.attempts.end_all(&backoff_prefix(claim), &[])),
        Step::RollBack { snapshot, kept } => (snapshot.clone(), kept.as_ref()),
        Step::Cancel(kept) => (kept.to_string(), None),
    };
    let (failing, waiting) = (backoff_key(claim, &snapshot, None), backoff_key(claim, &snapshot, kept));
    let shared = format!("{waiting} waits for clones");
    provisioner.attempts.end_all(&backoff_prefix(claim), &[&failing, &waiting, &shared]);
    if let Some(left) = provisioner.attempts.wait(&failing).max(provisioner.attempts.wait(&waiting)) {
        return Ok(Some(left));
    }
    let Some(_guard) = provisioner.locks.try_lock(id) else { return Ok(Outcome::Occupied.next()) };
    // The start of a request shows nothing about the failures of an earlier one.
    let is_start = matches!(step, Step::RollBack { kept: None, .. });
    match provisioner.roll_back(claim, id, step).await {
        Ok(outcome) => {
            if outcome != Outcome::Occupied && !is_start {
                for key in [&failing, &waiting, &shared] {
                    provisioner.attempts.succeeded(key);
                }
            }
            Ok(outcome.next())
        }
        Err(error @ (Error::Api(_) | Error::Panicked(_))) => Err(error),
        Err(Error::Store(error)) if error.is_in_use() => {
            provisioner.events.rollback_waits(claim, &snapshot, RollbackWait::Pods, &error);
            let retry = provisioner.attempts.failed_until_woken(&waiting);
            debug!(volume = %id, %error, attempt = retry.attempt, "rollback waits");
            Ok(Some(retry.after))
        }
        // A clone or snapshot of the volume is being created. A tenant that exceeds the size of its source delays its
        // end.
        Err(Error::Store(error @ volume::Error::Rollback { source: RollbackError::Shared, .. })) => {
            if !provisioner.attempts.is_failing(&shared) {
                provisioner.events.rollback_waits(claim, &snapshot, RollbackWait::Clones, &error);
            }
            Ok(Some(provisioner.attempts.failed_for(&shared, SHARED).after))
        }
        Err(Error::Store(volume::Error::Rollback { source: source @ RollbackError::Opened, .. })) => {
            debug!(volume = %id, reason = %source, "rollback waits");
            Ok(Outcome::Occupied.next())
        }
        Err(error) => {
            provisioner.metrics.failed(Object::Claim, error.kind());
            provisioner.events.rollback_failed(claim, &snapshot, &error);
            let retry = provisioner.attempts.pass_failed(&failing, &error);
            warn!(volume = %id, error = causes::of(&error), attempt = retry.attempt, "rollback failed, will retry");
            Ok(Some(retry.after))
        }
    }
}

/// Back-off key of the rollback of a claim to a snapshot. That of a wait for pods includes the ID of the kept snapshot,
/// so that another request is tried at once. That of other failures does not: a user could repeat the request without
/// any pause, if no pass sees that it was removed.
pub(crate) fn backoff_key(claim: &PersistentVolumeClaim, snapshot: &str, kept: Option<&VolumeId>) -> String {
    format!("{}{snapshot} {}", backoff_prefix(claim), kept.map_or("", VolumeId::as_str))
}

/// Prefix of the back-off keys of all rollbacks of a claim. Those of cancelled and replaced requests end.
pub(crate) fn backoff_prefix(claim: &PersistentVolumeClaim) -> String {
    format!("{}{INFIX}", claim.metadata.uid.as_deref().unwrap_or_default())
}

/// Whether the back-off key is that of a rollback. UIDs, and the keys of volumes in the trash, do not contain the
/// infix.
pub(crate) fn is_backoff_key(key: &str) -> bool {
    key.contains(INFIX)
}

impl Provisioner {
    async fn roll_back(&self, claim: &PersistentVolumeClaim, id: &VolumeId, step: Step) -> Result<Outcome, Error> {
        let (snapshot, kept) = match step {
            Step::Done => return Ok(Outcome::Complete),
            Step::Cancel(kept) => (None, Some(kept)),
            Step::RollBack { snapshot, kept } => (Some(snapshot), kept),
        };
        let begun = match &kept {
            Some(kept) => self.snapshot_record(kept).await?,
            None => None,
        };
        let exchanged = begun.as_ref().filter(|record| record.is_exchanged()).and_then(Record::rollback);
        let source = match (exchanged, &snapshot, &kept) {
            // After the exchange, neither the snapshot nor the request is needed.
            (Some(rollback), ..) => rollback.source.clone(),
            (None, Some(name), _) => self.rollback_source(claim, id, name).await?,
            (None, None, Some(kept)) => return self.cancel(claim, kept, begun.as_ref()).await,
            (None, None, None) => return Ok(Outcome::Complete),
        };
        // A user may have named another snapshot since the exchange. That snapshot is the next request.
        let served = match (exchanged, &snapshot) {
            (Some(rollback), Some(name)) => self.is_served(claim, id, name, rollback).await?.then_some(name.as_str()),
            _ => snapshot.as_deref(),
        };
        let Some(kept) = kept else {
            return self.begin(claim, id, snapshot.as_deref().unwrap_or_default()).await;
        };
        // The claim names another snapshot now.
        if begun.as_ref().and_then(Record::rollback).is_some_and(|rollback| rollback.source != source) {
            return self.cancel(claim, &kept, begun.as_ref()).await;
        }
        // An earlier rollback may be open even if the claim has an ID, because a user may have written this ID. The
        // earlier rollback ends before the turn, which has the lock of the source: the source may be the kept snapshot
        // of the earlier rollback.
        if begun.is_none() && self.end_earlier(id).await? == Outcome::Occupied {
            return Ok(Outcome::Occupied);
        }
        let of = kept_of(claim, &kept);
        let turn = if begun.is_none() {
            let take = || self.clone_turn([&source]);
            take_after(take, self.verify_snapshot(&of, &kept, VolumeContent::Former)).await?
        } else {
            self.copy_turn(&kept, Some(&source))
        };
        let Some(turn) = turn else { return Ok(Outcome::Occupied) };
        let want = RollbackRequest { claim: of, volume: id.clone(), source };
        let rolled_back = self.on_volume(&kept, move |store, kept| store.roll_back(kept, &want)).await?;
        drop(turn);
        let record = match rolled_back {
            Ok(record) => record.into_inner(),
            Err(error) if error.copying().is_some() => {
                debug!(volume = %id, %error, "content of the snapshot partly copied");
                return Ok(self.copied(&kept, error.copying()));
            }
            Err(volume::Error::Rollback { source: RollbackError::Grown, .. }) => {
                debug!(volume = %id, "removing the copy for another size of the volume");
                return Ok(match self.remove_copy(&kept).await? {
                    // The next pass begins again.
                    Outcome::Complete => Outcome::Copying(NEXT_PASS),
                    waits => waits,
                });
            }
            Err(error) => return Err(Error::of_claim(error)),
        };
        self.finish(claim, &kept, &record, served).await?;
        Ok(Outcome::Complete)
    }
}

impl Provisioner {
    /// Returns the snapshot that the claim names, if its content can be used.
    async fn rollback_source(
        &self,
        claim: &PersistentVolumeClaim,
        id: &VolumeId,
        name: &str,
    ) -> Result<VolumeId, Error> {
        let (found, content) = self.snapshot_beside(claim, name).await?;
        let source = plan::source(claim, id, found.as_ref(), content.as_ref(), &self.node);
        source.map_err(|obstacle| {
            RollbackRejection { claim: full_name(claim), snapshot: name.to_owned(), obstacle }.into()
        })
    }

    /// Whether the volume has the content of the snapshot that the claim names. The exchanged snapshot may be gone.
    async fn is_served(
        &self,
        claim: &PersistentVolumeClaim,
        id: &VolumeId,
        name: &str,
        rollback: &Rollback,
    ) -> Result<bool, Error> {
        match self.rollback_source(claim, id, name).await {
            Ok(source) => Ok(source == rollback.source),
            Err(Error::Rollback(_)) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Annotates the claim with the ID of the kept snapshot, which starts the next pass.
    async fn begin(&self, claim: &PersistentVolumeClaim, id: &VolumeId, snapshot: &str) -> Result<Outcome, Error> {
        let Some(kept) = plan::kept_id(claim) else { return Ok(Outcome::Complete) };
        if self.end_earlier(id).await? == Outcome::Occupied {
            return Ok(Outcome::Occupied);
        }
        self.verify_snapshot(&kept_of(claim, &kept), &kept, VolumeContent::Former).await?;
        self.annotate(claim, json!({ROLLBACK: kept.as_str()})).await?;
        info!(snapshot, kept = %kept, "rollback started");
        self.events.rollback_started(claim, &self.node, snapshot);
        Ok(Outcome::Complete)
    }

    /// Ends the rollbacks of the volume that a new one replaces: their former contents may have no VolumeSnapshots yet,
    /// whose number a quota limits, and their copies reserve space until a sweep.
    async fn end_earlier(&self, id: &VolumeId) -> Result<Outcome, Error> {
        let rollbacks = self.on_volume(id, |store, id| store.rollbacks(id)).await?;
        let is_earlier = |record: &Record| record.rollback().is_some_and(|rollback| rollback.volume == *id);
        for earlier in &rollbacks {
            let Some(_guard) = self.locks.try_lock(earlier) else { return Ok(Outcome::Occupied) };
            // A pass of its content may have ended the rollback, and removed the snapshot.
            let Some(record) = self.snapshot_record(earlier).await?.filter(is_earlier) else { continue };
            let ended = if record.is_exchanged() {
                self.end_exchanged(earlier, &record).await.map(|()| Outcome::Complete)
            } else {
                self.remove_copy(earlier).await
            };
            let ended = ended.map_err(|error| match error {
                error @ (Error::Api(_) | Error::Panicked(_)) => error,
                error => Error::EarlierRollback(Box::new(error)),
            });
            if ended? == Outcome::Occupied {
                return Ok(Outcome::Occupied);
            }
        }
        Ok(Outcome::Complete)
    }

    /// The content is not exchanged.
    async fn cancel(
        &self,
        claim: &PersistentVolumeClaim,
        kept: &VolumeId,
        begun: Option<&Record>,
    ) -> Result<Outcome, Error> {
        // A user may have annotated the claim with a snapshot that an earlier rollback has kept.
        let has_copy = begun.is_some_and(|record| record.rollback().is_some());
        if has_copy && self.remove_copy(kept).await? == Outcome::Occupied {
            return Ok(Outcome::Occupied);
        }
        self.annotate(claim, json!({ROLLBACK: null})).await?;
        info!(kept = %kept, "rollback canceled");
        Ok(Outcome::Complete)
    }

    /// Removes the copy of a rollback whose content is not exchanged. The removal takes as long as the copy has files.
    async fn remove_copy(&self, kept: &VolumeId) -> Result<Outcome, Error> {
        let Some(_place) = self.removal_place([kept]) else { return Ok(Outcome::Occupied) };
        Ok(if self.remove_snapshot(kept).await?.is_some() { Outcome::Complete } else { Outcome::Occupied })
    }

    /// Completes a rollback after the exchange: creates the objects of the kept snapshot, and ends the request for the
    /// `served` snapshot. A request for another snapshot stays.
    async fn finish(
        &self,
        claim: &PersistentVolumeClaim,
        kept: &VolumeId,
        record: &Record,
        served: Option<&str>,
    ) -> Result<(), Error> {
        self.create_objects(kept, record).await?;
        let ended =
            if served.is_some() { json!({RESTORE_FROM: null, ROLLBACK: null}) } else { json!({ROLLBACK: null}) };
        self.annotate(claim, ended).await?;
        self.on_volume(kept, |store, kept| store.end_rollback(kept)).await?.map_err(Error::Store)?;
        info!(snapshot = served, kept = %kept, "rollback finished");
        self.events.rolled_back(claim, served, &record.claim.name);
        Ok(())
    }

    /// Creates the objects of the kept snapshot, and ends the rollback in its record. The caller has the locks of the
    /// volume and of the kept snapshot.
    pub(super) async fn end_exchanged(&self, kept: &VolumeId, record: &Record) -> Result<(), Error> {
        let Some(Rollback { volume, source, .. }) = record.rollback() else { return Ok(()) };
        let want = RollbackRequest { claim: record.claim.clone(), volume: volume.clone(), source: source.clone() };
        let completed = self.on_volume(kept, move |store, kept| store.roll_back(kept, &want)).await?;
        let record = completed.map_err(Error::Store)?.into_inner();
        match self.create_objects(kept, &record).await {
            // The namespace was deleted, with the claim.
            Err(Error::Api(error)) if error.is_not_found() => {}
            created => created?,
        }
        self.on_volume(kept, |store, kept| store.end_rollback(kept)).await?.map(drop).map_err(Error::Store)
    }

    /// Patches the annotations of the claim. Fails if the claim was changed since it was read.
    async fn annotate(&self, claim: &PersistentVolumeClaim, annotations: Value) -> Result<(), ApiError> {
        let version = claim.resource_version();
        let patch = json!({"metadata": {"uid": claim.uid(), "resourceVersion": version, "annotations": annotations}});
        let patched =
            self.claims_beside(claim).patch(&claim.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await;
        patched.map(drop).map_err(api("annotate the claim with its rollback"))
    }
}

/// Owner of the VolumeSnapshot that keeps the former content of a claim's volume: the name of the VolumeSnapshot, and
/// the UID of the claim.
fn kept_of(claim: &PersistentVolumeClaim, kept: &VolumeId) -> Claim {
    Claim {
        uid: claim.uid().unwrap_or_default(),
        namespace: claim.namespace().unwrap_or_default(),
        name: plan::kept_name(claim, kept),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::iter;
    use std::path::Path;
    use std::pin::pin;
    use std::sync::Arc;
    use std::time::SystemTime;

    use cluster::snapshot::MANAGED_BY;
    use envtest::FakeVolumes;
    use fsquota::ProjectId;
    use futures::{FutureExt as _, StreamExt as _};
    use kube::Resource;
    use kube::runtime::controller::Action;
    use kube::runtime::reflector::{self, ObjectRef, Store};
    use kube::runtime::watcher::Event;
    use tokio::time::advance;
    use units::Bytes;
    use volume::{Allocation, Cloning, DRIVER_NAME, Mode, Owner, Sharing, State};

    use super::*;
    use crate::claim::bound::reconcile_bound;
    use crate::fixture::{self, NODE, id};
    use crate::listing;
    use crate::wake::woken;

    const SECOND: Duration = Duration::from_secs(1);

    /// A claim with a copy of its snapshot.
    struct Fixture {
        provisioner: Arc<Provisioner>,
        disk: Arc<FakeVolumes>,
        claim: PersistentVolumeClaim,
        volume: VolumeId,
        source: VolumeId,
        kept: VolumeId,
    }

    impl Fixture {
        /// The copy was begun when the volume had this size. The API server accepts no new object.
        fn with_size(size: Bytes) -> Self {
            let client = fixture::client(|request| {
                let path = request.uri().path();
                let object = if path.ends_with("/volumesnapshots/before") {
                    let status = json!({"boundVolumeSnapshotContentName": "content", "readyToUse": true});
                    json!({"metadata": {"name": "before", "uid": "s"}, "status": status})
                } else if path.ends_with("/volumesnapshotcontents/content") {
                    json!({
                        "metadata": {"name": "content", "uid": "c", "labels": {MANAGED_BY: NODE}},
                        "spec": {
                            "driver": DRIVER_NAME, "source": {"volumeHandle": "pvc-1"},
                            "volumeSnapshotRef": {"namespace": "shop", "name": "before", "uid": "s"},
                        },
                        "status": {"readyToUse": true},
                    })
                } else {
                    return Some(fixture::no_kind());
                };
                Some((200, object.to_string()))
            });
            let [volume, source, kept] = ["pvc-1", "snapshot-c", "snapshot-u-7"].map(id);
            let (provisioner, disk) = fixture::with_client(client);
            let (thick, taken) = (Allocation::Thick, SystemTime::UNIX_EPOCH);
            disk.put(&volume, fixture::record(Mode::Block { allocation: thick }, State::Announced));
            let snapshot = |state| fixture::record(Mode::Snapshot { taken, sharing: Sharing::Temporary }, state);
            disk.put(&source, snapshot(State::Announced));
            let project = ProjectId::new(8).expect("an ID");
            let rollback = Rollback { volume: volume.clone(), source: source.clone(), project, allocation: thick };
            disk.put(&kept, Record { owner: Owner::Rollback(rollback), size, ..snapshot(State::Staged) });
            let claim = json!({"metadata": {
                "name": "data", "namespace": "shop", "uid": "u", "resourceVersion": "7",
                "annotations": {RESTORE_FROM: "before", ROLLBACK: kept.as_str()},
            }});
            let claim: PersistentVolumeClaim = serde_json::from_value(claim).expect("a claim");
            Self { provisioner, disk, claim, volume, source, kept }
        }
    }

    /// The watch's copy of an object.
    fn watched<K: Resource<DynamicType = ()> + Clone + 'static>(object: K) -> Option<Store<K>> {
        let (store, mut writer) = reflector::store::<K>();
        writer.apply_watcher_event(&Event::Apply(object));
        Some(store)
    }

    /// Regression: a pass whose copy was removed ended like one that waits for other passes.
    #[tokio::test]
    async fn a_rollback_of_an_expanded_volume_begins_again_at_once() {
        let fixture = Fixture::with_size(Bytes::new(Bytes::GIB.get() / 2));
        let Fixture { provisioner, disk, claim, volume, kept, .. } = &fixture;
        let pass = async || provisioner.roll_back(claim, volume, plan::next(claim)).await.expect("it does not fail");
        let places: Vec<_> = iter::from_fn(|| provisioner.removal_place([])).collect();
        assert_eq!(pass().await, Outcome::Occupied);
        assert!(disk.record(kept).is_some(), "other removals have all places");
        drop(places);
        assert_eq!(pass().await, Outcome::Copying(NEXT_PASS));
        assert_eq!(disk.record(kept), None);
    }

    #[tokio::test(start_paused = true)]
    async fn an_unpublish_ends_the_back_off_of_the_rollback_of_its_volume() {
        let fixture = Fixture::with_size(Bytes::GIB);
        let Fixture { provisioner, disk, claim, volume, source, .. } = &fixture;
        let mut pv = listing::tests::pv("pvc-1", "pvc-1", NODE);
        pv.spec.as_mut().expect("a spec").claim_ref = Some(claim.object_ref(&()));
        *provisioner.watched_pvs.lock().expect("the PVs") = watched(pv);
        *provisioner.watched_claims.lock().expect("the claims") = watched(claim.clone());
        let mut woken = pin!(woken(Arc::clone(provisioner), Provisioner::wake_rollbacks));
        let pass = async || roll_back_claim(claim, volume, plan::next(claim), provisioner).await;

        // A receiver can be 64 unpublishes behind.
        for others in [0, 100] {
            disk.set_published(volume, Some(Path::new("/target")));
            for _ in 0..10 {
                let pause = pass().await.expect("it waits").expect("a pause");
                advance(pause).await;
            }
            let pause = pass().await.expect("it waits");
            assert!(pause > Some(Duration::from_mins(1)), "{pause:?}");
            disk.set_published(&id("pvc-2"), None);
            assert_eq!(woken.next().now_or_never(), None, "another volume");
            disk.set_published(volume, None);
            for _ in 0..others {
                disk.set_published(&id("pvc-2"), None);
            }
            assert_eq!(woken.next().now_or_never().flatten(), Some(ObjectRef::from_obj(claim)));
            assert_eq!(pass().await.expect("it waits"), Some(SECOND), "a second after the last pass at the earliest");
            assert_eq!(disk.source(volume), None);
            advance(SECOND).await;
        }
        pass().await.expect_err("the API server accepts no new object");
        assert_eq!(disk.source(volume).as_ref(), Some(source));
    }

    /// Regression: a rollback that waited for a clone read its snapshot each second, as long as the tenant liked.
    #[tokio::test(start_paused = true)]
    async fn the_pauses_of_a_rollback_that_waits_for_a_clone_grow() {
        let Fixture { provisioner, disk, claim, volume, .. } = Fixture::with_size(Bytes::GIB);
        let clone = fixture::record(Mode::Block { allocation: Allocation::Thick }, State::Staged);
        disk.put(&id("pvc-2"), Record { cloning: Some(Cloning::new(volume.clone(), Bytes::GIB)), ..clone });
        let pass = async || roll_back_claim(&claim, &volume, plan::next(&claim), &provisioner).await.expect("it waits");
        for _ in 0..8 {
            pass().await;
        }
        let pause = pass().await;
        assert!(pause > Some(2 * SECOND) && pause <= Some(SHARED), "{pause:?}");
    }

    /// Regression: a request that was removed and repeated has another ID, and was tried without a pause.
    #[tokio::test(start_paused = true)]
    async fn a_repeated_request_has_the_back_off_of_failures() {
        let Fixture { provisioner, claim, volume, kept, .. } = Fixture::with_size(Bytes::GIB);
        let request = |kept| Step::RollBack { snapshot: "not a name".into(), kept };
        let pass = async |step| roll_back_claim(&claim, &volume, step, &provisioner).await.expect("it will retry");
        for _ in 0..5 {
            let pause = pass(request(Some(kept.clone()))).await.expect("a pause");
            advance(pause).await;
        }
        let pause = pass(request(Some(kept))).await;
        assert!(pause > Some(8 * SECOND), "{pause:?}");
        for repeated in [None, Some(id("snapshot-u-8"))] {
            assert_eq!(pass(request(repeated)).await, pause);
        }
    }

    /// Regression: the same request had the pause of the cancelled one, and a replaced one counted as failing.
    #[tokio::test(start_paused = true)]
    async fn a_cancelled_or_replaced_request_leaves_no_back_off() {
        let Fixture { provisioner, claim, volume, kept, .. } = Fixture::with_size(Bytes::GIB);
        let pass = async |snapshot: &str| {
            let step = Step::RollBack { snapshot: snapshot.into(), kept: Some(kept.clone()) };
            roll_back_claim(&claim, &volume, step, &provisioner).await.expect("it will retry")
        };
        let fail = async || {
            for _ in 0..5 {
                let pause = pass("not a name").await.expect("a pause");
                advance(pause).await;
            }
            assert!(pass("not a name").await > Some(8 * SECOND));
        };
        let is_failing = |snapshot| provisioner.attempts.is_failing(&backoff_key(&claim, snapshot, None));
        let cancelled = json!({"metadata": {"name": "data", "uid": "u"}, "spec": {"volumeName": "pvc-1"}});
        let cancelled: PersistentVolumeClaim = serde_json::from_value(cancelled).expect("a claim");

        fail().await;
        let action = reconcile_bound(&cancelled, &provisioner).await.expect("it requests nothing");
        assert_eq!(action, Action::requeue(SECOND));
        assert_eq!(pass("not a name").await, Some(SECOND), "the same request in a loop causes one pass a second");
        advance(SECOND).await;
        let action = reconcile_bound(&cancelled, &provisioner).await.expect("it requests nothing");
        assert_eq!((action, is_failing("not a name")), (Action::await_change(), false));

        fail().await;
        pass("another name").await;
        assert!(is_failing("another name"), "another snapshot has no pause");
        advance(SECOND).await;
        pass("another name").await;
        assert!(!is_failing("not a name"));
    }

    /// A claim whose rollback waits may request another one.
    #[test]
    fn another_request_has_another_back_off() {
        let claim = PersistentVolumeClaim::default();
        let [first, second] = ["snapshot-u-7", "snapshot-u-8"].map(id);
        let requests = [("before", None), ("before", Some(&first)), ("before", Some(&second)), ("other", Some(&first))];
        let keys: BTreeSet<_> = requests.iter().map(|(name, kept)| backoff_key(&claim, name, *kept)).collect();
        assert_eq!(keys.len(), requests.len());
    }
}
