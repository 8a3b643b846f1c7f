//! A process is killed while it takes the snapshots of a group.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fs;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileExt as _;

use dir::Ensured;
use ktest_support::process::Call;
use nix::libc::{SYS_renameat, SYS_renameat2};
use volume::{Claim, DEFAULT_PAUSE, GroupRequest, Request, State, Store, VolumeId, Volumes as _};

use crate::cloned::{is_settled, write};
use crate::killed::{Shared, Steps, THIN, deleted, killed_at_calls, made, may_change_files};
use crate::node::pods::Pods;
use crate::node::{file, id, only_byte, sized, snapshot_request};
use crate::trees::FILES;

/// A part of the steps, to bound the time of the suite. The snapshots of an image and of files have each step of a
/// member.
const fn from(first: usize, stride: usize) -> Steps {
    Steps { first, stride }
}

fn sources_of(request: &Request) -> [Request; 2] {
    [(1, request.mode), (2, FILES)].map(|(number, mode)| sized(&format!("pvc-source-{number}"), mode, request.size))
}

fn group_of(request: &Request) -> GroupRequest {
    let member = |source: Request| {
        let claim = Claim { uid: request.claim.name.clone(), namespace: "default".into(), name: "both".into() };
        let want = snapshot_request(claim, id(&source.claim.name));
        (id(&format!("group-{}-{}", request.claim.name, source.claim.name)), want)
    };
    let members = sources_of(request).map(member).into();
    GroupRequest { id: id(&format!("group-{}", request.claim.name)), members, max_pause: DEFAULT_PAUSE }
}

fn contents(store: &Store, request: &Request) -> Vec<u8> {
    let content = |id: &VolumeId| {
        let live = store.file_system().as_raw_fd();
        let name = if store.record(id).unwrap().unwrap().mode.is_block() { "image" } else { "file" };
        fs::read(format!("/proc/self/fd/{live}/{id}/{name}")).unwrap()
    };
    group_of(request).members.keys().flat_map(content).collect()
}

fn write_all(store: &Store, request: &Request, byte: u8) {
    let [disk, files] = sources_of(request);
    write(store, &disk, byte).unwrap();
    let file = file(store, &id(&files.claim.name), "file");
    file.write_all_at(&vec![byte; request.size.get() as usize / 2], 0).unwrap();
    file.sync_all().unwrap();
}

/// Kills a process that takes a group. The sources stay for all runs.
fn killed_group(counted: fn(&Call<'_>) -> bool, steps: Steps, after: impl Fn(&Store, &Request)) {
    let sources: Shared = (
        |store, request| sources_of(request).iter().for_each(|source| drop(made(store, source))),
        |store, request| sources_of(request).iter().for_each(|source| deleted(store, source)),
    );
    let write = |store: &Store, request: &Request| write_all(store, request, 1);
    killed_at_calls(counted, steps, &[THIN], sources, write, taken, after);
}

fn taken(store: &Store, request: &Request) {
    let (want, _pods) = (group_of(request), Pods::of(store));
    while store.take_group(&want).unwrap().snapshots.values().any(|record| record.state != State::Announced) {}
}

fn removed(store: &Store, request: &Request) {
    for id in group_of(request).members.keys() {
        store.remove_snapshot(id).unwrap();
    }
    let [disk, files] = sources_of(request);
    let quota = store.open_volume(&id(&files.claim.name)).unwrap().quota().unwrap();
    assert_eq!(quota.limits.bytes, Some(files.size), "the headroom has ended");
    is_settled(store, &disk, files.reserved());
}

#[test]
fn a_killed_group_is_taken_at_one_instant_by_the_next() {
    killed_group(may_change_files, from(0, 7), |store, request| {
        write_all(store, request, 2);
        taken(store, request);
        let content = only_byte(&contents(store, request));
        assert!(content.is_some_and(|byte| [1, 2].contains(&byte)));
        removed(store, request);
    });
}

#[test]
fn a_killed_group_is_removed_if_its_content_is_gone() {
    killed_group(may_change_files, from(3, 14), removed);
}

/// Records are replaced by renames.
fn renames(call: &Call<'_>) -> bool {
    [SYS_renameat, SYS_renameat2].contains(&call.number())
}

/// Regression: a kill between two marks left complete members, which became orphans, and staged ones, which the sweep
/// removed.
#[test]
fn a_killed_group_is_complete_or_undone_as_a_whole() {
    let between_marks = Cell::new(0);
    killed_group(renames, from(0, 1), |store, request| {
        let ids: BTreeSet<VolumeId> = group_of(request).members.into_keys().collect();
        let states = || ids.iter().map(|id| store.record(id).unwrap().map(|record| record.state)).collect::<Vec<_>>();
        let before = states();
        let undone = store.undo_snapshots(&ids).unwrap();
        if before.iter().all(|state| state.is_some_and(State::is_reported)) {
            assert_eq!((undone, states()), (Ensured::Unchanged(()), before));
        } else {
            let has_mark = before.contains(&Some(State::Complete));
            between_marks.set(between_marks.get() + usize::from(has_mark));
            assert_eq!(states(), [None, None], "{before:?}");
        }
        removed(store, request);
    });
    assert!(between_marks.get() > 0, "no kill was between the marks");
}
