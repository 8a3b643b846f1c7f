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

use crate::killed::{
    Shared, Steps, THICK, THIN, deleted, killed_at, killed_at_calls, made, may_change_files, open, source_of,
};
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

pub fn snapshot_of(volume: &Request) -> VolumeId {
    id(&format!("snapshot-{}", volume.claim.name))
}

fn kept_of(request: &Request) -> VolumeId {
    id(&format!("kept-{}", request.claim.name))
}

/// File with the content of the volume, and its size: half of the size of a filesystem volume, all of an image.
fn file(store: &Store, volume: &Request) -> (File, usize) {
    let (id, size) = (id(&volume.claim.name), volume.size.get() as usize);
    if volume.mode.is_block() {
        return (File::from(store.open_volume(&id).unwrap().image(Access::ReadWrite).unwrap()), size);
    }
    (node::file(store, &id, "file"), size / 2)
}

fn write(store: &Store, volume: &Request, byte: u8) {
    let (file, size) = file(store, volume);
    file.write_all_at(&vec![byte; size], 0).unwrap();
    file.sync_all().unwrap();
}

fn content(store: &Store, volume: &Request) -> u8 {
    let (file, size) = file(store, volume);
    byte_of(&file, size).expect("one content")
}

/// Creates a volume, its snapshot, and then later content.
fn with_snapshot(store: &Store, volume: &Request) {
    without_pods(store);
    made(store, volume);
    write(store, volume, 1);
    let want = snapshot_request(claim(), id(&volume.claim.name));
    while store.take_snapshot(&snapshot_of(volume), &want).unwrap().snapshots.state != State::Announced {}
    write(store, volume, 2);
}

/// Runs all passes.
fn roll_back(store: &Store, volume: &Request, kept: &VolumeId) -> Result<(), Error> {
    let want = RollbackRequest { claim: claim(), volume: id(&volume.claim.name), source: snapshot_of(volume) };
    loop {
        match store.roll_back(kept, &want) {
            Err(Error::Copying { .. }) => {}
            done => return done.map(drop),
        }
    }
}

fn removed(store: &Store, volume: &Request) {
    store.remove_snapshot(&snapshot_of(volume)).unwrap();
    deleted(store, volume);
}

/// Kills rollbacks of one volume, which has the later content before each run.
fn killed_rollback(steps: Steps, modes: &[Mode], work: impl Fn(&Store, &Request), after: impl Fn(&Store, &Request)) {
    let source: Shared = (
        |store, request| with_snapshot(store, &source_of(request)),
        |store, request| removed(store, &source_of(request)),
    );
    let before = |store: &Store, request: &Request| write(store, &source_of(request), 2);
    killed_at_calls(may_change_files, steps, modes, source, before, work, after);
}

fn rolled_back(store: &Store, request: &Request) {
    roll_back(store, &source_of(request), &kept_of(request)).unwrap();
}

fn rolled_back_and_ended(store: &Store, request: &Request) {
    rolled_back(store, request);
    store.end_rollback(&kept_of(request)).unwrap();
}

fn finished(store: &Store, request: &Request) {
    let volume = source_of(request);
    assert!([1, 2].contains(&content(store, &volume)));
    let kept = || store.records().unwrap().readable.remove(&kept_of(request));
    // A rollback that has ended is not repeated.
    if kept().is_none_or(|kept| kept.rollback().is_some()) {
        rolled_back(store, request);
    }
    assert_eq!(content(store, &volume), 1);
    let kept = kept().unwrap();
    store.end_rollback(&kept_of(request)).unwrap();
    // Both directories count to the projects of their records.
    let used: Vec<Bytes> = store.usage().unwrap().into_iter().map(|usage| usage.used.bytes).collect();
    let (_, written) = file(store, &volume);
    assert!(used.len() == 3 && used.iter().all(|used| used.get() >= written as u64), "{used:?} {kept:?}");
    if !volume.mode.is_block() {
        let quota = store.open_volume(&id(&volume.claim.name)).unwrap().quota().unwrap();
        assert_eq!(quota.limits, volume_limits(&volume), "{kept:?}");
    }
    store.remove_snapshot(&kept_of(request)).unwrap();
}

fn volume_limits(volume: &Request) -> Limits {
    let Mode::Filesystem { inodes } = volume.mode else { panic!("{volume:?}") };
    Limits { bytes: Some(volume.size), inodes: Some(inodes) }
}

#[test]
fn a_killed_rollback_is_finished_by_the_next() {
    killed_rollback(from(0), &[THICK, THIN], rolled_back_and_ended, finished);
}

#[test]
fn a_killed_rollback_of_files_is_finished_by_the_next() {
    killed_rollback(from(2), &[FILES], rolled_back_and_ended, finished);
}

#[test]
fn a_killed_rollback_can_be_canceled_until_the_content_is_exchanged() {
    killed_rollback(from(2), &[THICK], rolled_back, |store, request| {
        let content = || content(store, &source_of(request));
        match store.remove_snapshot(&kept_of(request)) {
            Ok(_) => assert_eq!(content(), 2),
            Err(Error::Refused { source: VolumeRefusal::RollingBack(_), .. }) => {
                assert_eq!(content(), 1);
                rolled_back(store, request);
                store.end_rollback(&kept_of(request)).unwrap();
                store.remove_snapshot(&kept_of(request)).unwrap();
            }
            Err(error) => panic!("{error:?}"),
        }
    });
}

#[test]
fn a_volume_can_be_deleted_after_its_rollback_was_killed() {
    let roll_back = |store: &Store, request: &Request| roll_back(store, request, &kept_of(request)).unwrap();
    killed_at(from(3), &[THICK], with_snapshot, roll_back, |store, request| {
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
        let error = roll_back(&store, &request, &kept_of(&request)).unwrap_err();
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
