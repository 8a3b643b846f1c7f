//! Snapshots of block volumes.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::time::{Duration, SystemTime};

use dir::Ensured;
use loopdev::{Config, Control, Detach};
use nix::fcntl::{FallocateFlags, fallocate};
use nix::libc::O_DIRECT;
use nix::unistd::syncfs;
use units::Bytes;
use volume::{
    Access, ActError, Allocation, Claim, Copying, Error, Mode, OpenError, Record, Request, Settings, SnapshotRequest,
    SourceError, State, Taken, VolumeId, VolumeRefusal, Volumes as _,
};

use crate::cloning::{BOTH, FULL, LARGE, LARGER, extents, is_settled, shared};
use crate::node::{Node, SIZE, copied, disk, files, id, only_byte, settings, sized, snapshot_request};

pub fn snapshot_of(source: &VolumeId, name: &str) -> SnapshotRequest {
    let claim = Claim { uid: format!("uid of {name}"), namespace: "default".into(), name: name.into() };
    snapshot_request(claim, source.clone())
}

/// Repeats the call until the snapshot shares no block.
pub fn taken(node: &Node, source: &VolumeId, name: &str) -> Record {
    let (id, want) = (id(name), snapshot_of(source, name));
    loop {
        let record = node.store.take_snapshot(&id, &want).unwrap().snapshots;
        if record.state == State::Announced {
            return record;
        }
    }
}

#[test]
fn a_snapshot_keeps_the_content_of_its_instant_and_can_be_restored() {
    for allocation in BOTH {
        let (node, source, from) = Node::with_volume(&disk("pvc-source", allocation));
        let image = File::from(node.store.open_volume(&source).unwrap().image(Access::ReadWrite).unwrap());
        image.write_all_at(&[1; 3 << 20], 1 << 20).unwrap();
        let content = fs::read(node.image(&source)).unwrap();
        let before = SystemTime::now();
        let record = taken(&node, &source, "snapshot-1");
        let Mode::Snapshot { taken: instant, .. } = record.mode else { panic!("{record:?}") };
        assert!((before..=SystemTime::now()).contains(&instant));
        image.write_all_at(&vec![2; SIZE.get() as usize], 0).unwrap();
        image.sync_all().unwrap();
        let snapshot = id("snapshot-1");
        assert!(fs::read(node.image(&snapshot)).unwrap() == content);
        let blocks = fs::metadata(node.image(&snapshot)).unwrap().blocks() * 512;
        assert_eq!(blocks, 3 << 20, "holes of the source are holes of the snapshot");
        is_settled(&node, [&from, &record]);
        let again = node.store.take_snapshot(&snapshot, &snapshot_of(&source, "snapshot-1")).unwrap();
        assert_eq!(again, Taken { snapshots: record, copying: None });

        // A larger volume is restored after its source is gone.
        drop(image);
        node.remove(&source);
        let want = sized("pvc-restored", Mode::Block { allocation: Allocation::Thick }, LARGER);
        let want = Request { source: Some(snapshot.clone()), ..want };
        copied(&node.store, &want);
        let restored = fs::read(node.image(&id("pvc-restored"))).unwrap();
        assert!(restored[..content.len()] == content && only_byte(&restored[content.len()..]) == Some(0));
        assert_eq!(node.store.remove_snapshot(&snapshot).unwrap(), Ensured::Created(()));
        assert_eq!(node.store.remove_snapshot(&snapshot).unwrap(), Ensured::Unchanged(()));
        assert_eq!(node.traces(&snapshot), [""; 0]);
        assert_eq!(node.store.space().unwrap().reserved, want.reserved());
    }
}

#[test]
fn no_pod_can_use_a_snapshot_and_no_pv_can_end_it() {
    let (node, source, _) = Node::with_volume(&disk("pvc-source", Allocation::Thin));
    let record = taken(&node, &source, "snapshot-1");
    let node = node.restarted();
    let snapshot = id("snapshot-1");
    assert!(matches!(node.store.open_volume(&snapshot), Err(OpenError::Unknown { .. })));
    let store = &node.store;
    let refused = |answer: Result<(), Error>| {
        assert!(matches!(answer, Err(Error::Refused { source: VolumeRefusal::Snapshot, .. })), "{answer:?}");
    };
    refused(store.provision(&snapshot, &disk("snapshot-1", Allocation::Thin)).map(drop));
    refused(store.announce(&snapshot).map(drop));
    refused(store.expand(&snapshot, LARGER).map(drop));
    refused(store.retire(&snapshot).map(drop));
    refused(store.restore(&snapshot).map(drop));
    refused(store.discard(&snapshot).map(drop));
    refused(store.undo(&snapshot).map(drop));
    assert_eq!(store.records().unwrap().readable[&snapshot], record);
    // An administrator has created a content with the handle of a volume.
    let removed = store.remove_snapshot(&source);
    assert!(matches!(removed, Err(Error::Refused { source: VolumeRefusal::Volume, .. })), "{removed:?}");
}

#[test]
fn a_snapshot_that_cannot_be_taken_leaves_no_trace() {
    let (node, directory, _) = Node::with_volume(&files("pvc-files"));
    let (source, _) = node.made(&disk("pvc-source", Allocation::Thin));
    taken(&node, &source, "snapshot-1");
    let large = sized("pvc-large", Mode::Block { allocation: Allocation::Thin }, Bytes::new(400 << 20));
    let (large, _) = node.made(&large);
    let (space, snapshot) = (node.store.space().unwrap(), id("snapshot-2"));
    let refusal = |source: &VolumeId| {
        let refused = node.store.take_snapshot(&snapshot, &snapshot_of(source, "snapshot-2")).unwrap_err();
        assert_eq!(node.traces(&snapshot), [""; 0]);
        assert_eq!(node.store.space().unwrap(), space);
        refused
    };
    assert!(matches!(refusal(&directory), Error::Source { source: SourceError::NoFreezer { .. }, .. }));
    assert!(matches!(refusal(&id("snapshot-1")), Error::Source { source: SourceError::Unknown { .. }, .. }));
    assert!(matches!(refusal(&id("pvc-none")), Error::Source { source: SourceError::Unknown { .. }, .. }));
    // The snapshot needs its own size, and as much again while blocks are shared.
    assert!(matches!(refusal(&large), Error::Full { wanted, .. } if wanted > Bytes::new(800 << 20)));
}

/// Overwrites a whole device, as its tenant can.
pub fn overwrite(device: &Path, size: Bytes, byte: u8) {
    let mut file = File::options().write(true).open(device).unwrap();
    file.write_all(&vec![byte; size.get() as usize]).unwrap();
    file.sync_all().unwrap();
}

/// The source is full, and has no space for new blocks of its own. Its blocks are overwritten in place when none is
/// shared any more. It is smaller where its device uses the page cache, unlike the device of a pod.
#[test]
fn a_tenant_overwrites_the_whole_source_after_a_snapshot() {
    for (allocation, direct_io) in BOTH.into_iter().flat_map(|one| [(one, false), (one, true)]) {
        let node = Node::with(Settings { pass: Duration::ZERO, ..settings() });
        let size = if direct_io { FULL } else { LARGE };
        let (source, from) = node.made(&sized("pvc-source", Mode::Block { allocation }, size));
        let image = node.store.open_volume(&source).unwrap().image(Access::ReadWrite).unwrap();
        let device = Control::open().unwrap().attach(&image, &Config { direct_io, ..Config::default() }).unwrap();
        let path = device.path();
        overwrite(&path, size, 1);
        let first = node.store.take_snapshot(&id("snapshot-1"), &snapshot_of(&source, "snapshot-1")).unwrap();
        assert_eq!(first.snapshots.state, State::Complete, "most blocks are shared");
        overwrite(&path, size, 2);
        let record = taken(&node, &source, "snapshot-1");
        let alone = extents(&node.image(&source)).len();
        overwrite(&path, size, 3);
        assert_eq!(extents(&node.image(&source)).len(), alone);
        assert_eq!(device.detach(&image).unwrap(), Detach::Detached);
        drop(image);
        assert_eq!(only_byte(&fs::read(node.image(&id("snapshot-1"))).unwrap()), Some(1));
        assert_eq!(shared(&node.image(&source)), Bytes::ZERO);
        is_settled(&node, [&from, &record]);
    }
}

/// A snapshot is complete after the first call, whatever happens then. The process ends, and its request is not known
/// any more.
#[test]
fn a_complete_snapshot_is_copied_without_its_request_and_waits_for_space() {
    const WRITTEN: usize = 8 << 20;
    let node = Node::with(Settings { pass: Duration::ZERO, ..settings() });
    let (source, from) = node.made(&sized("pvc-source", Mode::Block { allocation: Allocation::Thin }, LARGE));
    let image = File::options().write(true).open(node.image(&source)).unwrap();
    image.write_all_at(&[1; WRITTEN], 0).and_then(|()| image.sync_all()).unwrap();
    let snapshot = id("snapshot-1");
    let begun = node.store.take_snapshot(&snapshot, &snapshot_of(&source, "snapshot-1")).unwrap();
    assert_eq!((begun.copying, begun.snapshots.state), (Some(Copying::InPart), State::Complete));
    let clone = Request { source: Some(snapshot.clone()), ..sized("pvc-clone", from.mode, LARGE) };
    let early = node.store.provision(&id("pvc-clone"), &clone).unwrap_err();
    assert!(matches!(early, Error::Source { source: SourceError::Copying { .. }, .. }), "{early:?}");
    drop(image);
    let node = node.restarted();
    assert_eq!(node.store.complete_snapshots(), [(snapshot.clone(), begun.snapshots.clone())].into());
    // A removal has begun. Regression: the data counted as lost.
    let [staging, trash] = ["staging", "trash"].map(|place| node.path(place, &snapshot));
    fs::rename(&staging, &trash).unwrap();
    assert_eq!(node.store.copy_snapshot(&snapshot).unwrap(), None);
    fs::rename(&trash, &staging).unwrap();
    let hog = node.hog(Bytes::new(4 << 20));
    let full = loop {
        if let Err(error) = node.store.copy_snapshot(&snapshot) {
            break error;
        }
    };
    assert!(matches!(full, Error::Full { .. }), "{full:?}");
    assert_eq!(node.store.records().unwrap().readable[&snapshot], begun.snapshots, "it stays");
    fs::remove_file(hog).unwrap();
    while node.store.copy_snapshot(&snapshot).unwrap().is_some() {}
    let record = node.store.record(&snapshot).unwrap().unwrap();
    assert_eq!((record.state, record.mode), (State::Announced, begun.snapshots.mode), "the instant stays");
    assert_eq!(node.store.copy_snapshot(&snapshot).unwrap(), None);
    assert!(node.store.complete_snapshots().is_empty());
    assert_eq!(only_byte(&fs::read(node.image(&snapshot)).unwrap()[..WRITTEN]), Some(1));
    is_settled(&node, [&from, &record]);
    copied(&node.store, &clone);
}

/// Discards the blocks of a volume of the size `LARGE` from this offset on, as its pod can. The loop device punches a
/// hole into the image for this `REQ_OP_WRITE_ZEROES`, as for `REQ_OP_DISCARD`.
fn discard(node: &Node, volume: &VolumeId, from: u64) {
    let image = node.store.open_volume(volume).unwrap().image(Access::ReadWrite).unwrap();
    let device = Control::open().unwrap().attach(&image, &Config::default()).unwrap();
    let disk = File::options().write(true).open(device.path()).unwrap();
    let punch = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    fallocate(&disk, punch, from.cast_signed(), (LARGE.get() - from).cast_signed()).unwrap();
    drop(disk);
    assert_eq!(device.detach(&image).unwrap(), Detach::Detached);
    assert_eq!(fs::metadata(node.image(volume)).unwrap().blocks() * 512, from);
}

/// Regression: the limit of the source was lowered at once, and writes to its holes failed with `ENOSPC`. XFS allocates
/// 128 KiB for each write to a shared block. XFS keeps the blocks of a file that was written through the page cache
/// until the next writeback. A thick source without holes needs no new blocks, and its headroom ends at once.
#[test]
fn a_source_can_be_filled_after_an_unfinished_snapshot_was_removed() {
    const PIECE: u64 = 128 << 10;
    const WRITTEN: u64 = 20 << 20;
    let mut memory = vec![1_u8; (1 << 20) + 4096];
    let aligned = memory.as_ptr().align_offset(4096);
    let block = &mut memory[aligned..aligned + (1 << 20)];
    let (thin, thick) = (Allocation::Thin, Allocation::Thick);
    let cases = [(thin, false, O_DIRECT), (thin, false, 0), (thick, true, 0), (thick, false, 0)];
    for (allocation, discards, flags) in cases {
        let (has_hole, is_cached) = (allocation == thin || discards, flags == 0);
        let node = Node::with(Settings { pass: Duration::ZERO, ..settings() });
        let (source, from) = node.made(&sized("pvc-source", Mode::Block { allocation }, LARGE));
        if discards {
            discard(&node, &source, WRITTEN);
        }
        let image = OpenOptions::new().write(true).custom_flags(flags).open(node.image(&source)).unwrap();
        let fill = |part: u64| image.write_all_at(block, part << 20).unwrap();
        (0..WRITTEN >> 20).for_each(fill);
        image.sync_all().unwrap();
        let (alone, snapshot) = (node.limits(from.project), id("snapshot-1"));
        let begun = node.store.take_snapshot(&snapshot, &snapshot_of(&source, "snapshot-1")).unwrap().snapshots;
        assert_eq!(begun.state, State::Complete);
        (0..WRITTEN / PIECE).for_each(|piece| image.write_all_at(&block[..4096], piece * PIECE).unwrap());
        image.sync_all().unwrap();
        let used = node.store.open_volume(&source).unwrap().quota().unwrap().used.bytes;
        assert!(Some(used) > alone.bytes, "{used}: XFS allocates nothing in advance");
        if !has_hole {
            node.store.remove_snapshot(&snapshot).unwrap();
        } else if is_cached {
            let removed = node.store.remove_snapshot(&snapshot);
            assert!(matches!(removed, Err(Error::Act { source: ActError::Busy { .. }, .. })), "{removed:?}");
            // Only the record is left. Regression: the data counted as lost, and the snapshot as an orphan.
            assert_eq!(node.store.copy_snapshot(&snapshot).unwrap(), None);
            assert_eq!(node.store.retired().unwrap(), [snapshot.clone()]);
            let raised = alone.bytes.map(|bytes| bytes.saturating_add(LARGE));
            assert_eq!(node.limits(from.project).bytes, raised);
            fill(WRITTEN >> 20);
            syncfs(&image).unwrap();
        }
        while let Err(error) = node.store.remove_snapshot(&snapshot) {
            assert!(matches!(error, Error::Act { source: ActError::Busy { .. }, .. }), "{error:?}");
            syncfs(&image).unwrap();
        }
        assert_eq!(node.traces(&snapshot), [""; 0]);
        assert_eq!(node.limits(from.project), alone);
        assert_eq!(node.store.space().unwrap().reserved, from.reserved());
        (WRITTEN >> 20..LARGE.get() >> 20).for_each(fill);
        image.sync_all().unwrap();
    }
}
