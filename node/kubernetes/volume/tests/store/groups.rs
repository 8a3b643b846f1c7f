//! Snapshots of several volumes at one instant.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use fsquota::Limits;
use ktest_support::eventually;
use units::Bytes;
use volume::{
    Access, Allocation, Claim, DEFAULT_PAUSE, Error, FreezeError, GroupRequest, Mode, Record, Settings, SourceError,
    State, Taken, VolumeId, Volumes as _,
};

use crate::cloning::{LARGER, shared};
use crate::node::pods::{Freezing, Pods};
use crate::node::{Node, SIZE, disk, files, id, only_byte, settings, sized, snapshot_request};
use crate::snapshots::snapshot_of;
use crate::trees::Slow;

/// More than two sources, so that more time passes between the first clone and the last one.
const SOURCES: [&str; 4] = ["pvc-1", "pvc-2", "pvc-3", "pvc-4"];

/// Number of groups that are taken while a program writes. If it ran during the first group, the last member would have
/// a later number than the first one. The second group shows that the program wrote.
const GROUPS: usize = 2;

fn group_of(name: &str, sources: &[&str]) -> GroupRequest {
    let member = |source: &&str| {
        let claim = Claim { uid: name.into(), namespace: "default".into(), name: name.into() };
        let request = snapshot_request(claim, id(source));
        (id(&format!("{name}-{source}")), request)
    };
    GroupRequest { id: id(name), members: sources.iter().map(member).collect(), max_pause: DEFAULT_PAUSE }
}

/// Repeats the call until the snapshots share no block.
fn taken(node: &Node, want: &GroupRequest) -> BTreeMap<VolumeId, Record> {
    loop {
        let records = node.store.take_group(want).unwrap().snapshots;
        if records.values().all(|record| record.state == State::Announced) {
            return records;
        }
    }
}

fn with_sources(node: &Node, allocation: Allocation) -> Vec<File> {
    let open = |name: &&str| {
        let (id, _) = node.made(&disk(name, allocation));
        File::from(node.store.open_volume(&id).unwrap().image(Access::ReadWrite).unwrap())
    };
    SOURCES.iter().map(open).collect()
}

fn counter(node: &Node, snapshot: &VolumeId) -> u64 {
    let name = if snapshot.as_str().contains("files") { "file" } else { "image" };
    let mut count = [0; 8];
    File::open(node.path("live", snapshot).join(name)).unwrap().read_exact_at(&mut count, 0).unwrap();
    u64::from_le_bytes(count)
}

/// Ends the writer, also if the test fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Takes groups of the sources while a program writes the same number to one after the other: `write` is one round.
fn are_of_one_instant(node: &Node, sources: &[&str], write: impl Fn(&Pods, u64) + Sync) {
    let (pods, is_over) = (Pods::of(&node.store), AtomicBool::new(false));
    let mut counts = Vec::new();
    thread::scope(|scope| {
        scope.spawn(|| {
            for count in 1_u64.. {
                write(&pods, count);
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        let over = Over(&is_over);
        for number in 0..GROUPS {
            let want = group_of(&format!("group-{number}"), sources);
            let records = taken(node, &want);
            assert_eq!(pods.freezes(), number + 1, "once for all sources");
            let instants: Vec<_> = records.values().map(|record| record.mode.taken()).collect();
            assert!(instants.iter().all(|instant| instant.is_some() && *instant == instants[0]), "{instants:?}");
            counts.push(want.members.keys().map(|id| counter(node, id)).collect::<Vec<_>>());
            assert_eq!(node.store.take_group(&want).unwrap(), Taken { snapshots: records, copying: None });
            for id in want.members.keys() {
                node.store.remove_snapshot(id).unwrap();
                assert_eq!(node.traces(id), [""; 0]);
            }
        }
        drop(over);
    });
    for counts in &counts {
        let [first, .., last] = counts[..] else { panic!("{counts:?}") };
        assert!(counts.is_sorted_by(|one, next| one >= next) && first - last <= 1, "{counts:?}");
    }
    assert!(counts.last() > counts.first(), "the program wrote meanwhile: {counts:?}");
}

#[test]
fn all_snapshots_of_a_group_are_of_one_instant() {
    for allocation in [Allocation::Thick, Allocation::Thin] {
        let node = Node::new();
        let images = with_sources(&node, allocation);
        are_of_one_instant(&node, &SOURCES, |pods, count| {
            for image in &images {
                pods.write(|| image.write_all_at(&count.to_le_bytes(), 0).unwrap());
            }
        });
        let alone = SOURCES.map(|name| node.store.records().unwrap().readable[&id(name)].clone());
        assert_eq!(node.store.space().unwrap().reserved, alone.iter().map(Record::reserved).sum());
        for record in &alone {
            assert_eq!(shared(&node.image(&id(&record.claim.name))), Bytes::ZERO);
        }
    }
}

#[test]
fn a_group_that_cannot_be_taken_leaves_no_trace() {
    let node = Node::new();
    let images = with_sources(&node, Allocation::Thin);
    node.made(&files("pvc-files"));
    fs::write(node.path("live", &id("pvc-files")).join("file"), [1; 4096]).unwrap();
    node.made(&sized("pvc-large", Mode::Block { allocation: Allocation::Thin }, Bytes::new(300 << 20)));
    let all = [&SOURCES[..], &["pvc-files"]].concat();
    let limits = || {
        all.iter()
            .map(|name| node.limits(node.store.records().unwrap().readable[&id(name)].project))
            .collect::<Vec<_>>()
    };
    let (space, before) = (node.store.space().unwrap(), limits());
    let refusal = |sources: &[&str]| {
        let want = group_of("group-1", sources);
        let refused = node.store.take_group(&want).unwrap_err();
        want.members.keys().for_each(|id| assert_eq!(node.traces(id), [""; 0], "{refused:?}"));
        assert_eq!(node.store.space().unwrap(), space);
        assert_eq!(limits(), before);
        refused
    };
    let without = refusal(&SOURCES);
    assert!(matches!(without, Error::Freeze { source: FreezeError::None, .. }), "{without:?}");
    let without = refusal(&["pvc-1", "pvc-files"]);
    assert!(matches!(without, Error::Freeze { source: FreezeError::None, .. }), "{without:?}");
    let pods = Pods::of(&node.store);
    let unknown = refusal(&["pvc-1", "pvc-none"]);
    assert!(matches!(unknown, Error::Source { source: SourceError::Unknown { .. }, .. }), "{unknown:?}");
    let full = refusal(&["pvc-1", "pvc-2", "pvc-large"]);
    assert!(matches!(full, Error::Full { wanted, .. } if wanted > Bytes::new(664 << 20)), "{full:?}");
    assert_eq!(pods.freezes(), 0);
    pods.set(Freezing::Fails);
    assert!(matches!(refusal(&SOURCES), Error::Freeze { source: FreezeError::Freeze(_), .. }));
    assert!(matches!(refusal(&all), Error::Freeze { source: FreezeError::Freeze(_), .. }));
    pods.set(Freezing::EndsEarly);
    assert!(matches!(refusal(&SOURCES), Error::Freeze { source: FreezeError::Thawed(_), .. }));
    assert!(matches!(refusal(&all), Error::Freeze { source: FreezeError::Thawed(_), .. }));
    pods.set(Freezing::IsLate);
    let late = refusal(&all);
    assert!(matches!(late, Error::Freeze { source: FreezeError::Late { budget: DEFAULT_PAUSE }, .. }), "{late:?}");
    pods.set(Freezing::Works);
    images.iter().for_each(|image| image.write_all_at(&[1; 4096], 0).unwrap());
    let records = taken(&node, &group_of("group-1", &all));
    // A second instant would replace those that are ready.
    let first = records.keys().next().expect("a snapshot");
    node.store.remove_snapshot(first).unwrap();
    let missing = node.store.take_group(&group_of("group-1", &all)).unwrap_err();
    assert!(matches!(&missing, Error::Removed { id } if id == first), "{missing:?}");
}

/// The pods may have run between two clones, and nothing would show it afterwards.
#[test]
fn a_group_whose_run_ended_before_the_thaw_is_taken_again() {
    let node = Node::new();
    let images = with_sources(&node, Allocation::Thin);
    let write = |byte: u8| images.iter().for_each(|image| image.write_all_at(&[byte; 1 << 20], 0).unwrap());
    write(1);
    let want = group_of("group-1", &SOURCES);
    let pods = Pods::of(&node.store);
    pods.set(Freezing::Dies);
    let ended = catch_unwind(AssertUnwindSafe(|| node.store.take_group(&want)));
    assert!(ended.is_err(), "{ended:?}");
    for id in want.members.keys() {
        assert_eq!(fs::metadata(node.path("staging", id).join("image")).unwrap().len(), SIZE.get(), "cloned");
    }
    let node = node.restarted();
    write(2);
    let _pods = Pods::of(&node.store);
    for id in taken(&node, &want).keys() {
        assert_eq!(only_byte(&fs::read(node.image(id)).unwrap()[..1 << 20]), Some(2), "{id}");
    }
    // Closed before the disk is unmounted.
    drop(images);
}

/// Regression: one member was ready when the disk had no space for the blocks of the next one, which was undone. The
/// group failed forever, because a second instant would replace the member that was ready.
#[test]
fn a_complete_group_keeps_its_instant_and_waits_for_space() {
    const WRITTEN: usize = 8 << 20;
    // A pass copies 1 MiB.
    let node = Node::with(Settings { pass: Duration::ZERO, ..settings() });
    let images = with_sources(&node, Allocation::Thin);
    let write = |byte: u8| {
        for image in &images {
            image.write_all_at(&vec![byte; WRITTEN], 0).unwrap();
            image.sync_all().unwrap();
        }
    };
    write(1);
    let (want, first) = (group_of("group-1", &SOURCES), id("group-1-pvc-1"));
    let _pods = Pods::of(&node.store);
    let begun = node.store.take_group(&want).unwrap().snapshots;
    assert!(begun.values().all(|record| record.state == State::Complete), "{begun:?}");
    while !node.path("live", &first).exists() {
        node.store.take_group(&want).unwrap();
    }
    let hog = node.hog(Bytes::new(4 << 20));
    let full = loop {
        if let Err(error) = node.store.take_group(&want) {
            break error;
        }
    };
    assert!(matches!(full, Error::Full { .. }), "{full:?}");
    fs::remove_file(hog).unwrap();
    write(2);
    for (id, record) in &taken(&node, &want) {
        assert_eq!(record.mode, begun[id].mode, "{id}: the instant stays");
        assert_eq!(only_byte(&fs::read(node.image(id)).unwrap()[..WRITTEN]), Some(1), "{id}");
    }
    // Closed before the disk is unmounted.
    drop(images);
}

/// A program writes the same number to a disk, a file, another disk and another file. The program also replaces files,
/// so that the last pass has to clone and to remove some.
#[test]
fn disks_and_files_of_a_group_are_of_one_instant() {
    // In the order of their IDs.
    const BOTH: [&str; 4] = ["pvc-1", "pvc-2-files", "pvc-3", "pvc-4-files"];
    let node = Node::new();
    let open = |name: &&str| {
        if !name.contains("files") {
            let (id, _) = node.made(&disk(name, Allocation::Thin));
            return File::from(node.store.open_volume(&id).unwrap().image(Access::ReadWrite).unwrap());
        }
        let (id, _) = node.made(&files(name));
        File::create(node.path("live", &id).join("file")).unwrap()
    };
    let all: Vec<File> = BOTH.iter().map(open).collect();
    let former: Vec<Record> = BOTH.iter().map(|name| node.store.record(&id(name)).unwrap().unwrap()).collect();
    are_of_one_instant(&node, &BOTH, |pods, count| {
        for (file, name) in all.iter().zip(BOTH) {
            pods.write(|| file.write_all_at(&count.to_le_bytes(), 0).unwrap());
            let top = node.path("live", &id(name));
            if name.contains("files") && count.is_multiple_of(8) {
                pods.write(|| fs::write(top.join("new"), [1; 4096]).unwrap());
                pods.write(|| fs::rename(top.join("new"), top.join(format!("replaced-{}", count % 3))).unwrap());
            }
        }
    });
    assert_eq!(node.store.space().unwrap().reserved, former.iter().map(Record::reserved).sum());
    for record in former.iter().filter(|record| !record.mode.is_block()) {
        assert_eq!(node.limits(record.project).bytes, Some(record.size), "the headroom has ended");
    }
}

/// Each group locks all sources.
#[test]
fn groups_of_the_same_volumes_wait_for_each_other() {
    let node = Node::new();
    let images = with_sources(&node, Allocation::Thin);
    images.iter().for_each(|image| image.write_all_at(&[1; 1 << 20], 0).unwrap());
    let _pods = Pods::of(&node.store);
    let mut reversed = SOURCES;
    reversed.reverse();
    thread::scope(|scope| {
        for (number, sources) in [SOURCES, reversed, SOURCES, reversed].into_iter().enumerate() {
            let node = &node;
            scope.spawn(move || {
                let records = taken(node, &group_of(&format!("group-{number}"), &sources));
                for id in records.keys() {
                    assert_eq!(only_byte(&fs::read(node.image(id)).unwrap()[..1 << 20]), Some(1));
                    node.store.remove_snapshot(id).unwrap();
                }
            });
        }
    });
}

/// Regression: while a group had its first source and waited for the next one, that one was deleted, and created again
/// as a clone of the first one. The group and the creation waited for each other.
#[test]
fn a_group_gives_up_when_a_source_is_deleted_before_it_is_locked() {
    let node = Node::new();
    let [(first, record), (second, _)] = ["pvc-1", "pvc-2"].map(|name| node.made(&files(name)));
    let (store, slow) = (&node.store, Slow::of(&node.store));
    // The store reports limits that another program has changed, unless an operation has the volume.
    let limits = Limits { bytes: Some(LARGER), inodes: None };
    fsquota::set_limits(File::open(node.disk.path()).unwrap(), record.project, limits).unwrap();
    let is_locked = || store.changed_limits(&first, None).unwrap().is_none();
    assert!(!is_locked());
    let live = node.path("live", &second);
    let deleted = live.with_file_name("deleted");
    let (sender, ended) = mpsc::channel();
    let group = thread::scope(|scope| {
        // The call has the second source when it freezes its pods.
        scope.spawn(|| store.take_snapshot(&id("snapshot-1"), &snapshot_of(&second, "snapshot-1")).unwrap());
        slow.until_frozen();
        scope.spawn(|| sender.send(store.take_group(&group_of("group-1", &["pvc-1", "pvc-2"]))).unwrap());
        eventually("the group has the first source", is_locked);
        fs::rename(&live, &deleted).unwrap();
        let group = ended.recv_timeout(Duration::from_secs(60));
        fs::rename(&deleted, &live).unwrap();
        slow.thaw();
        group
    });
    let Ok(Err(Error::Source { source: SourceError::Unknown { volume }, .. })) = group else { panic!("{group:?}") };
    assert_eq!(volume, second);
    assert!(!is_locked());
}
