//! A process is killed within a rollback.

use std::cell::Cell;
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;

use fsquota::Limits;
use ktest_support::XfsDisk;
use ktest_support::process::{Call, with_refused_call};
use nix::libc;
use units::Bytes;
use volume::{
    Access, Claim, Error, Mode, Request, RollbackRequest, State, Step, Store, Strays, VolumeId, VolumeRefusal,
    Volumes as _,
};

use crate::killed::{Steps, THICK, THIN, deleted, killed_at, made, open};
use crate::node::{self, byte_of, id, only_byte, sized, snapshot_request, without_pods};
use crate::trees::FILES;

/// Steps of one case: every fourth one, because all steps of each case take minutes in emulation. The cases of thick
/// images have three of four steps, that of a thin image has the fourth one: a step that only a thick image has may be
/// in no case.
const fn from(first: usize) -> Steps {
    Steps { first, stride: 4 }
}

pub fn claim() -> Claim {
    Claim { uid: "uid".into(), namespace: "default".into(), name: "snapshot".into() }
}

pub fn snapshot_of(request: &Request) -> VolumeId {
    id(&format!("snapshot-{}", request.claim.name))
}

fn kept_of(request: &Request) -> VolumeId {
    id(&format!("kept-{}", request.claim.name))
}

/// File with the content of the volume, and its size: half of the size of a filesystem volume, all of an image.
fn file(store: &Store, request: &Request) -> (File, usize) {
    let (volume, size) = (id(&request.claim.name), request.size.get() as usize);
    if request.mode.is_block() {
        return (File::from(store.open_volume(&volume).unwrap().image(Access::ReadWrite).unwrap()), size);
    }
    (node::file(store, &volume, "file"), size / 2)
}

fn write(store: &Store, request: &Request, byte: u8) {
    let (file, size) = file(store, request);
    file.write_all_at(&vec![byte; size], 0).unwrap();
    file.sync_all().unwrap();
}

fn content(store: &Store, request: &Request) -> u8 {
    let (file, size) = file(store, request);
    byte_of(&file, size).expect("one content")
}

fn with_snapshot(store: &Store, request: &Request) {
    without_pods(store);
    made(store, request);
    write(store, request, 1);
    let source = id(&request.claim.name);
    let want = snapshot_request(claim(), source);
    while store.take_snapshot(&snapshot_of(request), &want).unwrap().snapshots.state != State::Announced {}
    write(store, request, 2);
}

/// Runs all passes.
fn roll_back(store: &Store, request: &Request) -> Result<(), Error> {
    let want = RollbackRequest { claim: claim(), volume: id(&request.claim.name), source: snapshot_of(request) };
    loop {
        match store.roll_back(&kept_of(request), &want) {
            Err(Error::Copying { .. }) => {}
            done => return done.map(drop),
        }
    }
}

fn rolled_back(store: &Store, request: &Request) {
    roll_back(store, request).unwrap();
}

fn removed(store: &Store, request: &Request) {
    store.remove_snapshot(&snapshot_of(request)).unwrap();
    deleted(store, request);
}

fn rolled_back_and_ended(store: &Store, request: &Request) {
    rolled_back(store, request);
    store.end_rollback(&kept_of(request)).unwrap();
}

fn finished(store: &Store, request: &Request) {
    assert!([1, 2].contains(&content(store, request)));
    let kept = || store.records().unwrap().readable.remove(&kept_of(request));
    // A rollback that has ended is not repeated.
    if kept().is_none_or(|kept| kept.rollback().is_some()) {
        rolled_back(store, request);
    }
    assert_eq!(content(store, request), 1);
    let kept = kept().unwrap();
    store.end_rollback(&kept_of(request)).unwrap();
    // Both directories count to the projects of their records.
    let used: Vec<Bytes> = store.usage().unwrap().into_iter().map(|usage| usage.used.bytes).collect();
    let (_, written) = file(store, request);
    assert!(used.len() == 3 && used.iter().all(|used| used.get() >= written as u64), "{used:?} {kept:?}");
    if !request.mode.is_block() {
        let quota = store.open_volume(&id(&request.claim.name)).unwrap().quota().unwrap();
        assert_eq!(quota.limits, volume_limits(request), "{kept:?}");
    }
    store.remove_snapshot(&kept_of(request)).unwrap();
    removed(store, request);
}

fn volume_limits(request: &Request) -> Limits {
    let Mode::Filesystem { inodes } = request.mode else { panic!("{request:?}") };
    Limits { bytes: Some(request.size), inodes: Some(inodes) }
}

#[test]
fn a_killed_rollback_is_finished_by_the_next() {
    killed_at(from(0), &[THICK, THIN], with_snapshot, rolled_back_and_ended, finished);
}

#[test]
fn a_killed_rollback_of_files_is_finished_by_the_next() {
    killed_at(from(2), &[FILES], with_snapshot, rolled_back_and_ended, finished);
}

#[test]
fn a_killed_rollback_can_be_canceled_until_the_content_is_exchanged() {
    killed_at(from(2), &[THICK], with_snapshot, rolled_back, |store, request| {
        match store.remove_snapshot(&kept_of(request)) {
            Ok(_) => assert_eq!(content(store, request), 2),
            Err(Error::Refused { source: VolumeRefusal::RollingBack(_), .. }) => {
                assert_eq!(content(store, request), 1);
                rolled_back(store, request);
                store.end_rollback(&kept_of(request)).unwrap();
                store.remove_snapshot(&kept_of(request)).unwrap();
            }
            Err(error) => panic!("{error:?}"),
        }
        removed(store, request);
    });
}

#[test]
fn a_volume_can_be_deleted_after_its_rollback_was_killed() {
    killed_at(from(3), &[THICK], with_snapshot, rolled_back, |store, request| {
        removed(store, request);
        store.remove_snapshot(&kept_of(request)).unwrap();
    });
}

/// Regression: no record could be written after the exchange, the volume was deleted, and the process was killed before
/// its next call for the snapshot. Until that call, the start set the limits of a project that no directory had.
#[test]
fn a_start_finishes_an_exchange_whose_volume_was_deleted() {
    let (disk, request) = (XfsDisk::with_project_quota(), sized("pvc-1", THICK, Bytes::MIB));
    let store = open(disk.path());
    with_snapshot(&store, &request);
    let is_exchanged = Cell::new(false);
    let creates_record = |call: &Call<'_>| {
        let [_, _, _, _, flags, _] = call.arguments();
        is_exchanged.set(
            is_exchanged.get() || call.number() == libc::SYS_renameat2 && flags == u64::from(libc::RENAME_EXCHANGE),
        );
        is_exchanged.get() && call.number() == libc::SYS_openat2 && call.may_change_files()
    };
    let reached = with_refused_call(0, creates_record, || {
        let error = roll_back(&store, &request).unwrap_err();
        assert!(matches!(error, Error::Act { step: Step::WriteRecord, .. }), "{error:?}");
        deleted(&store, &request);
    });
    assert!(reached, "the content is not exchanged");
    drop(store);
    let store = open(disk.path());
    let kept = kept_of(&request);
    let record = store.record(&kept).unwrap().expect("a record");
    assert!(record.is_exchanged(), "{record:?}");
    assert_eq!(store.strays().unwrap(), Strays::default());
    let content = fs::read(disk.path().join(format!("volumes/staging/{kept}/image"))).unwrap();
    assert_eq!(only_byte(&content), Some(2));
    store.remove_snapshot(&kept).unwrap();
    removed(&store, &request);
    assert_eq!(store.strays().unwrap(), Strays::default());
    assert_eq!(store.space().unwrap().reserved, Bytes::ZERO);
}
