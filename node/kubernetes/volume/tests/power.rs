//! The power fails while a volume is cloned, while a snapshot of it is taken, or while it is rolled back. Needs root
//! and three scratch disks.

#[path = "node/mod.rs"]
mod node;

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::thread;
use std::time::Duration;

use ktest_support::replay::write_log::{Content, Entry};
use ktest_support::replay::{Cut, Recorder, Replay, Tearing};
use units::Bytes;
use volume::{
    Allocation, Claim, Error, Mode, Request, RollbackRequest, Settings, Sharing, SnapshotRequest, State, Store,
    VolumeId, Volumes as _,
};

use crate::node::{INODES, Node, copied, id, only_byte, settings, sized, snapshot_request, without_pods};

const THICK: Mode = Mode::Block { allocation: Allocation::Thick };
const FILES: Mode = Mode::Filesystem { inodes: INODES };
const SIZE: Bytes = Bytes::new(2 << 20);

fn open(disk: &Path) -> Store {
    let store = Store::open(&Node::volumes(disk), settings()).expect("the store starts, whatever was left");
    without_pods(&store);
    store
}

/// The name of the file with the content of a volume, and its size.
fn content(mode: Mode) -> (&'static str, Bytes) {
    if mode.is_block() { ("image", SIZE) } else { ("file", Bytes::new(SIZE.get() / 2)) }
}

fn file(store: &Store, id: &VolumeId) -> File {
    let mode = store.open_volume(id).unwrap().mode();
    node::file(store, id, content(mode).0)
}

fn write(store: &Store, id: &VolumeId, byte: u8) {
    let (_, size) = content(store.open_volume(id).unwrap().mode());
    let file = file(store, id);
    file.write_all_at(&vec![byte; size.get() as usize], 0).unwrap();
    file.sync_all().unwrap();
}

fn shared(store: &Store, id: &VolumeId) -> Bytes {
    let batch = reflink::extents(file(store, id), Bytes::ZERO).unwrap();
    assert!(batch.len() < 64, "one call shows all");
    batch.iter().filter(|extent| extent.shared).map(|extent| extent.length).sum()
}

#[test]
fn a_clone_has_the_content_of_its_instant_after_a_power_cut() {
    let want = Request { source: Some(id("pvc-source")), ..sized("pvc-clone", THICK, SIZE) };
    cut_copy(THICK, &id("pvc-clone"), 0, |store| {
        copied(store, &want);
        drop(store.open_volume(&id("pvc-clone")).unwrap());
    });
}

#[test]
fn a_snapshot_of_a_disk_has_the_content_of_its_instant_after_a_power_cut() {
    cut_snapshot(THICK);
}

/// The steps of a clone of files are those of a snapshot of files.
#[test]
fn a_snapshot_of_files_has_the_content_of_its_instant_after_a_power_cut() {
    cut_snapshot(FILES);
}

fn cut_snapshot(mode: Mode) {
    let claim = Claim { uid: "uid".into(), namespace: "default".into(), name: "snapshot".into() };
    let want = snapshot_request(claim, id("pvc-source"));
    let take = |store: &Store| store.take_snapshot(&id("snapshot-1"), &want).unwrap().snapshots;
    cut_copy(mode, &id("snapshot-1"), 1, |store| while take(store).state != State::Announced {});
}

/// Regression: the log was not forced after the first pass, and a power cut removed a snapshot whose instant the API
/// server had. The snapshot was taken again, with later content. Later, the blocks that the pass had copied were not
/// durable either, and the source was overwritten in place: the recovered snapshot shared the overwritten blocks.
#[test]
fn a_power_cut_keeps_the_instant_and_the_content_that_the_first_pass_returned() {
    for (mode, sharing) in [(THICK, Sharing::Temporary), (FILES, Sharing::Temporary), (FILES, Sharing::Permanent)] {
        cut_after_the_first_pass(mode, sharing);
    }
}

fn cut_after_the_first_pass(mode: Mode, sharing: Sharing) {
    let claim = Claim { uid: "uid".into(), namespace: "default".into(), name: "snapshot".into() };
    let (source, snapshot) = (id("pvc-source"), id("snapshot-1"));
    let want = SnapshotRequest { sharing, ..snapshot_request(claim, source.clone()) };
    let recorder = Recorder::on_xfs();
    let mounted = recorder.mount("prjquota");
    // A thin snapshot gives the files of its source no headroom.
    let size = if mode.is_block() { SIZE } else { Bytes::new(2 * SIZE.get()) };
    let one_piece = Settings { pass: Duration::ZERO, ..settings() };
    let store = Store::open(&Node::volumes(mounted.path()), one_piece).expect("the store starts");
    without_pods(&store);
    copied(&store, &sized("pvc-source", mode, size));
    write(&store, &source, 1);
    let begun = store.take_snapshot(&snapshot, &want).unwrap().snapshots;
    assert_eq!(begun.state == State::Announced, begun.mode.is_thin());
    recorder.mark("begin");
    write(&store, &source, 2);
    drop(store);
    drop(mounted);

    let mut replay = recorder.finish();
    // Many writes overwrite the source, so a part of the cuts is enough.
    for cut in cuts_after_begin(&replay).iter().step_by(4) {
        let disk = replay.restore(cut);
        let mounted = disk.mount("prjquota");
        let store = open(mounted.path());
        while store.take_snapshot(&snapshot, &want).unwrap().snapshots.state != State::Announced {}
        let record = store.records().unwrap().readable.remove(&snapshot).expect("a record");
        assert_eq!(record.mode, begun.mode);
        let (name, size) = content(mode);
        let content = fs::read(mounted.path().join("volumes/live/snapshot-1").join(name)).unwrap();
        assert_eq!((content.len() as u64, only_byte(&content)), (size.get(), Some(1)));
    }
}

/// A pod overwrites the first block in place as soon as the snapshot has its own block, long before the pass ends. It
/// continues until the end of the pass, mostly in its rests. All of these writes have the same content: a cut after each
/// eighth write finds the same as one after each write.
#[test]
fn a_snapshot_has_nothing_that_was_written_within_its_first_pass() {
    // The image has four pieces: the writes begin in the rest after the first one.
    const LARGE: Bytes = Bytes::new(4 << 20);
    let claim = Claim { uid: "uid".into(), namespace: "default".into(), name: "snapshot".into() };
    let (source, snapshot) = (id("pvc-source"), id("snapshot-1"));
    let want = snapshot_request(claim, source.clone());
    let recorder = Recorder::on_xfs();
    let mounted = recorder.mount("prjquota");
    let one_pass = Settings { pass: Duration::from_hours(1), ..settings() };
    let store = Store::open(&Node::volumes(mounted.path()), one_pass).expect("the store starts");
    copied(&store, &sized("pvc-source", THICK, LARGE));
    let image = file(&store, &source);
    image.write_all_at(&vec![1; LARGE.get() as usize], 0).unwrap();
    image.sync_all().unwrap();
    let staged = mounted.path().join("volumes/staging/snapshot-1/image");
    let copies_first_block = || {
        let first = reflink::extents(File::open(&staged).ok()?, Bytes::ZERO).ok()?.into_iter().next()?;
        (!first.shared).then_some(())
    };
    let written = thread::scope(|scope| {
        let taken = scope.spawn(|| store.take_snapshot(&snapshot, &want).unwrap());
        while !taken.is_finished() && copies_first_block().is_none() {}
        recorder.mark("begin");
        let mut written = 0;
        while !taken.is_finished() {
            image.write_all_at(&[2; 4096], 0).unwrap();
            image.sync_data().unwrap();
            written += 1;
        }
        recorder.mark("end");
        written
    });
    assert!(written > 1, "the pass was over");
    drop(image);
    drop(store);
    drop(mounted);

    let mut replay = recorder.finish();
    let mut cuts = cuts_of_metadata(&replay);
    cuts.retain(|cut| !cut.has_passed("end"));
    for cut in &cuts {
        let disk = replay.restore(cut);
        let mounted = disk.mount("prjquota");
        let store = open(mounted.path());
        while store.take_snapshot(&snapshot, &want).unwrap().snapshots.state != State::Announced {}
        let content = fs::read(mounted.path().join("volumes/live/snapshot-1/image")).unwrap();
        assert_eq!((content.len() as u64, only_byte(&content)), (LARGE.get(), Some(1)));
    }
}

/// The volume has its former content, or that of the snapshot. In the second case, the kept snapshot has the former
/// content.
#[test]
fn a_rollback_is_done_or_not_after_a_power_cut() {
    for mode in [THICK, FILES] {
        cut_rollback(mode);
    }
}

fn cut_rollback(mode: Mode) {
    let claim = Claim { uid: "uid".into(), namespace: "default".into(), name: "snapshot".into() };
    let (volume, snapshot, kept) = (id("pvc-source"), id("snapshot-1"), id("snapshot-kept"));
    let want = RollbackRequest { claim: claim.clone(), volume: volume.clone(), source: snapshot.clone() };
    let roll_back = |store: &Store| {
        while let Err(error) = store.roll_back(&kept, &want) {
            assert!(matches!(error, Error::Copying { .. }), "{error:?}");
        }
    };
    let recorder = Recorder::on_xfs();
    let mounted = recorder.mount("prjquota");
    let store = open(mounted.path());
    copied(&store, &sized("pvc-source", mode, SIZE));
    write(&store, &volume, 1);
    let taken = snapshot_request(claim, volume.clone());
    while store.take_snapshot(&snapshot, &taken).unwrap().snapshots.state != State::Announced {}
    write(&store, &volume, 2);
    recorder.mark("begin");
    roll_back(&store);
    recorder.mark("end");
    store.end_rollback(&kept).unwrap();
    drop(store);
    drop(mounted);

    let mut replay = recorder.finish();
    let cuts = cuts_of_metadata(&replay);
    let (mut before, mut after) = (0, 0);
    // `//test/crash` cuts rollbacks, too. Files are exchanged like images, so fewer cuts are enough for them.
    for cut in cuts.iter().step_by(if mode.is_block() { 3 } else { 4 }) {
        let disk = replay.restore(cut);
        let mounted = disk.mount("prjquota");
        let store = open(mounted.path());
        let (name, size) = content(mode);
        let content = |id: &VolumeId| {
            let content = fs::read(mounted.path().join(format!("volumes/live/{id}/{name}"))).unwrap();
            assert_eq!(content.len() as u64, size.get());
            only_byte(&content).expect("one content")
        };
        let record = store.records().unwrap().readable.remove(&kept);
        let is_exchanged = content(&volume) == 1;
        *(if is_exchanged { &mut after } else { &mut before }) += 1;
        assert!(is_exchanged || !cut.marks().any(|mark| mark == "end"), "{record:?}");
        if record.is_none_or(|record| record.rollback().is_some()) {
            roll_back(&store);
            store.end_rollback(&kept).unwrap();
        }
        assert_eq!([content(&volume), content(&kept), content(&snapshot)], [1, 2, 1]);
        let limits = |id: &VolumeId| store.open_volume(id).unwrap().quota().unwrap().limits;
        let settled = limits(&volume);
        store.remove_snapshot(&kept).unwrap();
        assert_eq!(limits(&volume), settled);
    }
    assert!(before > 0 && after > 0, "{before} cuts before the exchange, {after} after it");
}

/// Cuts after each write since the mark `begin` that changes the state that XFS recovers, and some cuts with losses, in
/// the order of the log.
fn cuts_after_begin(replay: &Replay) -> Vec<Cut> {
    let mut cuts = replay.every_recovered_cut();
    cuts.extend(replay.lossy_cuts(1, 24, Tearing::Sectors));
    cuts.retain(|cut| cut.marks().any(|mark| mark == "begin"));
    cuts.sort_by_key(Cut::position);
    cuts
}

/// [`cuts_after_begin`] without most cuts within a row of writes of file data, also with flushes between them. Such
/// writes do not change the metadata. The cuts after the first, each eighth and the last write remain.
fn cuts_of_metadata(replay: &Replay) -> Vec<Cut> {
    let mut length = 0;
    let mut rows = vec![0];
    for entry in replay.entries() {
        length = match entry {
            Entry::Write(write) if write.content == Content::Data => length + 1,
            Entry::Flush => length,
            Entry::Write(_) | Entry::Discard(_) | Entry::Mark(_) => 0,
        };
        rows.push(length);
    }
    let mut cuts = cuts_after_begin(replay);
    cuts.retain(|cut| {
        let row: usize = rows[cut.position()];
        let is_last = rows.get(cut.position() + 1).is_none_or(|next| *next <= row);
        cut.is_lossy() || row <= 1 || row % 8 == 0 || is_last
    });
    cuts
}

/// Cuts the power while `make` creates `copy` from the source, and after that. The source is overwritten when the copy
/// is durable: no recovered copy has any of the new content.
///
/// The passes over the image are the same in a clone and a snapshot of a disk. Each has every second cut of its own
/// recording, from `first` on, so a cut next to the write of a state may be in neither. Copies of files, whose states
/// are written in the same way, have all cuts.
fn cut_copy(mode: Mode, copy: &VolumeId, first: usize, make: impl Fn(&Store)) {
    let recorder = Recorder::on_xfs();
    let mounted = recorder.mount("prjquota");
    let source = id("pvc-source");
    let store = open(mounted.path());
    copied(&store, &sized("pvc-source", mode, SIZE));
    write(&store, &source, 1);
    let alone = store.open_volume(&source).unwrap().quota().unwrap().limits;
    recorder.mark("begin");
    make(&store);
    recorder.mark("end");
    write(&store, &source, 2);
    drop(store);
    drop(mounted);

    let mut replay = recorder.finish();
    let cuts = cuts_of_metadata(&replay);
    let mut unfinished = 0;
    let (skipped, stride) = if mode.is_block() { (first, 2) } else { (0, 1) };
    for cut in cuts.iter().skip(skipped).step_by(stride) {
        let disk = replay.restore(cut);
        let mounted = disk.mount("prjquota");
        let store = open(mounted.path());
        let record = store.records().unwrap().readable.remove(copy);
        let sharing = record.as_ref().and_then(|record| record.cloning.as_ref()).map(|cloning| cloning.headroom);
        unfinished += usize::from(sharing.is_some());
        let limits = store.open_volume(&source).unwrap().quota().unwrap().limits;
        let raised = alone.bytes.map(|bytes| bytes.saturating_add(sharing.unwrap_or_default()));
        assert_eq!(limits.bytes, raised, "{record:?}");
        assert!(record.is_some() || !cut.marks().any(|mark| mark == "end"), "the copy is lost");
        assert!(sharing.is_some() || shared(&store, &source) == Bytes::ZERO, "{record:?}");
        make(&store);
        let (name, size) = content(mode);
        let content = fs::read(mounted.path().join(format!("volumes/live/{copy}/{name}"))).unwrap();
        assert_eq!(content.len() as u64, size.get());
        assert_eq!(only_byte(&content), Some(1), "{record:?}");
        assert_eq!(shared(&store, &source), Bytes::ZERO);
        assert_eq!(store.open_volume(&source).unwrap().quota().unwrap().limits, alone);
    }
    assert!(unfinished > 0, "{unfinished} of {} cuts left an unfinished copy", cuts.len());
}
