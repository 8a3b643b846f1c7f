//! Snapshots that share the blocks of their volumes for as long as they exist.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use fsquota::{Limits, Quotas};
use loopdev::{Config, Control, Detach};
use nix::errno::Errno;
use nix::libc::O_DIRECT;
use nix::unistd::syncfs;
use units::Bytes;
use volume::{
    Access, ActError, Allocation, Claim, DEFAULT_PAUSE, Error, GroupRequest, Mode, Neighbours, Record, Request,
    Settings, Sharing, SnapshotRequest, State, Taken, VolumeId, VolumeRefusal, Volumes as _,
};

use crate::cloning::{BOTH, FULL, LARGE, LARGER, extents, is_settled, shared};
use crate::node::{INODES, Node, SIZE, copied, files, id, only_byte, settings, sized, snapshot_request, without_pods};
use crate::rollback::rolled_back;
use crate::snapshots::{overwrite, snapshot_of, taken};
use crate::sys::cow_extent_size;
use crate::trees::{self, Slow};

/// Size of an image. The limit has 2.5 MiB beside it, so a tenant that overwrites all of it needs the headroom.
const IMAGE: Bytes = Bytes::new(8 << 20);

fn disk(name: &str, allocation: Allocation) -> Request {
    sized(name, Mode::Block { allocation }, IMAGE)
}

/// Takes a thin snapshot, which is ready after one call.
fn thin(node: &Node, source: &VolumeId, name: &str) -> Record {
    let want = SnapshotRequest { sharing: Sharing::Permanent, ..snapshot_of(source, name) };
    let Taken { snapshots, copying } = node.store.take_snapshot(&id(name), &want).unwrap();
    assert_eq!((snapshots.state, copying), (State::Announced, None));
    assert!(snapshots.mode.is_thin() && snapshots.reserved() == Bytes::ZERO, "{snapshots:?}");
    snapshots
}

/// Removes a thin snapshot. A thin image that was written through the page cache keeps blocks until the next writeback.
fn removed(node: &Node, name: &str) {
    while let Err(error) = node.store.remove_snapshot(&id(name)) {
        assert!(matches!(error, Error::Act { source: ActError::Busy { .. }, .. }), "{error:?}");
        syncfs(File::open(node.disk.path()).unwrap()).unwrap();
    }
    assert_eq!(node.traces(&id(name)), [""; 0]);
}

/// Overwrites the whole image.
fn write(node: &Node, volume: &VolumeId, byte: u8) {
    let image = File::options().write(true).open(node.image(volume)).unwrap();
    image.write_all_at(&vec![byte; IMAGE.get() as usize], 0).and_then(|()| image.sync_all()).unwrap();
}

/// Size of the part that [`write_in_any_order`] overwrites.
const PART: Bytes = Bytes::new(4 << 20);

/// Overwrites the start of the image with direct writes of one block, each far from the one before.
fn write_in_any_order(node: &Node, volume: &VolumeId, byte: u8) {
    const BLOCK: usize = 4096;
    let (memory, blocks) = (vec![byte; 2 * BLOCK], PART.get() / BLOCK as u64);
    let aligned = memory.as_ptr().align_offset(BLOCK);
    let block = &memory[aligned..aligned + BLOCK];
    let image = File::options().write(true).custom_flags(O_DIRECT).open(node.image(volume)).unwrap();
    for number in 0..blocks {
        // The factor is odd, and the number of blocks a power of two: each block is written once.
        image.write_all_at(block, number * 389 % blocks * BLOCK as u64).unwrap();
    }
    image.sync_all().unwrap();
}

fn byte(node: &Node, volume: &str) -> Option<u8> {
    only_byte(&fs::read(node.image(&id(volume))).unwrap())
}

fn reserved(node: &Node) -> Bytes {
    node.store.space().unwrap().reserved
}

#[test]
fn a_full_volume_is_overwritten_whole_while_it_has_thin_snapshots() {
    for allocation in BOTH {
        let (node, source, from) = Node::with_volume(&disk("pvc-source", allocation));
        let alone = node.limits(from.project);
        let raised = |count: u64| {
            let headroom = Bytes::new(count * IMAGE.get());
            Limits { bytes: alone.bytes.map(|bytes| bytes.saturating_add(headroom)), ..alone }
        };
        let at_once = |node: &Node| cow_extent_size(File::open(node.image(&source)).unwrap());
        write(&node, &source, 1);
        thin(&node, &source, "snapshot-1");
        assert_eq!((node.limits(from.project), reserved(&node)), (raised(1), from.reserved()));
        assert_eq!((shared(&node.image(&id("snapshot-1"))), at_once(&node)), (IMAGE, 1 << 20));
        let extents = || extents(&node.image(&source)).len();
        let before = extents();
        write_in_any_order(&node, &source, 2);
        let after = extents();
        assert!(after <= before + (PART.get() >> 20) as usize, "{after} extents, {before} before");
        write(&node, &source, 2);
        thin(&node, &source, "snapshot-2");
        write(&node, &source, 3);
        let thick = taken(&node, &source, "snapshot-3");
        assert_eq!(cow_extent_size(File::open(node.image(&id("snapshot-3"))).unwrap()), 0, "of a copy");
        write(&node, &source, 4);

        let node = node.restarted();
        assert_eq!(node.limits(from.project), raised(2));
        assert_eq!(reserved(&node), from.reserved().saturating_add(thick.reserved()));
        let bytes = ["snapshot-1", "snapshot-2", "snapshot-3", "pvc-source"].map(|name| byte(&node, name));
        assert_eq!(bytes, [Some(1), Some(2), Some(3), Some(4)]);
        let grown = node.store.expand(&source, LARGER).unwrap().into_inner();
        // The snapshots share blocks of the former size.
        let headroom = Bytes::new(2 * IMAGE.get());
        let larger = grown.mode.reserved(LARGER).saturating_sub(Bytes::new(2 * 512));
        assert_eq!(node.limits(from.project).bytes, Some(larger.saturating_add(headroom)));
        write(&node, &source, 5);
        removed(&node, "snapshot-2");
        write(&node, &source, 6);
        assert_eq!((byte(&node, "snapshot-1"), at_once(&node)), (Some(1), 1 << 20));
        removed(&node, "snapshot-1");
        assert_eq!(at_once(&node), 0);
        is_settled(&node, [&grown, &thick]);
    }
}

/// Regression: after the start, the limit of the volume had no space for new blocks any more.
#[test]
fn a_volume_is_overwritten_whole_while_the_record_of_its_thin_snapshot_is_unreadable() {
    let (node, source, from) = Node::with_volume(&disk("pvc-source", Allocation::Thick));
    let alone = node.limits(from.project);
    write(&node, &source, 1);
    thin(&node, &source, "snapshot-1");
    let (raised, record) = (node.limits(from.project), node.path("records", &id("snapshot-1")));
    let content = fs::read(&record).unwrap();
    fs::write(&record, b"{").unwrap();
    let node = node.restarted();
    assert_eq!(node.store.records().unwrap().unreadable.into_keys().collect::<Vec<_>>(), [id("snapshot-1")]);
    assert_eq!(node.limits(from.project), raised);
    write(&node, &source, 2);
    // The end of another snapshot does not lower the limit either.
    thin(&node, &source, "snapshot-2");
    removed(&node, "snapshot-2");
    assert_eq!(node.limits(from.project), raised);

    fs::write(&record, content).unwrap();
    let node = node.restarted();
    assert_eq!((byte(&node, "snapshot-1"), node.limits(from.project)), (Some(1), raised));
    removed(&node, "snapshot-1");
    assert_eq!(node.limits(from.project), alone);
}

/// All blocks of the image are shared. For new blocks, its project has no space but the headroom. The image is smaller
/// where its device uses the page cache, unlike the device of a pod.
#[test]
fn a_tenant_overwrites_the_whole_source_after_a_thin_snapshot() {
    for (allocation, direct_io) in [(Allocation::Thick, true), (Allocation::Thin, false)] {
        let node = Node::new();
        let size = if direct_io { FULL } else { LARGE };
        let (source, _) = node.made(&sized("pvc-source", Mode::Block { allocation }, size));
        let image = node.store.open_volume(&source).unwrap().image(Access::ReadWrite).unwrap();
        let device = Control::open().unwrap().attach(&image, &Config { direct_io, ..Config::default() }).unwrap();
        let path = device.path();
        overwrite(&path, size, 1);
        thin(&node, &source, "snapshot-1");
        assert_eq!(shared(&node.image(&id("snapshot-1"))), size);
        overwrite(&path, size, 2);
        assert_eq!(device.detach(&image).unwrap(), Detach::Detached);
        drop(image);
        assert_eq!(["snapshot-1", "pvc-source"].map(|name| byte(&node, name)), [Some(1), Some(2)]);
    }
}

#[test]
fn a_thin_snapshot_is_restored_and_rolled_back_to_and_outlives_its_volume() {
    let node = Node::with(Settings { pass: Duration::ZERO, ..settings() });
    let (source, _) = node.made(&disk("pvc-source", Allocation::Thick));
    write(&node, &source, 1);
    thin(&node, &source, "snapshot-1");
    let (snapshot, restored) = (id("snapshot-1"), id("pvc-restored"));
    let want = Request { source: Some(snapshot.clone()), ..disk("pvc-restored", Allocation::Thick) };
    let begun = node.store.provision(&restored, &want);
    assert!(matches!(begun, Err(Error::Copying { .. })), "{begun:?}");
    // The removal would end the headroom of the source, whose blocks the new volume shares, too.
    let refused = node.store.remove_snapshot(&snapshot).unwrap_err();
    let is_of = |by: &VolumeId| *by == restored;
    assert!(
        matches!(&refused, Error::Refused { source: VolumeRefusal::Restoring(by), .. } if is_of(by)),
        "{refused:?}"
    );
    let record = copied(&node.store, &want);
    assert_eq!([&restored, &snapshot].map(|id| shared(&node.image(id))), [Bytes::ZERO, IMAGE]);
    assert_eq!(cow_extent_size(File::open(node.image(&restored)).unwrap()), 0);

    write(&node, &source, 2);
    rolled_back(&node.store, &source, "snapshot-1", "snapshot-kept");
    node.store.end_rollback(&id("snapshot-kept")).unwrap();
    write(&node, &restored, 3);
    let bytes = ["pvc-source", "snapshot-kept", "snapshot-1", "pvc-restored"].map(|name| byte(&node, name));
    assert_eq!(bytes, [Some(1), Some(2), Some(1), Some(3)]);
    write(&node, &source, 4);
    removed(&node, "snapshot-kept");
    node.remove(&source);
    assert_eq!((byte(&node, "snapshot-1"), reserved(&node)), (Some(1), record.reserved()));
    removed(&node, "snapshot-1");
    let strays = node.store.strays().unwrap();
    assert!(strays.directories.is_empty() && strays.projects.is_empty(), "{strays:?}");
}

#[test]
fn a_tenant_of_files_at_its_limit_gets_enospc_until_its_thin_snapshot_is_removed() {
    let node = Node::new();
    without_pods(&node.store);
    let (source, from, top) = trees::full(&node, SIZE);
    let limits = node.limits(from.project);
    thin(&node, &source, "snapshot-1");
    let (snapshot, copy) = (id("snapshot-1"), node.path("live", &id("snapshot-1")));
    assert!(trees::shared(&copy) > Bytes::new(10 << 20));
    let node = node.restarted();
    assert_eq!((node.limits(from.project), reserved(&node)), (limits, from.reserved()));

    let root = File::open(node.disk.path()).unwrap();
    let used = Quotas::open(&root).unwrap().settled(from.project).unwrap().used.bytes;
    fsquota::set_limits(&root, from.project, Limits { bytes: Some(used), inodes: None }).unwrap();
    let large = File::options().write(true).open(top.join("large")).unwrap();
    let failed = large.write_all_at(&[2; 64 << 10], 0).and_then(|()| large.sync_all()).unwrap_err();
    assert_eq!(failed.raw_os_error(), Some(Errno::ENOSPC as i32));
    fsquota::set_limits(&root, from.project, limits).unwrap();
    drop((root, large));

    let want = sized("pvc-restored", Mode::Filesystem { inodes: INODES }, LARGER);
    copied(&node.store, &Request { source: Some(snapshot), ..want });
    let restored = node.path("live", &id("pvc-restored"));
    assert!(trees::shared(&restored) == Bytes::ZERO && trees::shared(&copy) > Bytes::ZERO);
    trees::has(&restored, 1);
    trees::has(&copy, 1);
    removed(&node, "snapshot-1");
    trees::overwrite(&top, 2);
    trees::has(&top, 2);
    assert_eq!(node.limits(from.project), limits);
}

/// Regression: the removal of a snapshot waited for a clone of its volume, for minutes. The removal of a thin snapshot,
/// and the creation of a volume from it with the name of its deleted source, could wait for each other forever.
#[test]
fn the_removal_of_a_snapshot_waits_neither_for_its_source_nor_for_a_new_volume_of_that_name() {
    const NAMES: [&str; 2] = ["snapshot-former", "snapshot-source"];
    let node = Node::new();
    without_pods(&node.store);
    let [(former, _), (source, _)] = ["pvc-former", "pvc-source"].map(|name| node.made(&files(name)));
    thin(&node, &former, NAMES[0]);
    thin(&node, &source, NAMES[1]);
    node.remove(&former);
    let want = Request { source: Some(source.clone()), ..files("pvc-former") };
    let (store, slow) = (&node.store, Slow::of(&node.store));
    let (sender, ended) = mpsc::channel();
    let removals = thread::scope(|scope| {
        // The call has both volumes when it freezes their pods.
        scope.spawn(|| store.provision(&former, &want));
        slow.until_frozen();
        scope.spawn(|| NAMES.iter().for_each(|name| sender.send(store.remove_snapshot(&id(name))).unwrap()));
        let removals = NAMES.map(|_| ended.recv_timeout(Duration::from_secs(60)));
        slow.thaw();
        removals
    });
    for (removal, of) in removals.iter().zip([&former, &source]) {
        let Ok(Err(error @ Error::Act { source: ActError::Locked { volume }, .. })) = removal else {
            panic!("{removal:?}")
        };
        assert_eq!((volume, error.kind()), (of, "unfinished"));
    }
    without_pods(store);
    copied(store, &want);
    NAMES.iter().for_each(|name| removed(&node, name));
}

fn group_of(sources: [&VolumeId; 2]) -> GroupRequest {
    let member = |source: &VolumeId| {
        let claim = Claim { uid: "group-1".into(), namespace: "default".into(), name: "both".into() };
        let request = SnapshotRequest { sharing: Sharing::Permanent, ..snapshot_request(claim, source.clone()) };
        (id(&format!("group-1-{source}")), request)
    };
    GroupRequest { id: id("group-1"), members: sources.map(member).into(), max_pause: DEFAULT_PAUSE }
}

#[test]
fn a_group_of_thin_snapshots_is_ready_after_one_call() {
    let node = Node::new();
    without_pods(&node.store);
    let (files, _, _) = trees::full(&node, SIZE);
    let (source, from) = node.made(&disk("pvc-disk", Allocation::Thick));
    write(&node, &source, 1);
    let before = reserved(&node);
    let want = group_of([&files, &source]);
    let Taken { snapshots, copying } = node.store.take_group(&want).unwrap();
    assert_eq!((copying, reserved(&node)), (None, before));
    assert!(snapshots.values().all(|record| record.state == State::Announced && record.mode.is_thin()));
    write(&node, &source, 2);
    assert_eq!(byte(&node, "group-1-pvc-disk"), Some(1));
    want.members.keys().for_each(|id| removed(&node, id.as_str()));
    let alone = from.mode.reserved(IMAGE).saturating_sub(Bytes::new(2 * 512));
    assert_eq!(node.limits(from.project).bytes, Some(alone));
}

/// Regression: the error was lost after the first announcement, and no call repeated the others.
#[test]
fn a_thin_group_returns_the_error_of_each_announcement() {
    let node = Node::new();
    without_pods(&node.store);
    let sources = ["pvc-1", "pvc-2"].map(|name| node.made(&disk(name, Allocation::Thin)).0);
    let want = group_of(sources.each_ref());
    let last = want.members.keys().next_back().expect("a member");
    let obstacle = node.path("records", last);
    fs::create_dir(&obstacle).unwrap();
    for _ in 0..2 {
        let failed = node.store.take_group(&want).unwrap_err();
        assert!(matches!(&failed, Error::Act { id, .. } if id == last), "{failed:?}");
    }
    fs::remove_dir(&obstacle).unwrap();
    let Taken { snapshots, copying } = node.store.take_group(&want).unwrap();
    assert!(copying.is_none() && snapshots.values().all(|record| record.state == State::Announced), "{snapshots:?}");
}

/// The disk has other data, as on other clusters: the ledger has nothing for the snapshot.
#[test]
fn blocks_that_only_a_thin_snapshot_has_count_as_those_of_others() {
    let node = Node::with(Settings { neighbours: Neighbours::Strangers, ..settings() });
    let (source, _) = node.made(&disk("pvc-source", Allocation::Thick));
    let others = || node.store.space().unwrap().reserve;
    // The sizes of the maps of free space and of shared blocks vary.
    let is_near = |found: Bytes, wanted: Bytes| {
        found.saturating_add(Bytes::MIB) > wanted && wanted.saturating_add(Bytes::MIB) > found
    };
    write(&node, &source, 1);
    let before = others();
    thin(&node, &source, "snapshot-1");
    let shared = others();
    assert!(is_near(shared, before), "{shared}, before {before}");
    write(&node, &source, 2);
    let alone = others();
    assert!(is_near(alone, before.saturating_add(IMAGE)), "{alone}, before {before}");
}
