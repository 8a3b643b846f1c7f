//! A process is killed while it takes, restores or removes a thin snapshot.

use std::fs::{self, File};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileExt as _;

use dir::Ensured;
use ktest_support::XfsDisk;
use ktest_support::process::{Call, with_refused_call};
use nix::libc::SYS_fsync;
use units::Bytes;
use volume::{
    Error, Mode, Record, Request, Sharing, SnapshotRequest, State, Step, Store, Taken, VolumeId, VolumeRefusal,
    Volumes as _,
};

use crate::cloned::is_settled;
use crate::killed::{SOURCE, Steps, THICK, THIN, deleted, killed_at_calls, made, may_change_files, open, source_of};
use crate::node::{copied, id, only_byte, sized, snapshot_request, without_pods};
use crate::rollback::{claim, snapshot_of};
use crate::sys::cow_extent_size;
use crate::trees::{self, FILES};

/// Each `stride`th step of a case: all steps of each case take minutes in emulation.
const fn each(stride: usize) -> Steps {
    Steps { first: 0, stride }
}

fn id_of_source(request: &Request) -> VolumeId {
    id(&source_of(request).claim.name)
}

fn restored_of(request: &Request) -> Request {
    let name = format!("restored-{}", request.claim.name);
    Request { source: Some(snapshot_of(request)), ..sized(&name, request.mode, request.size) }
}

/// Path of the content of a live volume or snapshot.
fn path(store: &Store, request: &Request, volume: &VolumeId) -> String {
    let (live, name) = (store.file_system().as_raw_fd(), if request.mode.is_block() { "image" } else { "file" });
    format!("/proc/self/fd/{live}/{volume}/{name}")
}

/// Overwrites an image as a whole. Writes a quarter of the size to a file, because the limit has no space for a copy of
/// the whole size.
fn write(store: &Store, request: &Request, byte: u8) {
    let length = request.size.get() as usize / if request.mode.is_block() { 1 } else { 4 };
    let path = path(store, request, &id_of_source(request));
    let file = File::options().write(true).create(true).truncate(false).open(path).unwrap();
    file.write_all_at(&vec![byte; length], 0).and_then(|()| file.sync_all()).unwrap();
}

fn byte(store: &Store, request: &Request, volume: &VolumeId) -> Option<u8> {
    only_byte(&fs::read(path(store, request, volume)).unwrap())
}

fn allocation_size(store: &Store, request: &Request, volume: &VolumeId) -> u32 {
    cow_extent_size(File::open(path(store, request, volume)).unwrap())
}

fn limit(store: &Store, request: &Request) -> Option<Bytes> {
    store.open_volume(&id_of_source(request)).unwrap().quota().unwrap().limits.bytes
}

fn with_content(store: &Store, request: &Request) {
    without_pods(store);
    write(store, request, 1);
}

fn with_snapshot(store: &Store, request: &Request) {
    with_content(store, request);
    taken(store, request);
    write(store, request, 2);
}

/// [`killed_at_calls`] with one source for all runs.
fn killed_at(
    steps: Steps,
    modes: &[Mode],
    before: impl Fn(&Store, &Request),
    work: impl Fn(&Store, &Request),
    after: impl Fn(&Store, &Request),
) {
    killed_at_calls(may_change_files, steps, modes, SOURCE, before, work, after);
}

fn take(store: &Store, request: &Request) -> Result<Taken<Record>, Error> {
    let want = snapshot_request(claim(), id_of_source(request));
    store.take_snapshot(&snapshot_of(request), &SnapshotRequest { sharing: Sharing::Permanent, ..want })
}

/// Takes the thin snapshot, which is ready after one call.
fn taken(store: &Store, request: &Request) {
    let Taken { snapshots, copying } = take(store, request).unwrap();
    assert_eq!((snapshots.state, copying), (State::Announced, None));
    assert_eq!(store.space().unwrap().reserved, request.reserved());
}

/// Removes the thin snapshot. Afterwards, the source has its own limit, and its writes allocate as before the snapshot.
fn removed(store: &Store, request: &Request) {
    let snapshot = snapshot_of(request);
    store.remove_snapshot(&snapshot).unwrap();
    assert_eq!(store.remove_snapshot(&snapshot).unwrap(), Ensured::Unchanged(()));
    if request.mode.is_block() {
        is_settled(store, &source_of(request), Bytes::ZERO);
        assert_eq!(allocation_size(store, request, &id_of_source(request)), 0);
    } else {
        assert_eq!(limit(store, request), Some(request.size));
        assert_eq!(store.space().unwrap().reserved, request.reserved());
    }
}

fn finished(store: &Store, request: &Request) {
    without_pods(store);
    write(store, request, 2);
    taken(store, request);
    let content = || byte(store, request, &snapshot_of(request));
    let instant = content();
    // The content of the instant before or after the kill.
    assert!(instant.is_some_and(|byte| [1, 2].contains(&byte)), "{instant:?}");
    write(store, request, 3);
    assert_eq!(content(), instant);
    let raised = limit(store, request);
    removed(store, request);
    let headroom = if request.mode.is_block() { request.size } else { Bytes::ZERO };
    assert_eq!(raised, limit(store, request).map(|alone| alone.saturating_add(headroom)));
}

#[test]
fn a_killed_thin_snapshot_is_finished_by_the_next() {
    killed_at(each(2), &[THICK, THIN], with_content, taken, finished);
}

#[test]
fn a_killed_thin_snapshot_of_files_is_finished_by_the_next() {
    killed_at(trees::from(3), &[FILES], with_content, taken, finished);
}

/// Regression: the next call returned the snapshot without another sync, and a power cut undid the announcement.
#[test]
fn a_thin_snapshot_is_ready_when_its_announcement_is_durable() {
    let (disk, request) = (XfsDisk::with_project_quota(), sized("pvc-1", THIN, Bytes::MIB));
    let store = open(disk.path());
    made(&store, &source_of(&request));
    with_content(&store, &request);
    let syncs = |call: &Call<'_>| call.number() == SYS_fsync;
    // The first sync makes the name of the directory durable.
    let reached = with_refused_call(1, syncs, || {
        let failed = take(&store, &request).unwrap_err();
        assert!(matches!(failed, Error::Act { step: Step::SyncLive, .. }), "{failed:?}");
        let record = store.record(&snapshot_of(&request)).unwrap().expect("a record");
        assert_eq!(record.state, State::Announced, "{record:?}");
        let forces = store.forces();
        taken(&store, &request);
        assert_eq!(store.forces(), forces + 1);
        taken(&store, &request);
        assert_eq!(store.forces(), forces + 1, "it is durable");
    });
    assert!(reached, "it is announced without a sync");
}

#[test]
fn a_killed_thin_snapshot_is_removed_if_its_content_is_gone() {
    killed_at(Steps { first: 1, stride: 5 }, &[THICK, FILES], with_content, taken, |store, request| {
        without_pods(store);
        write(store, request, 2);
        removed(store, request);
    });
}

/// Regression: the record was removed first, and after a kill nothing reset the size of the allocations of the source.
#[test]
fn a_killed_removal_of_a_thin_snapshot_is_finished_by_the_next() {
    let remove = |store: &Store, request: &Request| {
        store.remove_snapshot(&snapshot_of(request)).unwrap();
    };
    killed_at(each(3), &[THICK, THIN, FILES], with_snapshot, remove, |store, request| {
        write(store, request, 3);
        removed(store, request);
    });
}

fn restored(store: &Store, request: &Request) {
    copied(store, &restored_of(request));
}

fn finished_and_removed(store: &Store, request: &Request) {
    without_pods(store);
    write(store, request, 3);
    let (snapshot, want) = (snapshot_of(request), restored_of(request));
    let restored = id(&want.claim.name);
    if store.record(&restored).unwrap().is_some_and(|record| record.cloning.is_some()) {
        let refused = store.remove_snapshot(&snapshot).unwrap_err();
        assert!(matches!(refused, Error::Refused { source: VolumeRefusal::Restoring(_), .. }), "{refused:?}");
    }
    let record = copied(store, &want);
    assert_eq!([&restored, &snapshot].map(|volume| byte(store, request, volume)), [Some(1); 2]);
    assert_eq!(store.space().unwrap().reserved, request.reserved().saturating_add(record.reserved()));
    if request.mode.is_block() {
        assert_eq!(allocation_size(store, request, &restored), 0);
    }
    deleted(store, &want);
    removed(store, request);
}

#[test]
fn a_killed_restoration_of_a_thin_snapshot_is_finished_by_the_next() {
    killed_at(each(3), &[THICK], with_snapshot, restored, finished_and_removed);
}

#[test]
fn a_killed_restoration_of_a_thin_snapshot_of_files_is_finished_by_the_next() {
    killed_at(each(6), &[FILES], with_snapshot, restored, finished_and_removed);
}
