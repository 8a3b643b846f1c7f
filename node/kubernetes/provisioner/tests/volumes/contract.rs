//! The store on a disk and the fake of the envtests return the same results for the same calls.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use dir::Ensured;
use envtest::FakeVolumes;
use ktest_support::unmount;
use nix::mount::{MsFlags, mount};
use units::{Bytes, Inodes};
use volume::{
    Allocation, Claim, DEFAULT_PAUSE, Error, LiveVolumeError, Mode, Owner, Record, Request, RollbackRequest, Settings,
    Sharing, SnapshotRequest, Taken, VolumeId, Volumes,
};

use crate::node::{Node, without_pods};

const MIB: u64 = 1 << 20;
const SIZE: Bytes = Bytes::new(4 * MIB);

const LARGE: Bytes = Bytes::new(8 * MIB);

const ODD: Bytes = Bytes::new(6 * MIB + 1);

const TOO_MUCH: Bytes = Bytes::TIB;

const IMPOSSIBLE: Bytes = Bytes::new(i64::MAX as u64);

/// The inodes do not divide the size.
const FILES: Mode = Mode::Filesystem { inodes: Inodes::new(67) };
const THICK: Mode = Mode::Block { allocation: Allocation::Thick };

#[derive(Clone, Debug)]
enum Call {
    Provision(Request),
    Announce,
    Expand(Bytes),
    Retire,
    Restore,
    Discard,
    Undo,
    LiveVolume,
    TakeSnapshot(&'static str),
    RemoveSnapshot,
    UndoSnapshots,
    /// Rollback of this volume to this snapshot.
    RollBack(&'static str, &'static str),
    EndRollback,
}

fn request(mode: Mode, size: Bytes) -> Request {
    let claim = Claim { uid: "uid".into(), namespace: "default".into(), name: "data".into() };
    Request { claim, owner: Owner::Provisioner, class: "local".into(), mode, size, source: None }
}

/// Text of a record without the project ID and the instant of a snapshot, which differ.
fn shown(record: &Record) -> String {
    let Record { claim, owner: _, class, mode, size, project: _, cloning: _, io, state } = record;
    if mode.is_snapshot() {
        return format!("{claim} {} {class} {mode} {size} {state:?}", claim.uid);
    }
    format!("{claim} {} {class} {mode:?} {size} {io} {state:?}", claim.uid)
}

fn recorded(answer: Result<Ensured<Record>, Error>) -> String {
    match answer {
        Ok(Ensured::Created(record)) => format!("created {}", shown(&record)),
        Ok(Ensured::Unchanged(record)) => format!("unchanged {}", shown(&record)),
        Err(error) => format!("{error:?}"),
    }
}

impl Call {
    fn of(&self, volumes: &dyn Volumes, id: &VolumeId) -> String {
        match self {
            Self::Provision(want) => recorded(volumes.provision(id, want)),
            Self::Announce => format!("{:?}", volumes.announce(id)),
            Self::Expand(to) => recorded(volumes.expand(id, *to)),
            Self::Retire => format!("{:?}", volumes.retire(id)),
            Self::Restore => format!("{:?}", volumes.restore(id)),
            Self::Discard => format!("{:?}", volumes.discard(id)),
            Self::Undo => format!("{:?}", volumes.undo(id)),
            Self::LiveVolume => match volumes.live_volume(id) {
                // The text leaves out the errno of the store.
                Err(LiveVolumeError::Open(error)) => error.to_string(),
                other => format!("{other:?}"),
            },
            Self::TakeSnapshot(source) => {
                let Request { claim, class, .. } = request(THICK, SIZE);
                let source = source.parse().expect("an identifier");
                let (owner, max_pause, sharing) = (Owner::Provisioner, DEFAULT_PAUSE, Sharing::Temporary);
                let want = SnapshotRequest { claim, owner, class, source, max_pause, sharing };
                match volumes.take_snapshot(id, &want) {
                    Ok(Taken { snapshots, copying }) => format!("{copying:?} {}", shown(&snapshots)),
                    Err(error) => format!("{error:?}"),
                }
            }
            Self::RemoveSnapshot => format!("{:?}", volumes.remove_snapshot(id)),
            Self::UndoSnapshots => format!("{:?}", volumes.undo_snapshots(&BTreeSet::from([id.clone()]))),
            Self::RollBack(volume, source) => {
                let Request { claim, .. } = request(THICK, SIZE);
                let [volume, source] = [volume, source].map(|id| id.parse().expect("an identifier"));
                recorded(volumes.roll_back(id, &RollbackRequest { claim, volume, source }))
            }
            Self::EndRollback => format!("{:?}", volumes.end_rollback(id)),
        }
    }
}

fn listed(volumes: &dyn Volumes) -> String {
    let records = volumes.records().unwrap();
    let readable: BTreeMap<_, _> = records.readable.iter().map(|(id, record)| (id, shown(record))).collect();
    let usage = volumes.usage().unwrap();
    let mut used: Vec<_> = usage.iter().map(|usage| (&usage.id, shown(&usage.record))).collect();
    used.sort();
    let mut retired = volumes.retired().unwrap();
    retired.sort();
    let (unreadable, strays) = (records.unreadable.len(), volumes.strays().unwrap());
    let rollbacks = volumes.rollbacks(&"pvc-1".parse().unwrap());
    let complete: Vec<_> = volumes.complete_snapshots().into_keys().collect();
    let space = volumes.space().unwrap();
    format!("{readable:?} {complete:?} {rollbacks:?} {unreadable} {used:?} {retired:?} {strays:?} {space:?}")
}

struct Both {
    node: Node,
    fake: FakeVolumes,
}

impl Both {
    fn new() -> Self {
        let node = Node::with(Settings::default());
        without_pods(&node.store);
        let fake = FakeVolumes::with_size(node.store.space().unwrap().size);
        Self { node, fake }
    }

    /// Calls both, and returns their common result.
    fn call(&self, id: &VolumeId, call: &Call, when: &str) -> String {
        let [real, fake] = [&self.node.store as &dyn Volumes, &self.fake].map(|volumes| {
            let answer = call.of(volumes, id);
            format!("{answer}; then {}", listed(volumes))
        });
        assert_eq!(fake, real, "{call:?} {when}");
        real
    }

    /// Publishes a live volume, and returns the target.
    fn publish(&self, id: &VolumeId) -> PathBuf {
        let root = self.node.disk.path();
        let (volume, target) = (root.join(format!("volumes/live/{id}")), root.join("target"));
        fs::create_dir(&target).unwrap();
        mount(Some(&volume), &target, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
        self.fake.set_published(id, Some(&target));
        target
    }

    fn unpublish(&self, id: &VolumeId, target: &Path) {
        unmount(target).unwrap();
        self.fake.set_published(id, None);
    }
}

/// States of a volume, with the calls that lead to them.
fn states(mode: Mode) -> [(&'static str, Vec<Call>); 6] {
    use Call::{Announce, Provision, Retire, TakeSnapshot};
    let provision = || Provision(request(mode, SIZE));
    [
        ("of no volume", vec![]),
        ("of a staged volume", vec![provision()]),
        ("of an announced volume", vec![provision(), Announce]),
        ("of a staged volume in the trash", vec![provision(), Retire]),
        ("of an announced volume in the trash", vec![provision(), Announce, Retire]),
        ("of a snapshot", vec![TakeSnapshot("pvc-source")]),
    ]
}

fn calls(mode: Mode) -> Vec<Call> {
    use Call::{
        Announce, Discard, Expand, LiveVolume, Provision, RemoveSnapshot, Restore, Retire, TakeSnapshot, Undo,
        UndoSnapshots,
    };
    let other = if mode.is_block() { FILES } else { THICK };
    let clone = |source: &str| Request { source: Some(source.parse().unwrap()), ..request(mode, SIZE) };
    let clones = ["pvc-source", "pvc-large", "pvc-files", "pvc-none"].map(|source| Provision(clone(source)));
    let mut of_another = request(mode, SIZE);
    of_another.claim.uid = "another".into();
    let calls = [
        Provision(request(mode, SIZE)),
        Provision(request(mode, ODD.round_up::<4096>().unwrap())),
        Provision(request(other, SIZE)),
        Provision(request(mode, TOO_MUCH)),
        Provision(of_another),
        Announce,
        Expand(Bytes::new(1)),
        Expand(ODD),
        Expand(TOO_MUCH),
        Expand(IMPOSSIBLE),
        Retire,
        Restore,
        Discard,
        Undo,
        LiveVolume,
        TakeSnapshot("pvc-source"),
        TakeSnapshot("pvc-files"),
        TakeSnapshot("pvc-none"),
        RemoveSnapshot,
        UndoSnapshots,
    ];
    calls.into_iter().chain(clones).collect()
}

#[test]
fn the_fake_answers_as_the_store_does() {
    let both = Both::new();
    for (source, mode, size) in [("pvc-source", THICK, SIZE), ("pvc-large", THICK, LARGE), ("pvc-files", FILES, SIZE)] {
        for call in [Call::Provision(request(mode, size)), Call::Announce] {
            both.call(&source.parse().unwrap(), &call, "of a source");
        }
    }
    let empty = both.call(&"pvc-none".parse().unwrap(), &Call::Retire, "at the beginning");
    for (mode, name) in [(FILES, "files"), (THICK, "thick")] {
        for (number, call) in calls(mode).into_iter().enumerate() {
            for (place, (state, before)) in states(mode).into_iter().enumerate() {
                let id: VolumeId = format!("pvc-{name}-{number}-{place}").parse().unwrap();
                for step in &before {
                    both.call(&id, step, "on the way");
                }
                both.call(&id, &call, state);
                both.call(&id, &call, &format!("{state}, again"));
                // Clean up.
                for step in [Call::Retire, Call::Discard, Call::RemoveSnapshot] {
                    both.call(&id, &step, "at the end");
                }
            }
        }
    }
    assert_eq!(both.call(&"pvc-none".parse().unwrap(), &Call::Retire, "at the end"), empty);
}

#[test]
fn the_fake_rolls_back_as_the_store_does() {
    use Call::{Announce, Discard, EndRollback, Expand, Provision, RemoveSnapshot, Retire, RollBack, TakeSnapshot};
    let both = Both::new();
    let id = |name: &str| name.parse::<VolumeId>().unwrap();
    for (name, mode) in [("pvc-1", THICK), ("pvc-2", THICK), ("pvc-files", FILES), ("pvc-staged", THICK)] {
        both.call(&id(name), &Provision(request(mode, SIZE)), "at the beginning");
        if name != "pvc-staged" {
            both.call(&id(name), &Announce, "at the beginning");
        }
    }
    both.call(&id("snapshot-1"), &TakeSnapshot("pvc-1"), "at the beginning");
    for volume in ["pvc-none", "pvc-files", "pvc-staged", "snapshot-1"] {
        both.call(&id("snapshot-kept"), &RollBack(volume, "snapshot-1"), volume);
    }
    both.call(&id("snapshot-kept"), &RollBack("pvc-1", "snapshot-none"), "to no snapshot");
    both.call(&id("snapshot-kept"), &EndRollback, "of no rollback");
    let done = both.call(&id("snapshot-kept"), &RollBack("pvc-1", "snapshot-1"), "of a volume");
    assert!(done.starts_with("created "), "{done}");
    both.call(&id("snapshot-kept"), &RollBack("pvc-1", "snapshot-1"), "again");
    both.call(&id("snapshot-kept"), &RollBack("pvc-2", "snapshot-1"), "of another volume");
    both.call(&id("snapshot-1"), &RollBack("pvc-1", "snapshot-1"), "into a snapshot");
    both.call(&id("pvc-2"), &RollBack("pvc-1", "snapshot-1"), "into a volume");
    let refused = both.call(&id("snapshot-kept"), &RemoveSnapshot, "before the end");
    assert!(refused.contains("RollingBack"), "{refused}");
    both.call(&id("snapshot-kept"), &EndRollback, "of a rollback");
    both.call(&id("snapshot-kept"), &EndRollback, "again");
    both.call(&id("snapshot-undone"), &RollBack("pvc-1", "snapshot-kept"), "back");
    both.call(&id("snapshot-files"), &TakeSnapshot("pvc-files"), "of files");
    both.call(&id("snapshot-kept-files"), &RollBack("pvc-1", "snapshot-files"), "to files");
    let target = both.publish(&id("pvc-files"));
    let published = both.call(&id("snapshot-kept-files"), &RollBack("pvc-files", "snapshot-files"), "of a pod's files");
    assert!(published.starts_with("Published {"), "{published}");
    both.unpublish(&id("pvc-files"), &target);
    both.call(&id("pvc-files"), &Expand(LARGE), "after the copy");
    for when in ["of files that were expanded", "again"] {
        let grown = both.call(&id("snapshot-kept-files"), &RollBack("pvc-files", "snapshot-files"), when);
        assert!(grown.contains("Grown"), "{grown}");
    }
    both.call(&id("snapshot-kept-files"), &RemoveSnapshot, "of another size");
    let done = both.call(&id("snapshot-kept-files"), &RollBack("pvc-files", "snapshot-files"), "of files");
    assert!(done.starts_with("created "), "{done}");
    both.call(&id("snapshot-kept-files"), &EndRollback, "of files");
    for name in ["pvc-1", "pvc-2", "pvc-files", "pvc-staged"] {
        for call in [Retire, Discard] {
            both.call(&id(name), &call, "at the end");
        }
    }
    for name in ["snapshot-kept", "snapshot-1", "snapshot-undone", "snapshot-files", "snapshot-kept-files"] {
        both.call(&id(name), &RemoveSnapshot, "without its volume");
    }
}

#[test]
fn the_fake_is_full_when_the_store_is() {
    let both = Both::new();
    let size = both.node.store.space().unwrap().size;
    let half = Bytes::new(size.get() / 2).round_up::<4096>().unwrap();
    let [one, two, three] = ["pvc-one", "pvc-two", "pvc-three"].map(|name| name.parse::<VolumeId>().unwrap());
    let files = |size| Call::Provision(request(FILES, size));
    both.call(&one, &files(half), "of an empty disk");
    let full = both.call(&two, &files(half), "of a disk that is half full");
    assert!(full.starts_with("Full {"), "{full}");
    both.call(&two, &files(SIZE), "with space");
    both.call(&two, &Call::Announce, "with space");
    let full = both.call(&two, &Call::Expand(half), "of a disk that is half full");
    assert!(full.starts_with("Full {"), "{full}");
    both.call(&two, &Call::Expand(ODD), "with space");
    both.call(&two, &Call::Expand(Bytes::new(9 * MIB)), "of what has grown");
    // `undo` of a staged volume frees its reservation; that of a retired one stays until `discard`.
    both.call(&one, &Call::Retire, "of a staged volume");
    both.call(&three, &files(half), "while it is in the trash");
    both.call(&one, &Call::Undo, "in the trash");
    let created = both.call(&three, &files(half), "after it was undone");
    assert!(created.starts_with("created "), "{created}");
}

#[test]
fn the_fake_keeps_a_published_volume_as_the_store_does() {
    let both = Both::new();
    let id: VolumeId = "pvc-1".parse().unwrap();
    for call in [Call::Provision(request(FILES, SIZE)), Call::Announce] {
        both.call(&id, &call, "on the way");
    }
    let target = both.publish(&id);
    let refused = both.call(&id, &Call::Retire, "while it is published");
    assert!(refused.starts_with("Err(Published {"), "{refused}");
    both.unpublish(&id, &target);
    let retired = both.call(&id, &Call::Retire, "after it was unpublished");
    assert!(retired.starts_with("Ok(Created("), "{retired}");
}
