//! A process is killed within a clone.

use std::cell::Cell;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};

use dir::Ensured;
use fsquota::Limits;
use ktest_support::XfsDisk;
use ktest_support::process::{Call, killed_before};
use nix::errno::Errno;
use nix::libc;
use units::Bytes;
use volume::{Access, Allocation, Claim, Error, Mode, Request, State, Store, VolumeId, Volumes as _};

use crate::killed::{SOURCE, Steps, THICK, THIN, deleted, killed_at_calls, made, may_change_files, open, source_of};
use crate::node::{byte_of, copied, id, only_byte, sized, snapshot_request};

/// Eight times what the limit of an image of this size has beside its blocks.
const SIZE: Bytes = Bytes::new(24 << 20);

fn clone_of(source: &Request, request: &Request) -> Request {
    Request { source: Some(id(&source.claim.name)), ..request.clone() }
}

fn image(store: &Store, id: &VolumeId) -> File {
    File::from(store.open_volume(id).unwrap().image(Access::ReadWrite).unwrap())
}

pub fn write(store: &Store, request: &Request, byte: u8) -> Result<(), Errno> {
    let image = image(store, &id(&request.claim.name));
    let written = image.write_all_at(&vec![byte; request.size.get() as usize], 0).and_then(|()| image.sync_all());
    written.map_err(|error| Errno::from_raw(error.raw_os_error().expect("of the kernel")))
}

fn shared(store: &Store, id: &VolumeId) -> Bytes {
    let batch = reflink::extents(image(store, id), Bytes::ZERO).unwrap();
    assert!(batch.len() < 64, "one call shows all");
    batch.iter().filter(|extent| extent.shared).map(|extent| extent.length).sum()
}

fn limits(store: &Store, id: &VolumeId) -> Limits {
    store.open_volume(id).unwrap().quota().unwrap().limits
}

/// Checks a source whose clones have all ended.
pub fn is_settled(store: &Store, source: &Request, reserved: Bytes) {
    let id = id(&source.claim.name);
    let record = store.records().unwrap().readable.remove(&id).unwrap();
    let alone = Mode::Block { allocation: Allocation::Thin }.reserved(record.size).saturating_sub(Bytes::new(2 * 512));
    assert_eq!(limits(store, &id).bytes, Some(alone));
    assert_eq!(shared(store, &id), Bytes::ZERO);
    assert_eq!(store.space().unwrap().reserved, record.reserved().saturating_add(reserved));
}

/// Steps of one case: every third one. The cases of thick images have two of three steps, that of a thin image has the
/// third one: a step that only a thick image has may be in no case.
const fn from(first: usize) -> Steps {
    Steps { first, stride: 3 }
}

fn with_content(store: &Store, request: &Request) {
    write(store, &source_of(request), 1).unwrap();
}

#[test]
fn a_killed_clone_is_finished_by_the_next() {
    killed_at_calls(
        may_change_files,
        from(0),
        &[THICK, THIN],
        SOURCE,
        with_content,
        |store, request| drop(copied(store, &clone_of(&source_of(request), request))),
        |store, request| {
            let source = source_of(request);
            write(store, &source, 2).unwrap();
            let record = copied(store, &clone_of(&source, request));
            is_settled(store, &source, record.reserved());
            let byte = byte_of(&image(store, &id(&request.claim.name)), request.size.get() as usize);
            // The content of the instant before or after the kill.
            assert!(byte.is_some_and(|byte| [1, 2].contains(&byte)));
            deleted(store, request);
        },
    );
}

#[test]
fn a_killed_clone_is_undone_if_the_claim_is_gone() {
    killed_at_calls(
        may_change_files,
        from(2),
        &[THICK],
        SOURCE,
        with_content,
        |store, request| {
            let (source, id) = (source_of(request), id(&request.claim.name));
            while let Err(Error::Copying { .. }) = store.provision(&id, &clone_of(&source, request)) {}
        },
        |store, request| {
            let (source, id) = (source_of(request), id(&request.claim.name));
            store.undo(&id).unwrap();
            assert_eq!(store.undo(&id).unwrap(), Ensured::Unchanged(()));
            is_settled(store, &source, Bytes::ZERO);
        },
    );
}

/// Kills the process before the next call after `FICLONE` that may change a file. The kernel has completed the clone.
fn killed_after_the_clone(store: &Store, want: &Request) {
    killed_after_ficlone(|| drop(copied(store, want)));
}

fn killed_after_ficlone(make: impl FnOnce()) {
    const FICLONE: u64 = 0x4004_9409;
    let is_cloned = Cell::new(false);
    let next = |call: &Call<'_>| {
        let [_, command, ..] = call.arguments();
        is_cloned.replace(is_cloned.get() || call.number() == libc::SYS_ioctl && command == FICLONE)
    };
    assert!(killed_before(0, next, make));
}

/// A power cut or a kill within `FICLONE` leaves the first extents, and the size up to their end.
#[test]
fn a_part_of_a_clone_is_cloned_again() {
    let disk = XfsDisk::with_project_quota();
    let source = sized("pvc-source", THICK, Bytes::new(4 << 20));
    let want = clone_of(&source, &sized("pvc-clone", THICK, source.size));
    let store = open(disk.path());
    made(&store, &source);
    write(&store, &source, 1).unwrap();
    killed_after_the_clone(&store, &want);
    drop(store);
    let part = File::options().write(true).open(disk.path().join("volumes/staging/pvc-clone/image")).unwrap();
    part.set_len(1 << 20).unwrap();
    drop(part);
    let store = open(disk.path());
    copied(&store, &want);
    assert_eq!(byte_of(&image(&store, &id("pvc-clone")), source.size.get() as usize), Some(1));
}

/// All blocks of the source are shared, and nothing copies them.
#[test]
fn a_source_is_overwritten_whole_after_its_clone_was_killed() {
    let disk = XfsDisk::with_project_quota();
    let source = sized("pvc-source", THICK, SIZE);
    let want = clone_of(&source, &sized("pvc-clone", THICK, SIZE));
    let store = open(disk.path());
    let record = made(&store, &source);
    write(&store, &source, 1).unwrap();
    let alone = limits(&store, &id("pvc-source"));
    killed_after_the_clone(&store, &want);
    drop(store);
    let store = open(disk.path());
    assert_eq!(shared(&store, &id("pvc-source")), SIZE);
    let raised = Limits { bytes: alone.bytes.map(|bytes| bytes.saturating_add(SIZE)), ..alone };
    assert_eq!(limits(&store, &id("pvc-source")), raised);
    let root = File::open(disk.path()).unwrap();
    let used = store.open_volume(&id("pvc-source")).unwrap().quota().unwrap().used.bytes;
    fsquota::set_limits(&root, record.project, Limits { bytes: Some(used), inodes: None }).unwrap();
    assert_eq!(write(&store, &source, 2), Err(Errno::ENOSPC), "without the headroom");
    fsquota::set_limits(&root, record.project, raised).unwrap();
    write(&store, &source, 3).unwrap();
    let clone = copied(&store, &want);
    is_settled(&store, &source, clone.reserved());
    write(&store, &source, 4).unwrap();
    assert_eq!(byte_of(&image(&store, &id("pvc-clone")), SIZE.get() as usize), Some(1));
    drop(root);
}

/// Regression: XFS allocates 128 KiB for each write to a shared block, which the quota counted for half an hour. Writes
/// to holes failed.
#[test]
fn a_thin_source_has_its_own_limit_for_its_holes() {
    const PIECE: u64 = 128 << 10;
    let disk = XfsDisk::with_project_quota();
    let source = sized("pvc-source", THIN, SIZE);
    let want = clone_of(&source, &sized("pvc-clone", THIN, SIZE));
    let store = open(disk.path());
    made(&store, &source);
    let (id, half) = (id("pvc-source"), SIZE.get() / 2);
    // Direct I/O, like that of the loop device of a pod. XFS keeps the blocks of a file that has been written through
    // the page cache until the kernel's next periodic writeback.
    let path = disk.path().join("volumes/live/pvc-source/image");
    let direct = || OpenOptions::new().write(true).custom_flags(libc::O_DIRECT).open(&path).unwrap();
    let mut memory = vec![1_u8; (1 << 20) + 4096];
    let aligned = memory.as_ptr().align_offset(4096);
    let block = &mut memory[aligned..aligned + (1 << 20)];
    let file = direct();
    (0..half >> 20).for_each(|part| file.write_all_at(block, part << 20).unwrap());
    let alone = limits(&store, &id);
    drop(file);
    killed_after_the_clone(&store, &want);
    drop(store);
    let store = open(disk.path());
    block.fill(2);
    let file = direct();
    (0..half / PIECE).for_each(|number| file.write_all_at(&block[..4096], number * PIECE).unwrap());
    let used = || store.open_volume(&id).unwrap().quota().unwrap().used.bytes;
    assert!(used() > Bytes::new(half + half / 2), "{}: XFS allocates nothing in advance", used());
    copied(&store, &want);
    assert_eq!(limits(&store, &id), alone);
    assert!(used() < Bytes::new(half + half / 8), "{}", used());
    (0..half >> 20).for_each(|part| file.write_all_at(block, half + (part << 20)).unwrap());
}

/// All blocks of a full source are shared with a snapshot that is not finished.
#[test]
fn a_source_is_overwritten_whole_after_its_snapshot_was_killed() {
    for mode in [THICK, THIN] {
        let disk = XfsDisk::with_project_quota();
        let source = sized("pvc-source", mode, SIZE);
        let claim = Claim { uid: "uid".into(), namespace: "default".into(), name: "snapshot".into() };
        let want = snapshot_request(claim, id("pvc-source"));
        let (snapshot, store) = (id("snapshot-1"), open(disk.path()));
        made(&store, &source);
        write(&store, &source, 1).unwrap();
        let alone = limits(&store, &id("pvc-source"));
        killed_after_ficlone(|| drop(store.take_snapshot(&snapshot, &want)));
        drop(store);
        let store = open(disk.path());
        assert_eq!(shared(&store, &id("pvc-source")), SIZE);
        let begun = store.records().unwrap().readable.remove(&snapshot).unwrap();
        write(&store, &source, 2).unwrap();
        let record = loop {
            let record = store.take_snapshot(&snapshot, &want).unwrap().snapshots;
            if record.state == State::Announced {
                break record;
            }
        };
        assert_eq!(record.mode, begun.mode, "the instant stays");
        is_settled(&store, &source, record.reserved());
        assert_eq!(limits(&store, &id("pvc-source")), alone);
        let content = fs::read(disk.path().join("volumes/live/snapshot-1/image")).unwrap();
        assert!(content.len() as u64 == SIZE.get() && only_byte(&content) == Some(1));
        write(&store, &source, 3).unwrap();
        store.remove_snapshot(&snapshot).unwrap();
        is_settled(&store, &source, Bytes::ZERO);
    }
}

#[test]
fn a_clone_outlives_its_source() {
    let disk = XfsDisk::with_project_quota();
    let source = sized("pvc-source", THICK, SIZE);
    let want = clone_of(&source, &sized("pvc-clone", THICK, SIZE));
    let store = open(disk.path());
    made(&store, &source);
    write(&store, &source, 1).unwrap();
    killed_after_the_clone(&store, &want);
    drop(store);
    let store = open(disk.path());
    deleted(&store, &source);
    let record = copied(&store, &want);
    assert_eq!(store.space().unwrap().reserved, record.reserved());
    assert_eq!(shared(&store, &id("pvc-clone")), Bytes::ZERO);
    assert_eq!(byte_of(&image(&store, &id("pvc-clone")), SIZE.get() as usize), Some(1));
}
