//! A process is killed while it takes the snapshots of a group.

use std::fs;
use std::os::fd::AsRawFd as _;

use units::Bytes;
use volume::{Claim, DEFAULT_PAUSE, GroupRequest, Request, SnapshotRequest, State, Store, VolumeId, Volumes as _};

use crate::cloned::{is_settled, write};
use crate::killed::{THIN, deleted, killed_at_every, made};
use crate::node::pods::Pods;
use crate::node::{id, sized};

/// Each step was shown once. All of them take five minutes in emulation.
const STRIDE: usize = 7;

fn sources_of(request: &Request) -> [Request; 2] {
    [1, 2].map(|number| sized(&format!("{}-source-{number}", request.claim.name), request.mode, request.size))
}

fn group_of(request: &Request) -> GroupRequest {
    let member = |source: Request| {
        let claim = Claim { uid: request.claim.name.clone(), namespace: "default".into(), name: "both".into() };
        let want =
            SnapshotRequest { claim, class: "local".into(), source: id(&source.claim.name), max_pause: DEFAULT_PAUSE };
        (id(&format!("group-{}", source.claim.name)), want)
    };
    let members = sources_of(request).map(member).into();
    GroupRequest { id: id(&format!("group-{}", request.claim.name)), members, max_pause: DEFAULT_PAUSE }
}

fn content(store: &Store, snapshot: &VolumeId) -> Vec<u8> {
    let live = store.file_system().as_raw_fd();
    fs::read(format!("/proc/self/fd/{live}/{snapshot}/image")).unwrap()
}

fn with_sources(store: &Store, request: &Request) {
    for source in &sources_of(request) {
        made(store, source);
        write(store, source, 1).unwrap();
    }
}

fn taken(store: &Store, request: &Request) {
    let (want, _pods) = (group_of(request), Pods::of(store));
    while store.take_group(&want).unwrap().into_inner().values().any(|record| record.state == State::Staged) {}
}

fn removed(store: &Store, request: &Request) {
    for id in group_of(request).members.keys() {
        store.remove_snapshot(id).unwrap();
    }
    let sources = sources_of(request);
    deleted(store, &sources[0]);
    is_settled(store, &sources[1], Bytes::ZERO);
    deleted(store, &sources[1]);
}

#[test]
fn a_killed_group_is_taken_at_one_instant_by_the_next() {
    killed_at_every(STRIDE, &[THIN], with_sources, taken, |store, request| {
        sources_of(request).iter().for_each(|source| write(store, source, 2).unwrap());
        taken(store, request);
        let contents: Vec<u8> = group_of(request).members.keys().flat_map(|id| content(store, id)).collect();
        assert!(contents.iter().all(|byte| *byte == contents[0]) && [1, 2].contains(&contents[0]));
        removed(store, request);
    });
}

#[test]
fn a_killed_group_is_removed_if_its_content_is_gone() {
    killed_at_every(STRIDE, &[THIN], with_sources, taken, removed);
}
