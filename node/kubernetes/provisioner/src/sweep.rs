//! Compares disk and cluster in both directions, at start and every 5 to 10 minutes. A volume that another pass
//! has at this moment, or that cannot be compared, is compared 5 to 10 seconds later, without another list. A volume
//! whose claim ends before it is bound is compared at once.
//!
//! | on the disk | in the cluster | action |
//! |---|---|---|
//! | staged | claim waits | none: the pass of the claim continues |
//! | staged | no claim, PV | recorded as announced |
//! | staged | neither | undone: no pod ever had it |
//! | announced | no PV | an orphan: reported, kept |
//! | in the trash | no PV | removed |
//! | in the trash | PV that is kept | restored |
//! | nothing | PV | lost: reported |
//! | no record, or an unreadable one | | reported, kept |
//!
//! Snapshots are compared with their contents: `snapshot/sweep.rs`. Snapshots of rollbacks are compared with the
//! annotations of claims: without the request, a copy is removed, and a former content becomes an ordinary snapshot.
//! Volumes of another [`Owner`](volume::Owner) are ignored: claims and PVs do not decide about them.
//!
//! If the API server returns no PV at all although the disk has volumes that had one, it may have lost its data, or may
//! be that of another cluster. Then the sweep undoes and removes nothing. The end of a claim is an event of this API
//! server: the volume of such a claim is undone, and so is one that an earlier comparison left out.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use dir::Ensured;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::Api;
use supervisor::Context;
use tokio::time::{Instant, sleep_until};
use tracing::{error, info, warn};
use volume::{Claim, IdlePasses, LiveVolumeError, Owner, Record, Records, State, Strays, VolumeGuard, VolumeId};

use crate::backoff::{self, delay, random};
use crate::claim;
use crate::context::{Provisioner, RunError};
use crate::discard::queue::EndOfPv;
use crate::error::{Error, api};
use crate::events::source_mode;
use crate::listing::{ListedPv, Listing};
use crate::metrics::Orphan;
use crate::pv::object;

/// Pause between two sweeps, less a random part of up to a half: nodes that started together list all PVs at different
/// times.
const INTERVAL: Duration = Duration::from_mins(10);

/// Pause before the next look at volumes that other passes had, less a random part of up to a half. While other passes
/// have the volumes, a look sends no request.
const LOOK_AGAIN: Duration = Duration::from_secs(10);

/// Findings that only an administrator can repair.
#[derive(Debug, Default)]
struct Findings {
    orphans: BTreeSet<VolumeId>,
    snapshots: BTreeSet<VolumeId>,
    unreadable: BTreeSet<VolumeId>,
    /// Volumes of PVs that the disk does not have.
    lost: BTreeSet<VolumeId>,
    /// Directories and quotas without a record.
    strays: Strays,
    left_out: LeftOut,
}

/// Volumes that other passes had during the comparison, those whose operation failed, and those whose claims ended
/// after it.
#[derive(Debug, Default)]
struct LeftOut {
    /// Volumes whose PV may not exist.
    staged: BTreeSet<VolumeId>,
    /// Volumes that the disk may not have, with their PVs.
    missing: BTreeMap<VolumeId, Vec<ListedPv>>,
}

impl LeftOut {
    fn is_empty(&self) -> bool {
        self.staged.is_empty() && self.missing.is_empty()
    }
}

/// Volumes that could not be compared. An error about one volume does not end the comparison of the others.
type Failed = Vec<(VolumeId, Error)>;

/// State of a volume that has a PV and, in the list of the disk, no live data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Missing {
    /// Another pass has the volume, or an error prevented the comparison.
    Occupied,
    /// The disk has the volume, or has it again, or its PV is not kept.
    Settled,
    Lost,
}

/// Sweeps until it is cancelled. Healthy after the first sweep.
pub(crate) async fn run(cx: Context, provisioner: Arc<Provisioner>) -> Result<(), RunError> {
    // A pass may end anywhere. A disk call runs on in its thread; one that removes data keeps its locks.
    tokio::select! {
        () = cx.cancelled() => {}
        () = compare(&cx, &provisioner) => {}
    }
    Ok(())
}

/// Compares until the future is dropped.
async fn compare(cx: &Context, provisioner: &Provisioner) {
    let mut reported = Findings::default();
    let mut failures = 0;
    loop {
        let is_complete =
            |swept: &Result<(Findings, Failed), Error>| swept.as_ref().is_ok_and(|(_, failed)| failed.is_empty());
        let wait = match cx.round(provisioner.sweep(&reported), is_complete).await {
            Ok((found, failed)) => {
                failures = 0;
                reported = found;
                log_failed(failed);
                cx.healthy();
                backoff::jittered(INTERVAL, random())
            }
            Err(error) => {
                failures += 1;
                let error: &dyn std::error::Error = &error;
                warn!(error, attempt = failures, "comparison of disk and cluster failed, will retry");
                delay(failures, random())
            }
        };
        let next = Instant::now() + wait;
        loop {
            let look = Instant::now() + backoff::jittered(LOOK_AGAIN, random());
            let wake = if reported.left_out.is_empty() { next } else { next.min(look) };
            tokio::select! {
                () = sleep_until(wake) => {}
                () = provisioner.ended.added.notified() => {}
            }
            if Instant::now() >= next {
                break;
            }
            log_failed(cx.round(provisioner.look_again(&mut reported), Vec::is_empty).await);
        }
    }
}

impl Provisioner {
    /// Compares disk and cluster once. The disk is read first, so that each volume in its list has its PV or its claim
    /// when the API server is read.
    async fn sweep(&self, reported: &Findings) -> Result<(Findings, Failed), Error> {
        let (records, retired, strays) =
            self.on_disk(|store| (store.records(), store.retired(), store.strays())).await?;
        let (Records { readable, unreadable }, retired, strays) = (records?, retired?, strays?);
        let is_managed =
            |id: &VolumeId| readable.get(id).is_none_or(|record| !matches!(record.owner, Owner::Controller { .. }));
        let retired = retired.into_iter().filter(is_managed);
        // A claim decides about the snapshot of its rollback.
        let is_rollback =
            |record: &Record| record.rollback().is_some_and(|rollback| readable.contains_key(&rollback.volume));
        let rollbacks = readable.iter().filter(|(_, record)| is_rollback(record));
        let rollbacks: BTreeMap<_, _> = rollbacks.map(|(id, record)| (id.clone(), record.clone())).collect();
        let is_snapshot = |id: &VolumeId| readable.get(id).is_some_and(|record| record.mode.is_snapshot());
        let (retired_snapshots, retired): (BTreeSet<_>, BTreeSet<_>) = retired.partition(is_snapshot);
        let (snapshots, readable): (BTreeMap<_, _>, BTreeMap<_, _>) = readable
            .into_iter()
            .filter(|(id, _)| !rollbacks.contains_key(id))
            .partition(|(_, record)| record.mode.is_snapshot());
        let (since, mut left_out, mut failed) = (Instant::now(), LeftOut::default(), Failed::new());
        let listing = self.listings.since(since, &self.pvs, &self.node).await?;
        if is_plausible(&listing, &readable) {
            for (id, _) in readable.iter().filter(|(_, record)| is_staged(record)) {
                let is_settled = self.settle_staged(id).await.unwrap_or_else(|error| {
                    failed.push((id.clone(), error));
                    false
                });
                if !is_settled {
                    left_out.staged.insert(id.clone());
                }
            }
            for id in retired.iter().filter(|id| !listing.has(id)) {
                self.discards.add(id.clone(), EndOfPv { before: since, after: since });
            }
        } else {
            left_out.staged.clone_from(&reported.left_out.staged);
            warn!("the API server has no PVs, but the disk has volumes of PVs: no volume is removed");
        }
        self.sweep_rollbacks(&rollbacks).await?;
        let mut found = Findings {
            orphans: orphans(&readable, &retired, &listing),
            snapshots: self.sweep_snapshots(&snapshots, &retired_snapshots).await?,
            unreadable: unreadable.keys().cloned().collect(),
            lost: BTreeSet::new(),
            strays,
            left_out,
        };
        for (id, pvs) in listing.volumes().filter(|(id, _)| !readable.contains_key(id) || retired.contains(id)) {
            let settled = self.settle_missing(id, pvs, reported).await.unwrap_or_else(|error| {
                failed.push((id.clone(), error));
                Missing::Occupied
            });
            match settled {
                Missing::Settled => {}
                Missing::Lost => drop(found.lost.insert(id.clone())),
                Missing::Occupied => {
                    // Until another look, the result of the last one counts.
                    found.lost.extend(reported.lost.get(id).cloned());
                    found.left_out.missing.insert(id.clone(), pvs.to_vec());
                }
            }
        }
        self.count(&found);
        self.report(&found, reported, &readable, &snapshots);
        for (id, reason) in unreadable.iter().filter(|(id, _)| !reported.unreadable.contains(id)) {
            let reason: &dyn std::error::Error = reason;
            error!(volume = %id, error = reason, "volume has an unreadable record; it is kept, and no pod can use it");
        }
        Ok((found, failed))
    }

    fn count(&self, found: &Findings) {
        let Findings { orphans, snapshots, unreadable, lost, strays, left_out: _ } = found;
        self.metrics.orphans(Orphan::Volume, orphans.len());
        self.metrics.orphans(Orphan::Snapshot, snapshots.len());
        self.metrics.orphans(Orphan::Record, unreadable.len());
        self.metrics.orphans(Orphan::Pv, lost.len());
        self.metrics.orphans(Orphan::Directory, strays.directories.len());
        self.metrics.orphans(Orphan::Project, strays.projects.len());
        self.attempts.forget();
    }

    fn report(
        &self,
        found: &Findings,
        reported: &Findings,
        records: &BTreeMap<VolumeId, Record>,
        snapshots: &BTreeMap<VolumeId, Record>,
    ) {
        for id in found.snapshots.difference(&reported.snapshots) {
            let Some(record) = snapshots.get(id) else { continue };
            let Record { claim: snapshot, size, mode, .. } = record;
            error!(
                volume = %id, %snapshot, content_uid = snapshot.uid, limit = %size, source_mode = source_mode(*mode),
                "snapshot has data and no content; it is kept: create a content to use it or to delete it"
            );
            self.events.orphaned(&self.node, id, record);
        }
        for id in found.orphans.difference(&reported.orphans) {
            let Some(record) = records.get(id) else { continue };
            let Record { claim, size, class, mode, .. } = record;
            error!(
                volume = %id, %claim, claim_uid = claim.uid, limit = %size, %mode, class,
                "volume has data and no PV; it is kept: create a PV to use it or to delete it"
            );
            self.events.orphaned(&self.node, id, record);
        }
        if found.strays != reported.strays {
            for (place, name) in &found.strays.directories {
                error!(?place, name = ?name, "directory without a record in the volumes directory; it is kept");
            }
            for project in &found.strays.projects {
                warn!(%project, "quota without a record; it is kept");
            }
        }
    }

    /// Looks again at the volumes that the last comparison left out, and at those whose claims have ended.
    async fn look_again(&self, reported: &mut Findings) -> Failed {
        let mut failed = Failed::new();
        reported.left_out.staged.extend(self.ended.take());
        for id in reported.left_out.staged.clone() {
            match self.settle_staged(&id).await {
                Ok(true) => drop(reported.left_out.staged.remove(&id)),
                Ok(false) => {}
                Err(error) => failed.push((id, error)),
            }
        }
        for (id, pvs) in reported.left_out.missing.clone() {
            match self.settle_missing(&id, &pvs, reported).await {
                Ok(Missing::Occupied) => continue,
                Ok(Missing::Settled) => drop(reported.lost.remove(&id)),
                Ok(Missing::Lost) => drop(reported.lost.insert(id.clone())),
                Err(error) => {
                    failed.push((id, error));
                    continue;
                }
            }
            reported.left_out.missing.remove(&id);
            self.metrics.orphans(Orphan::Pv, reported.lost.len());
        }
        failed
    }

    /// Completes or undoes a volume whose PV may not exist. `false` if another pass has it, or if the operation failed
    /// and is tried again.
    async fn settle_staged(&self, id: &VolumeId) -> Result<bool, Error> {
        let key = format!("staged {id}");
        if self.attempts.wait(&key).is_some() {
            return Ok(false);
        }
        let Some(guard) = self.locks.try_lock(id) else { return Ok(false) };
        // Another pass may have announced or undone it. The next sweep reports an unreadable record.
        let record = self.on_volume(id, |store, id| store.record(id)).await?.unwrap_or_default();
        let Some(record) = record.filter(is_staged) else { return Ok(true) };
        if self.is_waiting(&record.claim).await? {
            return Ok(true);
        }
        // Read the PV after the claim: a claim that was bound in between has its PV now.
        let pv = self.pvs.get_opt(id.as_str()).await.map_err(api("get a PV"))?;
        let settled = if pv.is_some_and(|pv| object::volume_of(&pv, &self.node).as_ref() == Some(id)) {
            self.on_volume(id, |store, id| store.announce(id)).await?
        } else {
            self.undo(id, guard).await?
        };
        match settled {
            Ok(_) => {
                self.attempts.succeeded(&key);
                Ok(true)
            }
            Err(error) => {
                log_unsettled(id, &error);
                self.attempts.failed(&key);
                Ok(false)
            }
        }
    }

    /// Undoes a staged volume, in as many passes as it has files. The disk call of a pass has the lock, also if the
    /// future is dropped.
    async fn undo(&self, id: &VolumeId, mut guard: VolumeGuard) -> Result<Result<Ensured<()>, volume::Error>, Error> {
        let mut idle = IdlePasses::default();
        loop {
            let undone;
            (undone, guard) = self.on_volume(id, move |store, id| (store.undo(id), guard)).await?;
            match undone {
                Err(error) if idle.continues(&error) => {}
                done => return Ok(done),
            }
        }
    }

    async fn is_waiting(&self, claim: &Claim) -> Result<bool, Error> {
        let claims = Api::<PersistentVolumeClaim>::namespaced(self.client.clone(), &claim.namespace);
        let found = claims.get_opt(&claim.name).await.map_err(api("get a claim"))?;
        let assigned = found.and_then(|found| claim::plan::assigned(&found, &self.node));
        Ok(assigned.is_some_and(|assigned| assigned.claim.uid == claim.uid))
    }

    /// Restores a volume from the trash whose PV is kept, or reports that the disk does not have it. Reads volume and
    /// PVs again, because they may have been created or deleted since the disk was read.
    async fn settle_missing(&self, id: &VolumeId, pvs: &[ListedPv], reported: &Findings) -> Result<Missing, Error> {
        let Some(_guard) = self.locks.try_lock(id) else { return Ok(Missing::Occupied) };
        let live = self.on_volume(id, |store, id| store.live_volume(id)).await?;
        let Some(reason) = live.err().filter(LiveVolumeError::is_missing) else { return Ok(Missing::Settled) };
        let mut found = Missing::Settled;
        for listed in pvs.iter().filter(|pv| !pv.is_deleted) {
            let Some(pv) = self.kept_pv(id, &listed.name).await? else { continue };
            // The policy became Retain during the deletion, or an administrator created another PV for the volume. This
            // pass has the volume's lock, so that no deletion is between trash and PV.
            let restored = self.on_volume(id, |store, id| store.announce(id).and_then(|_| store.restore(id)));
            match restored.await? {
                Ok(Ensured::Created(())) => {
                    info!(volume = %id, pv = listed.name, "volume restored from the trash, its PV is kept");
                    break;
                }
                Ok(Ensured::Unchanged(())) | Err(volume::Error::Unknown { .. }) => {
                    if found != Missing::Lost && !reported.lost.contains(id) {
                        log_lost(id, &listed.name, &reason);
                        self.events.lost(&pv, &reason);
                    }
                    found = Missing::Lost;
                }
                // An error does not stop the check of the other volumes.
                Err(error) => log_unsettled(id, &error),
            }
        }
        Ok(found)
    }
}

fn log_failed(failed: Failed) {
    for (id, error) in failed {
        let error: &dyn std::error::Error = &error;
        warn!(volume = %id, error, "comparison of the volume failed, will retry");
    }
}

fn log_unsettled(id: &VolumeId, error: &(dyn std::error::Error + 'static)) {
    warn!(volume = %id, error, "interrupted operation on the volume not completed, will retry");
}

fn log_lost(id: &VolumeId, pv: &str, error: &(dyn std::error::Error + 'static)) {
    error!(volume = %id, pv, error, "PV without a volume on the disk");
}

/// Whether the list of PVs is plausible: see the documentation of the module.
fn is_plausible(listing: &Listing, records: &BTreeMap<VolumeId, Record>) -> bool {
    !listing.is_empty || records.values().all(|record| record.state == State::Staged || !record.owner.is_provisioner())
}

fn is_staged(record: &Record) -> bool {
    record.state == State::Staged && record.owner.is_provisioner()
}

/// Announced volumes that are not in the trash and have no PV.
fn orphans(
    records: &BTreeMap<VolumeId, Record>,
    retired: &BTreeSet<VolumeId>,
    listing: &Listing,
) -> BTreeSet<VolumeId> {
    let announced = |record: &Record| record.state == State::Announced && record.owner.is_provisioner();
    let announced = records.iter().filter(|(_, record)| announced(record)).map(|(id, _)| id);
    announced.filter(|id| !retired.contains(*id) && listing.of_volume(id).is_empty()).cloned().collect()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::SystemTime;

    use envtest::FakeVolumes;
    use k8s_openapi::api::core::v1::PersistentVolume;
    use kube::Client;
    use kube::runtime::watcher::Event;
    use serde_json::json;
    use supervisor::Supervisor;
    use tokio::task::yield_now;
    use tokio::time::sleep;
    use units::{Bytes, Inodes};
    use volume::{Mode, Sharing};

    use super::*;
    use crate::fixture::{self, id};
    use crate::{Metrics, listing};

    const NODE: &str = "granary";

    fn record(state: State) -> Record {
        fixture::record(Mode::Filesystem { inodes: Inodes::new(64) }, state)
    }

    /// Record of a volume of CSI's Controller service.
    fn external() -> Record {
        Record { owner: Owner::Controller { source: None }, ..record(State::Announced) }
    }

    fn pv(name: &str) -> PersistentVolume {
        listing::tests::pv(name, name, NODE)
    }

    /// Client of an API server that has only these PVs, and denies requests about single PVs whose names end with
    /// `-denied`. `lists` counts the lists of PVs.
    fn api_server(pvs: &[PersistentVolume], lists: Arc<AtomicU32>) -> Client {
        let pvs: Vec<_> = pvs.iter().map(|pv| serde_json::to_value(pv).expect("a PV")).collect();
        fixture::client(move |request| {
            let status =
                |code: u16, reason| (code, json!({"kind": "Status", "code": code, "reason": reason}).to_string());
            let missing = || status(404, "NotFound");
            Some(match request.uri().path().strip_prefix("/api/v1/persistentvolumes") {
                Some("") => {
                    let is_first = request.uri().query().is_none_or(|query| !query.contains("continue="));
                    if is_first {
                        lists.fetch_add(1, Ordering::Relaxed);
                    }
                    fixture::page(&pvs, request)
                }
                Some(name) if name.ends_with("-denied") => status(403, "Forbidden"),
                Some(name) => {
                    let found = pvs.iter().find(|pv| pv["metadata"]["name"] == name.trim_start_matches('/'));
                    found.map_or_else(missing, |pv| (200, pv.to_string()))
                }
                None => missing(),
            })
        })
    }

    #[tokio::test]
    async fn a_pv_on_a_later_page_keeps_its_volume() {
        let lists = Arc::<AtomicU32>::default();
        let client = api_server(&["pvc-1", "pvc-2", "pvc-3"].map(pv), Arc::clone(&lists));
        let disk = FakeVolumes::with_size(Bytes::GIB);
        for volume in ["pvc-1", "pvc-2"] {
            disk.put(&id(volume), record(State::Announced));
        }
        let provisioner = Provisioner::new(client, NODE.to_owned(), Arc::new(disk), Metrics::default());
        let (found, _) = provisioner.sweep(&Findings::default()).await.expect("a comparison");
        assert_eq!((found.orphans, found.lost), (BTreeSet::new(), [id("pvc-3")].into()));
        assert_eq!(lists.load(Ordering::Relaxed), 1);
    }

    /// Regression: the volume was looked at again only in the next comparison.
    #[tokio::test(start_paused = true)]
    async fn a_volume_that_another_pass_has_is_looked_at_again_soon() {
        let (lost, lists) = (id("pvc-lost"), Arc::<AtomicU32>::default());
        let client = api_server(&[pv("pvc-lost")], Arc::clone(&lists));
        let disk = Arc::new(FakeVolumes::with_size(Bytes::GIB));
        let provisioner = Arc::new(Provisioner::new(client, NODE.to_owned(), disk, Metrics::default()));
        let pass = provisioner.locks.try_lock(&lost).expect("no other pass");
        let shared = Arc::clone(&provisioner);
        let tree = Supervisor::start("sweep", supervisor::Settings::default(), move |cx| run(cx, Arc::clone(&shared)));
        sleep(LOOK_AGAIN * 3).await;
        assert!(provisioner.events.queue.next().is_none(), "the pass may be creating the volume");
        drop(pass);
        sleep(LOOK_AGAIN * 3).await;
        let reported = provisioner.events.queue.next().expect("an event");
        assert_eq!(
            (reported.event.reason.as_str(), reported.regarding.name.as_deref()),
            ("VolumeLost", Some("pvc-lost"))
        );
        assert!(provisioner.events.queue.next().is_none());
        assert_eq!(lists.load(Ordering::Relaxed), 1);
        // The next comparison does not report it again.
        sleep(INTERVAL).await;
        assert!(lists.load(Ordering::Relaxed) > 1);
        assert!(provisioner.events.queue.next().is_none());
        tree.stop(INTERVAL).await.expect("it ends");
    }

    /// Regression: the volume kept its reservation until the next comparison, also if its undo failed or needed
    /// another pass.
    #[tokio::test(start_paused = true)]
    async fn the_staged_volume_of_a_deleted_claim_is_undone_soon() {
        let (staged, lists) = (id("pvc-u"), Arc::<AtomicU32>::default());
        let client = api_server(&[], Arc::clone(&lists));
        let disk = Arc::new(FakeVolumes::with_size(Bytes::GIB));
        let provisioner = Arc::new(Provisioner::new(client, NODE.to_owned(), disk.clone(), Metrics::default()));
        let shared = Arc::clone(&provisioner);
        let tree = Supervisor::start("sweep", supervisor::Settings::default(), move |cx| run(cx, Arc::clone(&shared)));
        sleep(LOOK_AGAIN).await;
        let end_claim = || {
            disk.put(&staged, record(State::Staged));
            let claim = json!({"metadata": {"name": "data", "namespace": "shop", "uid": "u", "annotations": {
                "volume.kubernetes.io/storage-provisioner": "local.granary.dev",
                "volume.kubernetes.io/selected-node": NODE,
            }}});
            provisioner.ended.observe(&Event::Delete(serde_json::from_value(claim).expect("a claim")), NODE);
        };
        disk.set_undo_passes(3);
        end_claim();
        sleep(Duration::from_secs(1)).await;
        assert_eq!(disk.record(&staged), None);
        let pass = provisioner.locks.try_lock(&staged).expect("no other pass");
        end_claim();
        sleep(LOOK_AGAIN * 3).await;
        assert!(disk.record(&staged).is_some(), "the pass may be creating the PV");
        drop(pass);
        sleep(LOOK_AGAIN).await;
        assert_eq!(disk.record(&staged), None);
        disk.set_stuck(&staged, true);
        end_claim();
        sleep(LOOK_AGAIN * 3).await;
        assert!(disk.record(&staged).is_some(), "its data is in use");
        disk.set_stuck(&staged, false);
        sleep(LOOK_AGAIN * 3).await;
        assert_eq!(disk.record(&staged), None);
        assert_eq!(lists.load(Ordering::Relaxed), 1);
        tree.stop(INTERVAL).await.expect("it ends");
    }

    /// Regression: the first error ended the comparison, so that a volume whose requests always failed prevented it.
    #[tokio::test]
    async fn an_error_about_one_volume_does_not_end_the_comparison() {
        let [denied, staged] = ["pvc-denied", "pvc-u"].map(id);
        let [lost_denied, lost] = ["pvc-lost-denied", "pvc-lost-too"].map(id);
        let disk = Arc::new(FakeVolumes::with_size(Bytes::GIB));
        for id in [&denied, &staged] {
            disk.put(id, record(State::Staged));
        }
        let client = api_server(&["pvc-lost-denied", "pvc-lost-too"].map(pv), Arc::default());
        let provisioner = Provisioner::new(client, NODE.to_owned(), disk.clone(), Metrics::default());
        let (found, failed) = provisioner.sweep(&Findings::default()).await.expect("a comparison");
        assert_eq!(failed.iter().map(|(id, _)| id).collect::<Vec<_>>(), [&denied, &lost_denied]);
        assert_eq!((disk.record(&staged), found.lost), (None, [lost].into()));
        assert_eq!(found.left_out.staged, [denied].into());
        assert_eq!(found.left_out.missing.into_keys().collect::<Vec<_>>(), [lost_denied]);
    }

    /// Regression: the first error ended the look, and the other volumes waited.
    #[tokio::test]
    async fn an_error_about_one_volume_delays_no_other() {
        let [denied, staged, lost] = ["pvc-denied", "pvc-u", "pvc-lost"].map(id);
        let disk = Arc::new(FakeVolumes::with_size(Bytes::GIB));
        for id in [&denied, &staged] {
            disk.put(id, record(State::Staged));
        }
        let client = api_server(&[pv("pvc-lost")], Arc::default());
        let provisioner = Provisioner::new(client, NODE.to_owned(), disk.clone(), Metrics::default());
        let pvs = Listing::of(&[pv("pvc-lost")], NODE).of_volume(&lost).to_vec();
        let left_out =
            LeftOut { staged: [denied.clone(), staged.clone()].into(), missing: [(lost.clone(), pvs)].into() };
        let mut reported = Findings { left_out, ..Findings::default() };
        let failed = provisioner.look_again(&mut reported).await;
        assert_eq!(failed.iter().map(|(id, _)| id).collect::<Vec<_>>(), [&denied]);
        assert_eq!((disk.record(&staged), reported.lost), (None, [lost].into()));
        assert_eq!(reported.left_out.staged, [denied].into());
        assert!(reported.left_out.missing.is_empty());
    }

    /// Regression: the stop waited until all files of a snapshot were removed.
    #[tokio::test]
    async fn a_long_removal_does_not_delay_the_stop() {
        let snapshot = id("snapshot-u");
        let disk = Arc::new(FakeVolumes::with_size(Bytes::GIB));
        let mode = Mode::Snapshot { taken: SystemTime::UNIX_EPOCH, sharing: Sharing::Temporary };
        disk.put(&snapshot, fixture::record(mode, State::Staged));
        disk.hold(true);
        let client = api_server(&[], Arc::default());
        let provisioner = Arc::new(Provisioner::new(client, NODE.to_owned(), disk.clone(), Metrics::default()));
        let shared = Arc::clone(&provisioner);
        let tree = Supervisor::start("sweep", supervisor::Settings::default(), move |cx| run(cx, Arc::clone(&shared)));
        while provisioner.locks.try_lock(&snapshot).is_some() {
            yield_now().await;
        }
        let stopped = tree.stop(Duration::from_secs(60)).await;
        disk.hold(false);
        stopped.expect("it ends");
    }

    /// Regression: a volume whose claim had ended was forgotten if another pass had it.
    #[tokio::test]
    async fn an_implausible_comparison_undoes_nothing_and_keeps_the_volumes_that_were_left_out() {
        let disk = Arc::new(FakeVolumes::with_size(Bytes::GIB));
        disk.put(&id("pvc-used"), record(State::Announced));
        disk.put(&id("pvc-u"), record(State::Staged));
        let client = api_server(&[], Arc::default());
        let provisioner = Provisioner::new(client, NODE.to_owned(), disk.clone(), Metrics::default());
        let left_out = LeftOut { staged: [id("pvc-u")].into(), ..LeftOut::default() };
        let reported = Findings { left_out, ..Findings::default() };
        let (found, _) = provisioner.sweep(&reported).await.expect("a comparison");
        assert_eq!(found.left_out.staged, [id("pvc-u")].into());
        assert!(disk.record(&id("pvc-u")).is_some());
    }

    #[test]
    fn orphans_are_announced_live_and_without_a_pv() {
        let records: BTreeMap<_, _> = [
            (id("pvc-staged"), record(State::Staged)),
            (id("pvc-used"), record(State::Announced)),
            (id("pvc-trash"), record(State::Announced)),
            (id("pvc-orphan"), record(State::Announced)),
            (id("pvc-external"), external()),
        ]
        .into();
        let listing = Listing::of(&[pv("pvc-used"), pv("pvc-of-no-record")], NODE);
        let retired = [id("pvc-trash")].into();
        assert_eq!(orphans(&records, &retired, &listing), [id("pvc-orphan")].into());
    }

    #[test]
    fn an_empty_list_of_pvs_is_implausible() {
        let nothing = Listing::of(&[], NODE);
        let had_one = [(id("pvc-used"), record(State::Announced)), (id("pvc-staged"), record(State::Staged))].into();
        assert!(!is_plausible(&nothing, &had_one));
        assert!(is_plausible(&Listing::of(&[pv("pvc-other")], NODE), &had_one));
        assert!(is_plausible(&nothing, &[(id("pvc-external"), external())].into()));
        // The first claim of a new cluster was interrupted.
        assert!(is_plausible(&nothing, &[(id("pvc-staged"), record(State::Staged))].into()));
    }
}
