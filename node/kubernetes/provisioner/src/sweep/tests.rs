use std::sync::atomic::{AtomicU32, Ordering};
use std::time::SystemTime;

use cluster::claim::ROLLBACK;
use fsquota::ProjectId;
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::Client;
use kube::runtime::watcher::Event;
use serde_json::json;
use supervisor::Supervisor;
use tokio::task::yield_now;
use tokio::time::{advance, sleep, timeout};
use units::{Bytes, Inodes};
use volume::{Allocation, Cloning, Mode, Rollback, Sharing};

use super::*;
use crate::fixture::{self, NODE, id};
use crate::listing;
use crate::sweep::round::LeftOut;

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

/// Record of a snapshot.
fn snapshot(state: State) -> Record {
    fixture::record(Mode::Snapshot { taken: SystemTime::UNIX_EPOCH, sharing: Sharing::Temporary }, state)
}

/// Record of an unfinished rollback of the volume `pvc-1`, whose claim is in this namespace.
fn rollback(namespace: &str) -> Record {
    let (volume, source, project) = (id("pvc-1"), id("snapshot-before"), ProjectId::new(8).expect("an ID"));
    let owner = Owner::Rollback(Rollback { volume, source, project, allocation: Allocation::Thick });
    let mut record = Record { owner, ..snapshot(State::Staged) };
    record.claim.namespace = namespace.into();
    record
}

/// Volumes of the errors.
fn volumes(failed: &[(Option<VolumeId>, Error)]) -> Vec<Option<&VolumeId>> {
    failed.iter().map(|(id, _)| id.as_ref()).collect()
}

fn api_server(pvs: &[PersistentVolume], lists: Arc<AtomicU32>) -> Client {
    api_server_without("-denied", pvs, lists)
}

/// Client of an API server that has only these PVs, and no claims. It denies requests whose paths contain `denied`.
/// `lists` counts the lists of PVs.
fn api_server_without(denied: &'static str, pvs: &[PersistentVolume], lists: Arc<AtomicU32>) -> Client {
    let pvs: Vec<_> = pvs.iter().map(|pv| serde_json::to_value(pv).expect("a PV")).collect();
    fixture::client(move |request| {
        let status = |code: u16, reason| (code, json!({"kind": "Status", "code": code, "reason": reason}).to_string());
        let path = request.uri().path();
        if path.contains(denied) {
            return Some(status(403, "Forbidden"));
        }
        Some(match path.strip_prefix("/api/v1/persistentvolumes") {
            Some("") => {
                if request.uri().query().is_none_or(|query| !query.contains("continue=")) {
                    lists.fetch_add(1, Ordering::Relaxed);
                }
                fixture::page(&pvs, request)
            }
            Some(name) => match pvs.iter().find(|pv| pv["metadata"]["name"] == name.trim_start_matches('/')) {
                Some(pv) => (200, pv.to_string()),
                None => status(404, "NotFound"),
            },
            None if path.ends_with("/persistentvolumeclaims") => fixture::page(&[], request),
            None => status(404, "NotFound"),
        })
    })
}

#[tokio::test]
async fn a_pv_on_a_later_page_keeps_its_volume() {
    let lists = Arc::<AtomicU32>::default();
    let client = api_server(&["pvc-1", "pvc-2", "pvc-3"].map(pv), Arc::clone(&lists));
    let (provisioner, disk) = fixture::with_client(client);
    for volume in ["pvc-1", "pvc-2"] {
        disk.put(&id(volume), record(State::Announced));
    }
    let Round { found, .. } = provisioner.sweep(&Findings::default()).await.expect("a comparison");
    assert_eq!((found.orphans, found.lost), (BTreeSet::new(), [id("pvc-3")].into()));
    assert_eq!(lists.load(Ordering::Relaxed), 1);
}

/// Regression: the volume was looked at again only in the next comparison.
#[tokio::test(start_paused = true)]
async fn a_volume_that_another_pass_has_is_looked_at_again_soon() {
    let (lost, lists) = (id("pvc-lost"), Arc::<AtomicU32>::default());
    let (provisioner, _) = fixture::with_client(api_server(&[pv("pvc-lost")], Arc::clone(&lists)));
    let pass = provisioner.locks.try_lock(&lost).expect("no other pass");
    let shared = Arc::clone(&provisioner);
    let tree = Supervisor::start("sweep", supervisor::Settings::default(), move |cx| run(cx, Arc::clone(&shared)));
    sleep(LOOK_AGAIN * 3).await;
    assert!(provisioner.events.queue.next().is_none(), "the pass may be creating the volume");
    drop(pass);
    sleep(LOOK_AGAIN * 3).await;
    let reported = provisioner.events.queue.next().expect("an event");
    assert_eq!((reported.event.reason.as_str(), reported.regarding.name.as_deref()), ("VolumeLost", Some("pvc-lost")));
    assert!(provisioner.events.queue.next().is_none());
    assert_eq!(lists.load(Ordering::Relaxed), 1);
    // The next comparison does not report it again.
    sleep(INTERVAL).await;
    assert!(lists.load(Ordering::Relaxed) > 1);
    assert!(provisioner.events.queue.next().is_none());
    tree.stop(INTERVAL).await.expect("it ends");
}

/// Nodes that started together list all PVs at different times.
#[tokio::test(start_paused = true)]
async fn pauses_between_comparisons_have_a_random_part() {
    let lists = Arc::<AtomicU32>::default();
    let (provisioner, _) = fixture::with_client(api_server(&[], Arc::clone(&lists)));
    let tree = Supervisor::start("sweep", supervisor::Settings::default(), move |cx| run(cx, Arc::clone(&provisioner)));
    // Without a random part, the ninth comparison begins a second later.
    sleep(INTERVAL * 8 - Duration::from_secs(1)).await;
    assert!(lists.load(Ordering::Relaxed) > 8);
    tree.stop(INTERVAL).await.expect("it ends");
}

/// Regression: the volume kept its reservation until the next comparison, also if its undo failed or needed
/// another pass.
#[tokio::test(start_paused = true)]
async fn the_staged_volume_of_a_deleted_claim_is_undone_soon() {
    let (staged, lists) = (id("pvc-u"), Arc::<AtomicU32>::default());
    let (provisioner, disk) = fixture::with_client(api_server(&[], Arc::clone(&lists)));
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
    let client = api_server(&["pvc-lost-denied", "pvc-lost-too"].map(pv), Arc::default());
    let (provisioner, disk) = fixture::with_client(client);
    for id in [&denied, &staged] {
        disk.put(id, record(State::Staged));
    }
    let Round { found, failed } = provisioner.sweep(&Findings::default()).await.expect("a comparison");
    assert_eq!(volumes(&failed), [Some(&denied), Some(&lost_denied)]);
    assert_eq!((disk.record(&staged), found.lost), (None, [lost].into()));
    assert_eq!(found.left_out.staged, [denied].into());
    assert_eq!(found.left_out.missing.into_keys().collect::<Vec<_>>(), [lost_denied]);
}

/// Regression: the first error ended the look, and the other volumes waited.
#[tokio::test]
async fn an_error_about_one_volume_delays_no_other() {
    let [denied, staged, lost] = ["pvc-denied", "pvc-u", "pvc-lost"].map(id);
    let (provisioner, disk) = fixture::with_client(api_server(&[pv("pvc-lost")], Arc::default()));
    for id in [&denied, &staged] {
        disk.put(id, record(State::Staged));
    }
    let pvs = Listing::of(&[pv("pvc-lost")], NODE).of_volume(&lost).to_vec();
    let left_out = LeftOut { staged: [denied.clone(), staged.clone()].into(), missing: [(lost.clone(), pvs)].into() };
    let reported = Findings { left_out, ..Findings::default() };
    let Round { found, failed } = provisioner.look_again(reported).await;
    assert_eq!(volumes(&failed), [Some(&denied)]);
    assert_eq!((disk.record(&staged), found.lost), (None, [lost].into()));
    assert_eq!(found.left_out.staged, [denied].into());
    assert!(found.left_out.missing.is_empty());
}

/// Regression: the undo of a copy waited for a clone of its source, and the volumes of other tenants for the undo.
#[tokio::test]
async fn a_copy_whose_source_is_being_cloned_delays_no_other() {
    let [source, copy, other] = ["pvc-source", "pvc-1", "pvc-2"].map(id);
    let (provisioner, disk) = fixture::with_client(api_server(&[], Arc::default()));
    disk.put(&source, record(State::Announced));
    let cloning = Some(Cloning::new(source.clone(), Bytes::GIB));
    disk.put(&copy, Record { cloning, ..record(State::Staged) });
    disk.put(&other, record(State::Staged));
    let left_out = LeftOut { staged: [copy.clone(), other.clone()].into(), ..LeftOut::default() };
    let clone = provisioner.clone_turn([&source]).expect("a turn");
    let Round { found, failed } = provisioner.look_again(Findings { left_out, ..Findings::default() }).await;
    assert_eq!((disk.record(&copy).is_some(), disk.record(&other)), (true, None));
    assert!(failed.is_empty(), "{failed:?}");
    assert_eq!(found.left_out.staged, [copy.clone()].into());
    drop(clone);
    // A client of CSI has no lock of the provisioner.
    disk.set_locked(&source, true);
    let Round { found, failed } = provisioner.look_again(found).await;
    assert!(failed.is_empty(), "{failed:?}");
    assert_eq!(found.left_out.staged, [copy.clone()].into());
    disk.set_locked(&source, false);
    let Round { found, .. } = provisioner.look_again(found).await;
    assert!(disk.record(&copy).is_none() && found.left_out.is_empty(), "{found:?}");
    assert!(provisioner.clone_turn([&source]).is_some(), "the undo has ended");
}

/// Regression: each look sent the requests again, every 5 to 10 seconds.
#[tokio::test(start_paused = true)]
async fn requests_that_fail_have_a_back_off() {
    let [denied, lost_denied] = ["pvc-denied", "pvc-lost-denied"].map(id);
    let (provisioner, disk) = fixture::with_client(api_server(&[], Arc::default()));
    disk.put(&denied, record(State::Staged));
    let pvs = Listing::of(&[pv("pvc-lost-denied")], NODE).of_volume(&lost_denied).to_vec();
    let left_out = LeftOut { staged: [denied].into(), missing: [(lost_denied, pvs)].into() };
    let (mut found, mut errors) = (Findings { left_out, ..Findings::default() }, 0);
    for _ in 0..30 {
        let round = provisioner.look_again(found).await;
        errors += round.failed.len();
        found = round.found;
        advance(LOOK_AGAIN).await;
    }
    assert!((10..=20).contains(&errors), "{errors} errors of two volumes in 5 minutes");
    assert_eq!((found.left_out.staged.len(), found.left_out.missing.len()), (1, 1));
}

/// Regression: the first error ended the sweep, so that the other rollbacks and the volumes behind them waited.
#[tokio::test]
async fn an_error_about_one_rollback_does_not_end_the_comparison() {
    let [denied, removed, stuck] = ["snapshot-a", "snapshot-b", "snapshot-c"].map(id);
    let (provisioner, disk) = fixture::with_client(api_server(&["pvc-1", "pvc-lost"].map(pv), Arc::default()));
    disk.put(&id("pvc-1"), record(State::Announced));
    for (kept, namespace) in [(&denied, "a-denied"), (&removed, "shop"), (&stuck, "shop")] {
        disk.put(kept, rollback(namespace));
    }
    disk.set_stuck(&stuck, true);
    let round = provisioner.sweep(&Findings::default()).await.expect("a comparison");
    assert_eq!(volumes(&round.failed), [None, Some(&stuck)], "the list of a namespace is denied");
    assert!(round.is_incomplete(), "no look follows");
    assert_eq!((disk.record(&removed), round.found.lost), (None, [id("pvc-lost")].into()));
}

/// Regression: the sweep waited for a pass over the snapshot, and the other rollbacks and the volumes behind them for
/// the sweep.
#[tokio::test(start_paused = true)]
async fn a_rollback_that_another_pass_has_delays_no_other() {
    let [occupied, removed] = ["snapshot-a", "snapshot-b"].map(id);
    let (provisioner, disk) = fixture::with_client(api_server(&[], Arc::default()));
    let rollbacks: BTreeMap<_, _> = [&occupied, &removed].map(|kept| (kept.clone(), rollback("shop"))).into();
    for (kept, record) in &rollbacks {
        disk.put(kept, record.clone());
    }
    let pass = provisioner.locks.try_lock(&occupied).expect("no other pass");
    let mut failed = Failed::new();
    timeout(INTERVAL, provisioner.sweep_rollbacks(&rollbacks, &mut failed)).await.expect("the sweep ends");
    assert_eq!((disk.record(&occupied).is_some(), disk.record(&removed)), (true, None));
    drop(pass);
    provisioner.sweep_rollbacks(&rollbacks, &mut failed).await;
    assert!(failed.is_empty() && disk.record(&occupied).is_none(), "{failed:?}");
}

#[tokio::test]
async fn a_request_on_a_later_page_keeps_its_rollback() {
    let kept = id("snapshot-kept");
    let claims = ["other", "u"].map(|uid| {
        json!({"metadata": {"name": uid, "namespace": "shop", "uid": uid, "annotations": {ROLLBACK: "snapshot-kept"}}})
    });
    let client = fixture::client(move |request| Some(fixture::page(&claims, request)));
    let (provisioner, disk) = fixture::with_client(client);
    disk.put(&kept, rollback("shop"));
    let mut failed = Failed::new();
    provisioner.sweep_rollbacks(&[(kept.clone(), rollback("shop"))].into(), &mut failed).await;
    assert!(failed.is_empty() && disk.record(&kept).is_some(), "{failed:?}");
}

/// Regression: the volumes behind the snapshots waited until the API server listed the contents.
#[tokio::test]
async fn an_error_about_snapshots_does_not_end_the_comparison() {
    let [orphan, unfinished] = ["snapshot-a", "snapshot-b"].map(id);
    let client = api_server_without("/volumesnapshotcontents", &[pv("pvc-lost")], Arc::default());
    let (provisioner, disk) = fixture::with_client(client);
    disk.put(&orphan, snapshot(State::Announced));
    disk.put(&unfinished, snapshot(State::Staged));
    let reported = Findings { snapshots: [orphan.clone()].into(), ..Findings::default() };
    let round = provisioner.sweep(&reported).await.expect("a comparison");
    assert_eq!(volumes(&round.failed), [None]);
    assert!(disk.record(&unfinished).is_some() && round.is_incomplete());
    assert_eq!((round.found.snapshots, round.found.lost), ([orphan].into(), [id("pvc-lost")].into()));
}

#[tokio::test]
async fn a_snapshot_that_cannot_be_removed_delays_no_other() {
    let [stuck, locked, removed] = ["snapshot-a", "snapshot-b", "snapshot-c"].map(id);
    let (provisioner, disk) = fixture::with_client(api_server(&[], Arc::default()));
    for unfinished in [&stuck, &removed] {
        disk.put(unfinished, snapshot(State::Staged));
    }
    disk.set_stuck(&stuck, true);
    let source = id("pvc-1");
    let cloning = Some(Cloning::new(source.clone(), Bytes::GIB));
    disk.put(&locked, Record { cloning, ..snapshot(State::Staged) });
    disk.set_locked(&source, true);
    let round = provisioner.sweep(&Findings::default()).await.expect("a comparison");
    assert_eq!(volumes(&round.failed), [Some(&stuck)]);
    assert_eq!((disk.record(&locked).is_some(), disk.record(&removed)), (true, None));
    assert!(round.has_progress() && !round.is_incomplete(), "only the snapshot causes the error");
}

/// Regression: the stop waited until all files of a snapshot were removed.
#[tokio::test]
async fn a_long_removal_does_not_delay_the_stop() {
    let unfinished = id("snapshot-u");
    let (provisioner, disk) = fixture::with_client(api_server(&[], Arc::default()));
    disk.put(&unfinished, snapshot(State::Staged));
    disk.hold(true);
    let shared = Arc::clone(&provisioner);
    let tree = Supervisor::start("sweep", supervisor::Settings::default(), move |cx| run(cx, Arc::clone(&shared)));
    while provisioner.locks.try_lock(&unfinished).is_some() {
        yield_now().await;
    }
    let stopped = tree.stop(Duration::from_secs(60)).await;
    disk.hold(false);
    stopped.expect("it ends");
}

/// Regression: a volume whose claim had ended was forgotten if another pass had it.
#[tokio::test]
async fn an_implausible_comparison_undoes_nothing_and_keeps_the_volumes_that_were_left_out() {
    let (provisioner, disk) = fixture::with_client(api_server(&[], Arc::default()));
    disk.put(&id("pvc-used"), record(State::Announced));
    disk.put(&id("pvc-u"), record(State::Staged));
    let left_out = LeftOut { staged: [id("pvc-u")].into(), ..LeftOut::default() };
    let reported = Findings { left_out, ..Findings::default() };
    let Round { found, .. } = provisioner.sweep(&reported).await.expect("a comparison");
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
