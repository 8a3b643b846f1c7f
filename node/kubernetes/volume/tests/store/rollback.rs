//! A block volume returns to the content of a snapshot.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;
use std::thread;
use std::time::Duration;

use dir::{Dir, Ensured, Name};
use ktest_support::unmount;
use loopdev::{Config, Control};
use nix::mount::{MsFlags, mount};
use units::Bytes;
use volume::{
    Access, Allocation, Claim, Error, Mode, Owner, Record, Request, RollbackError, RollbackRequest, Settings,
    SourceError, Store, VolumeId, VolumeRefusal, Volumes as _,
};

use crate::cloning::{BOTH, is_settled};
use crate::node::{Node, files, id, only_byte, settings, sized};
use crate::snapshots::{snapshot_of, taken};
use crate::sys;

/// Size of four pieces of a copy.
const SIZE: Bytes = Bytes::new(4 << 20);
const LARGER: Bytes = Bytes::new(6 << 20);

fn disk(name: &str, allocation: Allocation) -> Request {
    sized(name, Mode::Block { allocation }, SIZE)
}

pub fn back_to(volume: &VolumeId, source: &str, kept: &str) -> RollbackRequest {
    let claim = Claim { uid: format!("uid of {volume}"), namespace: "default".into(), name: kept.into() };
    RollbackRequest { claim, volume: volume.clone(), source: id(source) }
}

/// Repeats the call until the rollback has ended.
pub fn roll_back(store: &Store, kept: &VolumeId, want: &RollbackRequest) -> Result<Ensured<Record>, Error> {
    loop {
        match store.roll_back(kept, want) {
            Err(Error::Copying { .. }) => {}
            done => break done,
        }
    }
}

pub fn rolled_back(store: &Store, volume: &VolumeId, source: &str, kept: &str) -> Record {
    roll_back(store, &id(kept), &back_to(volume, source, kept)).unwrap().into_inner()
}

fn write(node: &Node, volume: &VolumeId, byte: u8) {
    let image = File::from(node.store.open_volume(volume).unwrap().image(Access::ReadWrite).unwrap());
    image.write_all_at(&vec![byte; SIZE.get() as usize], 0).unwrap();
    image.sync_all().unwrap();
}

fn has_only(image: &Path, byte: u8) -> bool {
    only_byte(&fs::read(image).unwrap()) == Some(byte)
}

#[test]
fn a_volume_returns_to_a_snapshot_and_the_former_content_is_kept() {
    for allocation in BOTH {
        let (node, volume, _) = Node::with_volume(&disk("pvc-1", allocation));
        write(&node, &volume, 1);
        let snapshot = taken(&node, &volume, "snapshot-1");
        write(&node, &volume, 2);
        let kept = rolled_back(&node.store, &volume, "snapshot-1", "snapshot-kept");
        assert!(has_only(&node.image(&volume), 1) && has_only(&node.image(&id("snapshot-kept")), 2));
        assert_eq!(fs::metadata(node.image(&volume)).unwrap().blocks() * 512, SIZE.get());
        let again = node.store.roll_back(&id("snapshot-kept"), &back_to(&volume, "snapshot-1", "snapshot-kept"));
        assert_eq!(again.unwrap(), Ensured::Unchanged(kept.clone()), "a request is served once");
        // The snapshot shows that the request was served.
        let removed = node.store.remove_snapshot(&id("snapshot-kept"));
        assert!(matches!(removed, Err(Error::Refused { source: VolumeRefusal::RollingBack(_), .. })), "{removed:?}");
        let node = node.restarted();
        let removed = node.store.remove_snapshot(&id("snapshot-kept"));
        assert!(matches!(removed, Err(Error::Refused { source: VolumeRefusal::RollingBack(_), .. })), "{removed:?}");
        assert_eq!(node.store.end_rollback(&id("snapshot-kept")).unwrap(), Ensured::Created(()));
        assert_eq!(node.store.end_rollback(&id("snapshot-kept")).unwrap(), Ensured::Unchanged(()));

        // A second rollback undoes the first one, and is then confirmed.
        write(&node, &volume, 3);
        rolled_back(&node.store, &volume, "snapshot-kept", "snapshot-undone");
        assert!(has_only(&node.image(&volume), 2) && has_only(&node.image(&id("snapshot-undone")), 3));
        node.store.end_rollback(&id("snapshot-undone")).unwrap();
        for other in ["snapshot-kept", "snapshot-undone"] {
            assert_eq!(node.store.remove_snapshot(&id(other)).unwrap(), Ensured::Created(()));
            assert_eq!(node.traces(&id(other)), [""; 0]);
        }
        let record = node.store.records().unwrap().readable.remove(&volume).unwrap();
        assert_eq!((&record.owner, record.size), (&Owner::Provisioner, SIZE));
        is_settled(&node, [&record, &snapshot]);
        node.store.expand(&volume, LARGER).unwrap();
        node.remove(&volume);
        node.store.remove_snapshot(&id("snapshot-1")).unwrap();
        assert_eq!(node.store.space().unwrap().reserved, Bytes::ZERO);
    }
}

#[test]
fn a_volume_that_grew_after_the_snapshot_keeps_its_size() {
    for allocation in BOTH {
        let node = Node::with(Settings { pass: Duration::ZERO, ..settings() });
        let (volume, _) = node.made(&disk("pvc-1", allocation));
        write(&node, &volume, 1);
        taken(&node, &volume, "snapshot-1");
        let want = back_to(&volume, "snapshot-1", "snapshot-kept");
        let begun = node.store.roll_back(&id("snapshot-kept"), &want);
        assert!(matches!(begun, Err(Error::Copying { .. })), "{begun:?}");
        node.store.expand(&volume, LARGER).unwrap();
        write(&node, &volume, 2);
        let error = roll_back(&node.store, &id("snapshot-kept"), &want).unwrap_err();
        assert!(matches!(error, Error::Rollback { source: RollbackError::Grown, .. }), "{error:?}");
        assert!(node.store.record(&id("snapshot-kept")).unwrap().is_some(), "the caller removes the copy");
        node.store.remove_snapshot(&id("snapshot-kept")).unwrap();
        assert_eq!(node.traces(&id("snapshot-kept")), [""; 0]);
        rolled_back(&node.store, &volume, "snapshot-1", "snapshot-kept");
        let content = fs::read(node.image(&volume)).unwrap();
        let (old, new) = content.split_at(SIZE.get() as usize);
        assert_eq!((only_byte(old), only_byte(new)), (Some(1), Some(0)));
        assert_eq!(content.len() as u64, LARGER.get());
        assert_eq!(node.store.open_volume(&volume).unwrap().size(), LARGER);
        if allocation == Allocation::Thick {
            assert_eq!(fs::metadata(node.image(&volume)).unwrap().blocks() * 512, LARGER.get());
        }
    }
}

#[test]
fn nothing_is_exchanged_while_the_volume_is_in_use() {
    let node = Node::with(Settings { pass: Duration::ZERO, ..settings() });
    let (volume, _) = node.made(&disk("pvc-1", Allocation::Thick));
    write(&node, &volume, 1);
    taken(&node, &volume, "snapshot-1");
    write(&node, &volume, 2);
    let want = back_to(&volume, "snapshot-1", "snapshot-kept");
    let attempt = || roll_back(&node.store, &id("snapshot-kept"), &want).unwrap_err();

    // A publish has opened the volume, and attaches a device later.
    let opened = node.store.open_volume(&volume).unwrap();
    let error = attempt();
    assert!(matches!(error, Error::Rollback { source: RollbackError::Opened, .. }), "{error:?}");
    let image = opened.image(Access::ReadWrite).unwrap();
    let device = Control::open().unwrap().attach(&image, &Config::default()).unwrap();
    drop(opened);
    let target = node.disk.path().join("target");
    File::create(&target).unwrap();
    mount(Some(&device.path()), &target, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
    let error = attempt();
    assert!(matches!(&error, Error::Published { target: found, .. } if *found == target), "{error:?}");
    assert!(error.is_in_use());
    unmount(&target).unwrap();
    let open = File::open(device.path()).unwrap();
    let error = attempt();
    assert!(error.is_in_use(), "a process has the device open: {error:?}");
    // The kernel detaches the device at the last close.
    drop((open, device, image));
    assert!(has_only(&node.image(&volume), 2));

    // A snapshot of the volume shares blocks with it.
    let begun = node.store.take_snapshot(&id("snapshot-2"), &snapshot_of(&volume, "snapshot-2")).unwrap();
    assert!(begun.snapshots.cloning.is_some(), "{begun:?}");
    let error = attempt();
    assert!(matches!(error, Error::Rollback { source: RollbackError::Shared, .. }), "{error:?}");
    taken(&node, &volume, "snapshot-2");
    rolled_back(&node.store, &volume, "snapshot-1", "snapshot-kept");
    assert!(has_only(&node.image(&volume), 1) && has_only(&node.image(&id("snapshot-2")), 2));
}

#[test]
fn a_rollback_that_is_not_possible_changes_nothing() {
    let (node, directory, _) = Node::with_volume(&files("pvc-files"));
    let (volume, _) = node.made(&disk("pvc-1", Allocation::Thin));
    let large = sized("pvc-large", Mode::Block { allocation: Allocation::Thin }, Bytes::new(240 << 20));
    let (large, _) = node.made(&large);
    taken(&node, &large, "snapshot-large");
    write(&node, &volume, 1);
    taken(&node, &volume, "snapshot-1");
    let (space, kept) = (node.store.space().unwrap(), id("snapshot-kept"));
    let refusal = |volume: &VolumeId, source: &str| {
        let refused = node.store.roll_back(&kept, &back_to(volume, source, "snapshot-kept")).unwrap_err();
        assert_eq!(node.traces(&kept), [""; 0]);
        assert_eq!(node.store.space().unwrap(), space);
        refused
    };
    let unknown = refusal(&id("pvc-none"), "snapshot-1");
    assert!(matches!(unknown, Error::Rollback { source: RollbackError::Unknown, .. }), "{unknown:?}");
    let other_mode = refusal(&directory, "snapshot-1");
    assert!(matches!(other_mode, Error::Source { source: SourceError::Block { .. }, .. }), "{other_mode:?}");
    let snapshot = refusal(&id("snapshot-1"), "snapshot-1");
    assert!(matches!(snapshot, Error::Refused { source: VolumeRefusal::Snapshot, .. }), "{snapshot:?}");
    let missing = refusal(&volume, "snapshot-none");
    assert!(matches!(missing, Error::Source { source: SourceError::Unknown { .. }, .. }), "{missing:?}");
    let larger = refusal(&volume, "snapshot-large");
    assert!(matches!(larger, Error::Source { source: SourceError::Grown { .. }, .. }), "{larger:?}");
    // The snapshot needs its own size, and as much again while blocks are shared.
    let full = refusal(&large, "snapshot-large");
    assert!(matches!(full, Error::Full { wanted, .. } if wanted > Bytes::new(480 << 20)), "{full:?}");
    // The ID is that of a volume, or of another snapshot.
    for taken in [volume.as_str(), "snapshot-1"] {
        let differs = node.store.roll_back(&id(taken), &back_to(&volume, "snapshot-1", taken)).unwrap_err();
        assert!(matches!(differs, Error::Refused { source: VolumeRefusal::Differs { .. }, .. }), "{differs:?}");
    }
    assert!(has_only(&node.image(&volume), 1));
}

#[test]
fn a_canceled_rollback_leaves_no_trace() {
    let node = Node::with(Settings { pass: Duration::ZERO, ..settings() });
    let (volume, _) = node.made(&disk("pvc-1", Allocation::Thick));
    write(&node, &volume, 1);
    taken(&node, &volume, "snapshot-1");
    let space = node.store.space().unwrap();
    let begun = node.store.roll_back(&id("snapshot-kept"), &back_to(&volume, "snapshot-1", "snapshot-kept"));
    assert!(matches!(begun, Err(Error::Copying { .. })), "{begun:?}");
    let ended = node.store.end_rollback(&id("snapshot-kept"));
    assert!(matches!(ended, Err(Error::Refused { source: VolumeRefusal::RollingBack(_), .. })), "{ended:?}");
    assert_eq!(node.store.remove_snapshot(&id("snapshot-kept")).unwrap(), Ensured::Created(()));
    assert_eq!(node.traces(&id("snapshot-kept")), [""; 0]);
    assert_eq!(node.store.space().unwrap(), space);
}

/// Regression: no record could be written after the exchange, and the volume was deleted. The snapshot stayed for ever.
#[test]
fn a_snapshot_ends_after_its_volume_if_no_record_has_the_exchange() {
    for restarts in [false, true] {
        let node = Node::new();
        let (volume, _) = node.made(&disk("pvc-1", Allocation::Thin));
        write(&node, &volume, 1);
        taken(&node, &volume, "snapshot-1");
        let (kept, want) = (id("snapshot-kept"), back_to(&volume, "snapshot-1", "snapshot-kept"));
        let opened = node.store.open_volume(&volume).unwrap();
        let error = loop {
            match node.store.roll_back(&kept, &want).unwrap_err() {
                Error::Copying { .. } => {}
                error => break error,
            }
        };
        assert!(matches!(error, Error::Rollback { source: RollbackError::Opened, .. }), "{error:?}");
        drop(opened);
        let [staging, live] = [node.path("staging", &kept), node.path("live", &volume)]
            .map(|path| Dir::open(path.parent().unwrap()).unwrap());
        let [one, other] = ["snapshot-kept", "pvc-1"].map(|name| Name::try_from(name).unwrap());
        staging.exchange(&one, &live, &other).unwrap();
        drop((staging, live));

        node.store.retire(&volume).unwrap();
        node.store.discard(&volume).unwrap();
        let node = if restarts { node.restarted() } else { node };
        assert_eq!(node.store.remove_snapshot(&kept).unwrap(), Ensured::Created(()));
        assert_eq!(node.traces(&kept), [""; 0]);
        node.store.remove_snapshot(&id("snapshot-1")).unwrap();
        assert_eq!(node.store.space().unwrap().reserved, Bytes::ZERO);
        let strays = node.store.strays().unwrap();
        assert!(strays.directories.is_empty() && strays.projects.is_empty(), "{strays:?}");
    }
}

/// Regression: the record of the snapshot was written without that of the volume, which then had the project of another
/// directory.
#[test]
fn an_exchange_is_completed_when_both_records_can_be_written() {
    const IMMUTABLE: u32 = 0x8; // FS_XFLAG_IMMUTABLE
    let node = Node::new();
    let (volume, _) = node.made(&disk("pvc-1", Allocation::Thin));
    write(&node, &volume, 1);
    taken(&node, &volume, "snapshot-1");
    write(&node, &volume, 2);
    let (kept, want) = (id("snapshot-kept"), back_to(&volume, "snapshot-1", "snapshot-kept"));
    let opened = node.store.open_volume(&volume).unwrap();
    while matches!(node.store.roll_back(&kept, &want), Err(Error::Copying { .. })) {}
    drop(opened);

    // The process ends after the exchange.
    let Node { store, disk } = node;
    drop(store);
    let open = |place: &str| Dir::open(&disk.path().join("volumes").join(place)).unwrap();
    let name = |text: &str| Name::try_from(text).unwrap();
    open("staging").exchange(&name("snapshot-kept"), &open("live"), &name("pvc-1")).unwrap();
    sys::add_flag(File::open(disk.path().join("volumes/records/pvc-1")).unwrap(), IMMUTABLE).unwrap();
    let store = Node::open(&disk);
    let error = store.roll_back(&kept, &want).unwrap_err();
    assert!(matches!(&error, Error::Act { id, .. } if *id == volume), "{error:?}");
    drop(store);

    open("records").unprotect(&name("pvc-1")).unwrap();
    let node = Node { store: Node::open(&disk), disk };
    rolled_back(&node.store, &volume, "snapshot-1", "snapshot-kept");
    assert!(has_only(&node.image(&volume), 1) && has_only(&node.image(&kept), 2));
    node.store.end_rollback(&kept).unwrap();
    node.store.expand(&volume, LARGER).unwrap();
}

/// A publish either keeps the content from being exchanged, or gets the new one.
#[test]
fn an_open_volume_keeps_its_directory() {
    let (node, volume, _) = Node::with_volume(&disk("pvc-1", Allocation::Thin));
    write(&node, &volume, 1);
    taken(&node, &volume, "snapshot-1");
    let (node, store, volume) = (&node, &node.store, &volume);
    thread::scope(|scope| {
        let opens = scope.spawn(move || {
            for _ in 0..2000 {
                let opened = store.open_volume(volume).unwrap();
                let inode = |file: File| file.metadata().unwrap().ino();
                let own = inode(opened.image(Access::ReadOnly).unwrap().into());
                assert_eq!(own, fs::metadata(node.image(volume)).unwrap().ino());
            }
        });
        for number in 0..10 {
            let kept = format!("snapshot-kept-{number}");
            while let Err(error) = store.roll_back(&id(&kept), &back_to(volume, "snapshot-1", &kept)) {
                let is_opened = matches!(error, Error::Rollback { source: RollbackError::Opened, .. });
                assert!(is_opened || matches!(error, Error::Copying { .. }), "{error:?}");
            }
            store.end_rollback(&id(&kept)).unwrap();
            store.remove_snapshot(&id(&kept)).unwrap();
        }
        opens.join().unwrap();
    });
}
