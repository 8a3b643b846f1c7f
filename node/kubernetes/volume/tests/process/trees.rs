//! A process is killed while it clones files.

use std::fs::{File, FileTimes};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, SystemTime};

use dir::Ensured;
use ktest_support::XfsDisk;
use ktest_support::process::{Call, Flush, with_refused_call, without_flush};
use nix::libc;
use rustix::fs::{XattrFlags, fgetxattr, fsetxattr};
use units::{Bytes, Inodes};
use volume::{Claim, Copying, Error, Mode, Request, Settings, SnapshotRequest, State, Store, VolumeId, Volumes as _};

use crate::killed::{SOURCE, Steps, deleted, killed_at_calls, made, may_change_files, open, source_of};
use crate::node::{CAPABILITY, Node, SIZE, byte_of, copied, file, id, settings, sized, snapshot_request, without_pods};

pub const FILES: Mode = Mode::Filesystem { inodes: Inodes::new(64) };
const CONTENT: usize = 200 << 10;

/// Steps of one case. All steps of each case take a minute in emulation. The clone of the files is the same in these
/// cases and that of a thin snapshot, which together have each of its steps.
pub const fn from(first: usize) -> Steps {
    Steps { first, stride: 4 }
}

fn clone_of(request: &Request) -> Request {
    Request { source: Some(id(&source_of(request).claim.name)), ..request.clone() }
}

fn snapshot_of(request: &Request) -> SnapshotRequest {
    let claim = Claim { uid: "uid".into(), namespace: "default".into(), name: "snapshot".into() };
    let source = id(&source_of(request).claim.name);
    snapshot_request(claim, source)
}

fn write(store: &Store, request: &Request, byte: u8) {
    for name in ["one", "two"] {
        let file = file(store, &id(&source_of(request).claim.name), name);
        file.write_all_at(&[byte; CONTENT], 0).unwrap();
        // The write has removed the capability.
        fsetxattr(&file, "security.capability", &CAPABILITY, XattrFlags::empty()).unwrap();
        file.set_times(FileTimes::new().set_modified(SystemTime::UNIX_EPOCH)).unwrap();
        file.sync_all().unwrap();
    }
}

/// The byte of which the files of a copy consist. They have the times and the capabilities of their sources.
fn byte_of_copy(store: &Store, copy: &VolumeId) -> u8 {
    let live = store.file_system().as_raw_fd();
    let [one, two] = ["one", "two"].map(|name| {
        let file = File::open(format!("/proc/self/fd/{live}/{copy}/{name}")).unwrap();
        let mut capability = [0; 24];
        let length = fgetxattr(&file, "security.capability", &mut capability[..]);
        assert_eq!(length.map(|length| &capability[..length]), Ok(&CAPABILITY[..]), "{name} of {copy}");
        assert_eq!(file.metadata().unwrap().modified().unwrap(), SystemTime::UNIX_EPOCH, "{name} of {copy}");
        byte_of(&file, CONTENT).expect("one content")
    });
    assert_eq!(one, two);
    one
}

fn with_content(store: &Store, request: &Request) {
    without_pods(store);
    write(store, request, 1);
}

/// [`killed_at_calls`] with one source for all runs.
fn killed_copy(
    counted: fn(&Call<'_>) -> bool,
    steps: Steps,
    work: impl Fn(&Store, &Request),
    after: impl Fn(&Store, &Request),
) {
    killed_at_calls(counted, steps, &[FILES], SOURCE, with_content, work, after);
}

/// Calls that change blocks, times or extended attributes of a file.
fn changes_attributes(call: &Call<'_>) -> bool {
    const CHANGING: [i64; 4] = [libc::SYS_fallocate, libc::SYS_fremovexattr, libc::SYS_fsetxattr, libc::SYS_utimensat];
    CHANGING.contains(&call.number())
}

fn cloned(store: &Store, request: &Request) {
    copied(store, &clone_of(request));
}

/// Checks a source whose copies have all ended.
fn is_settled(store: &Store, request: &Request, reserved: Bytes) {
    let source = source_of(request);
    let opened = store.open_volume(&id(&source.claim.name)).unwrap();
    assert_eq!(opened.quota().unwrap().limits.bytes, Some(source.size));
    assert_eq!(store.space().unwrap().reserved, source.reserved().saturating_add(reserved));
}

#[test]
fn a_killed_clone_of_files_is_finished_by_the_next() {
    killed_copy(may_change_files, from(0), cloned, |store, request| {
        without_pods(store);
        write(store, request, 2);
        cloned(store, request);
        is_settled(store, request, request.reserved());
        let byte = byte_of_copy(store, &id(&request.claim.name));
        // The content of the instant before or after the kill.
        assert!([1, 2].contains(&byte), "{byte}");
        deleted(store, request);
    });
}

#[test]
fn a_killed_clone_of_files_is_undone_if_the_claim_is_gone() {
    let work = |store: &Store, request: &Request| {
        while let Err(Error::Copying { .. }) = store.provision(&id(&request.claim.name), &clone_of(request)) {}
    };
    killed_copy(may_change_files, from(1), work, |store, request| {
        let clone = id(&request.claim.name);
        store.undo(&clone).unwrap();
        assert_eq!(store.undo(&clone).unwrap(), Ensured::Unchanged(()));
        is_settled(store, request, Bytes::ZERO);
    });
}

fn snapshot_id(request: &Request) -> VolumeId {
    id(&format!("snapshot-{}", request.claim.name))
}

fn taken(store: &Store, request: &Request) {
    let (snapshot, want) = (snapshot_id(request), snapshot_of(request));
    while store.take_snapshot(&snapshot, &want).unwrap().snapshots.state != State::Announced {}
}

fn finished_or_removed(store: &Store, request: &Request) {
    let snapshot = snapshot_id(request);
    let is_complete = store.record(&snapshot).unwrap().is_some_and(|record| record.state != State::Staged);
    without_pods(store);
    write(store, request, 2);
    if !store.retired().unwrap().contains(&snapshot) {
        taken(store, request);
        assert_eq!(byte_of_copy(store, &snapshot), if is_complete { 1 } else { 2 });
    }
    store.remove_snapshot(&snapshot).unwrap();
    is_settled(store, request, Bytes::ZERO);
}

#[test]
fn a_killed_snapshot_of_files_is_finished_or_removed() {
    let work = |store: &Store, request: &Request| {
        taken(store, request);
        store.remove_snapshot(&snapshot_id(request)).unwrap();
    };
    killed_copy(may_change_files, from(2), work, finished_or_removed);
}

/// Regression: the times and the capability of a file were set again after each extent. A kill before lost them.
#[test]
fn a_snapshot_of_files_has_their_times_and_capabilities_wherever_its_copy_is_killed() {
    killed_copy(changes_attributes, Steps { first: 0, stride: 1 }, taken, finished_or_removed);
}

/// One force for each piece, or each file, would make a copy of small files as slow as the flushes of the disk.
#[test]
fn a_copy_forces_the_log_for_many_files_together() {
    const COUNT: u64 = 150;
    let disk = XfsDisk::with_project_quota();
    let one_pass = Settings { pass: Duration::from_hours(1), ..settings() };
    let store = Store::open(&Node::volumes(disk.path()), one_pass).unwrap();
    without_pods(&store);
    let request = sized("pvc-1", Mode::Filesystem { inodes: Inodes::new(1024) }, Bytes::new(16 << 20));
    made(&store, &source_of(&request));
    let write = |name: &str, size| {
        file(&store, &id("pvc-source"), name).write_all_at(&vec![1; size], 0).unwrap();
    };
    (0..COUNT).for_each(|number| write(&number.to_string(), 100));
    write("large", 4 << 20);
    let flushes = without_flush(usize::MAX, || cloned(&store, &request));
    let forces =
        flushes.iter().filter(|flush| flush.path().parent().is_some_and(|dir| dir.ends_with("anchors"))).count();
    // One force covers 128 files.
    assert_eq!(forces as u64, COUNT.div_ceil(128), "{flushes:?}");
}

/// Regression: each pass wrote the data of all volumes, twice a second, while a tenant exceeded its size. The pauses
/// between the passes were in the store, and occupied the threads of its callers.
#[test]
fn passes_over_a_source_that_exceeds_its_size_flush_rarely() {
    const PASSES: usize = 6;
    let disk = XfsDisk::with_project_quota();
    let request = sized("pvc-1", FILES, SIZE);
    let (source, snapshot, want) = (id("pvc-source"), id("snapshot-1"), snapshot_of(&request));
    let fill = |store: &Store, name: &str, size: u64| {
        let file = file(store, &source, name);
        file.write_all_at(&vec![1; size as usize], 0).unwrap();
        file.sync_all().unwrap();
    };
    let store = Store::open(&Node::volumes(disk.path()), Settings { pass: Duration::ZERO, ..settings() }).unwrap();
    without_pods(&store);
    copied(&store, &source_of(&request));
    fill(&store, "one", SIZE.get() / 2);
    assert_eq!(store.take_snapshot(&snapshot, &want).unwrap().snapshots.state, State::Complete);
    // The file takes the headroom.
    fill(&store, "two", SIZE.get());
    drop(store);
    let store = open(disk.path());
    without_pods(&store);
    let flushes = without_flush(usize::MAX, || {
        let mut waits = false;
        for _ in 0..PASSES {
            let taken = store.take_snapshot(&snapshot, &want).unwrap();
            waits = taken.copying == Some(Copying::Waits);
            assert_eq!(taken.snapshots.state, State::Complete);
        }
        assert!(waits, "nothing is left to copy");
    });
    // The pauses between flushes are 1, 2, 4 … seconds. The regression flushed in each pass.
    for flushed in ["live/pvc-source", "staging/snapshot-1"] {
        let count =
            flushes.iter().filter(|flush| matches!(flush, Flush::Syncfs(path) if path.ends_with(flushed))).count();
        assert!((1..PASSES).contains(&count), "{flushed}: {count}, {flushes:?}");
    }
}

/// Regression: the limit of the copy was set after its record. If that failed, the copy kept a larger limit, and its
/// source the headroom, until the next start.
#[test]
fn limits_that_cannot_be_lowered_are_lowered_by_the_next_pass_or_start() {
    const SET_LIMITS: u64 = 0x5804; // Q_XSETQLIM
    let disk = XfsDisk::with_project_quota();
    for of_source in [false, true] {
        for number in 0.. {
            let request = sized(&format!("pvc-{of_source}-{number}"), FILES, Bytes::MIB);
            let (clone, want) = (id(&request.claim.name), clone_of(&request));
            let store = open(disk.path());
            made(&store, &source_of(&request));
            with_content(&store, &request);
            let source = store.records().unwrap().readable[&id(&source_of(&request).claim.name)].project;
            let counted = |call: &Call<'_>| {
                let [_, command, project, ..] = call.arguments();
                let sets = call.number() == libc::SYS_quotactl_fd && command >> 8 == SET_LIMITS;
                sets && (project == u64::from(source.get())) == of_source
            };
            let reached = with_refused_call(number, counted, || {
                let mut failures = 0;
                while let Err(error) = store.provision(&clone, &want) {
                    failures += usize::from(!matches!(error, Error::Copying { .. }));
                    assert!(failures < 2, "{error:?}");
                }
                store.announce(&clone).unwrap();
                // The limits of the source are set again after the last pass. If that call fails, the next start sets
                // them.
                if !of_source {
                    is_settled(&store, &request, request.reserved());
                }
                let limits = store.open_volume(&clone).unwrap().quota().unwrap().limits;
                assert_eq!(limits.bytes, Some(request.size));
            });
            drop(store);
            let store = open(disk.path());
            is_settled(&store, &request, request.reserved());
            deleted(&store, &request);
            deleted(&store, &source_of(&request));
            if !reached {
                assert!(number >= 2, "only {number} calls");
                break;
            }
        }
    }
}
