//! A process is killed within a rollback.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use units::Bytes;
use volume::{
    Access, Claim, DEFAULT_PAUSE, Error, Request, RollbackRequest, SnapshotRequest, State, Store, VolumeId,
    VolumeRefusal, Volumes as _,
};

use crate::killed::{THICK, THIN, deleted, killed_everywhere, made};
use crate::node::id;

fn claim() -> Claim {
    Claim { uid: "uid".into(), namespace: "default".into(), name: "snapshot".into() }
}

fn snapshot_of(request: &Request) -> VolumeId {
    id(&format!("snapshot-{}", request.claim.name))
}

fn kept_of(request: &Request) -> VolumeId {
    id(&format!("kept-{}", request.claim.name))
}

fn write(store: &Store, request: &Request, byte: u8) {
    let image = File::from(store.open_volume(&id(&request.claim.name)).unwrap().image(Access::ReadWrite).unwrap());
    image.write_all_at(&vec![byte; request.size.get() as usize], 0).unwrap();
    image.sync_all().unwrap();
}

fn content(store: &Store, request: &Request) -> u8 {
    let image = File::from(store.open_volume(&id(&request.claim.name)).unwrap().image(Access::ReadOnly).unwrap());
    let mut content = vec![0; request.size.get() as usize];
    image.read_exact_at(&mut content, 0).unwrap();
    assert!(content.iter().all(|byte| *byte == content[0]), "of two contents");
    content[0]
}

fn with_snapshot(store: &Store, request: &Request) {
    made(store, request);
    write(store, request, 1);
    let source = id(&request.claim.name);
    let want = SnapshotRequest { claim: claim(), class: "local".into(), source, max_pause: DEFAULT_PAUSE };
    while store.take_snapshot(&snapshot_of(request), &want).unwrap().into_inner().state != State::Announced {}
    write(store, request, 2);
}

fn rolled_back(store: &Store, request: &Request) {
    let want = RollbackRequest { claim: claim(), volume: id(&request.claim.name), source: snapshot_of(request) };
    while let Err(error) = store.roll_back(&kept_of(request), &want) {
        assert!(matches!(error, Error::Copying { .. }), "{error:?}");
    }
}

fn removed(store: &Store, request: &Request) {
    store.remove_snapshot(&snapshot_of(request)).unwrap();
    deleted(store, request);
}

#[test]
fn a_killed_rollback_is_finished_by_the_next() {
    killed_everywhere(
        &[THICK, THIN],
        with_snapshot,
        |store, request| {
            rolled_back(store, request);
            store.end_rollback(&kept_of(request)).unwrap();
        },
        |store, request| {
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
            assert!(used.len() == 3 && used.iter().all(|used| *used >= request.size), "{used:?} {kept:?}");
            store.remove_snapshot(&kept_of(request)).unwrap();
            removed(store, request);
        },
    );
}

#[test]
fn a_killed_rollback_can_be_canceled_until_the_content_is_exchanged() {
    killed_everywhere(&[THICK], with_snapshot, rolled_back, |store, request| {
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
    killed_everywhere(&[THICK], with_snapshot, rolled_back, |store, request| {
        removed(store, request);
        store.remove_snapshot(&kept_of(request)).unwrap();
    });
}
