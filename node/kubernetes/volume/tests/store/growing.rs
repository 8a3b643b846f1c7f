//! Expansion of volumes.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};

use dir::Ensured;
use fsquota::Limits;
use ktest_support::unmount;
use loopdev::{Config, Control, Detach};
use nix::fcntl::{FallocateFlags, fallocate};
use nix::mount::{MsFlags, mount};
use units::{Bytes, Inodes};
use volume::{Access, Allocation, Error, LiveVolume, Step, Volumes as _};

use crate::node::{Node, SIZE, disk, files, id, only_byte};

const LARGER: Bytes = Bytes::new(40 << 20);

#[test]
fn a_filesystem_volume_grows_with_its_files_and_keeps_its_data() {
    let (node, id, _) = Node::with_volume(&files("pvc-1"));
    fs::write(node.path("live", &id).join("kept"), b"x").unwrap();
    let requested = Bytes::new(LARGER.get() - 100); // rounded up
    let Ensured::Created(record) = node.store.expand(&id, requested).unwrap() else { panic!("unchanged") };
    assert_eq!(record.size, LARGER);
    let wanted = Limits { bytes: Some(LARGER), inodes: Some(Inodes::new(128 * 5 / 2)) };
    assert_eq!(node.limits(record.project), wanted);
    assert_eq!(node.store.space().unwrap().reserved, record.reserved());
    assert_eq!(node.store.open_volume(&id).unwrap().size(), LARGER);
    for size in [LARGER, SIZE, Bytes::new(1)] {
        assert_eq!(node.store.expand(&id, size).unwrap(), Ensured::Unchanged(record.clone()));
    }
    let node = node.restarted();
    assert_eq!(node.limits(record.project), wanted);
    assert_eq!(fs::read(node.path("live", &id).join("kept")).unwrap(), b"x");
}

/// Block volumes have no such check, because their images limit them.
#[test]
fn changed_limits_of_filesystem_volumes_are_found() {
    let (node, _, data) = Node::with_volume(&files("pvc-1"));
    let (_, image) = node.made(&disk("pvc-2", Allocation::Thin));
    let changed =
        |node: &Node| node.store.usage().unwrap().into_iter().map(|volume| volume.changed).collect::<Vec<_>>();
    assert_eq!(changed(&node), [None, None]);
    let other = Limits { bytes: Some(LARGER), inodes: Some(Inodes::new(7)) };
    for record in [&data, &image] {
        fsquota::set_limits(File::open(node.disk.path()).unwrap(), record.project, other).unwrap();
    }
    assert_eq!(changed(&node), [Some(other), None]);
    let node = node.restarted();
    assert_eq!(changed(&node), [None, None]);
}

#[test]
fn a_full_filesystem_volume_goes_on_when_it_grew() {
    let (node, id, _) = Node::with_volume(&files("pvc-1"));
    let mut file = File::create(node.path("live", &id).join("data")).unwrap();
    let block = vec![1; 1 << 20];
    while file.write_all(&block).and_then(|()| file.sync_data()).is_ok() {}
    node.store.expand(&id, LARGER).unwrap();
    (0..23).for_each(|_| file.write_all(&block).unwrap());
    file.sync_data().unwrap();
}

#[test]
fn an_image_grows_while_it_is_open_and_the_new_end_is_zeros() {
    let node = Node::new();
    for (name, allocation) in [("pvc-1", Allocation::Thick), ("pvc-2", Allocation::Thin)] {
        let (id, _) = node.made(&disk(name, allocation));
        let image = File::options().read(true).write(true).open(node.image(&id)).unwrap();
        image.write_all_at(b"end", SIZE.get() - 3).unwrap();
        let Ensured::Created(record) = node.store.expand(&id, LARGER).unwrap() else { panic!("unchanged") };
        let stat = image.metadata().unwrap();
        assert_eq!((record.size, stat.len()), (LARGER, LARGER.get()));
        if allocation == Allocation::Thick {
            assert_eq!(stat.blocks() * 512, LARGER.get());
        }
        let mut around = [1; 6];
        image.read_exact_at(&mut around, SIZE.get() - 3).unwrap();
        assert_eq!(&around, b"end\0\0\0");
        image.write_all_at(b"x", LARGER.get() - 1).unwrap();
        assert_eq!(node.store.expand(&id, LARGER).unwrap(), Ensured::Unchanged(record));
    }
}

#[test]
fn an_expansion_that_does_not_fit_changes_nothing() {
    let node = Node::new();
    for request in [files("pvc-1"), disk("pvc-2", Allocation::Thick), disk("pvc-3", Allocation::Thin)] {
        let (id, record) = node.made(&request);
        let (space, limits) = (node.store.space().unwrap(), node.limits(record.project));
        let refused = node.store.expand(&id, space.size).unwrap_err();
        assert!(matches!(refused, Error::Full { .. }) && refused.is_infeasible(), "{refused:?}");
        for size in [u64::MAX, 1 << 63, u64::MAX - 5000] {
            let refused = node.store.expand(&id, Bytes::new(size)).unwrap_err();
            assert!(matches!(refused, Error::TooLarge { .. }) && refused.is_infeasible(), "{refused:?}");
        }
        assert_eq!((node.store.space().unwrap(), node.limits(record.project)), (space, limits));
        assert_eq!(node.store.records().unwrap().readable[&id], record);
        // A smaller expansion succeeds then.
        assert_eq!(node.store.expand(&id, LARGER).unwrap().into_inner().size, LARGER);
    }
    assert!(matches!(node.store.expand(&id("pvc-9"), LARGER), Err(Error::Unknown { .. })));
}

#[test]
fn an_image_for_which_the_disk_has_no_blocks_takes_none_behind_its_end() {
    let (node, id, record) = Node::with_volume(&disk("pvc-1", Allocation::Thick));
    let hog = node.hog(Bytes::new(60 << 20));
    let (space, limits) = (node.store.space().unwrap(), node.limits(record.project));
    let refused = node.store.expand(&id, Bytes::new(200 << 20)).unwrap_err();
    assert!(matches!(refused, Error::Full { .. }), "{refused:?}");
    let image = fs::metadata(node.image(&id)).unwrap();
    assert_eq!((image.len(), image.blocks() * 512), (SIZE.get(), SIZE.get()));
    assert_eq!((node.store.space().unwrap(), node.limits(record.project)), (space, limits));
    fs::remove_file(hog).unwrap();
    node.store.expand(&id, Bytes::new(200 << 20)).unwrap();
}

/// Regression: the expansion waited until the kubelet had refreshed the device, which no pod had.
#[test]
fn a_device_that_waits_for_its_last_close_is_not_attached() {
    let (node, id, _) = Node::with_volume(&disk("pvc-1", Allocation::Thick));
    let image = node.store.open_volume(&id).unwrap().image(Access::ReadWrite).unwrap();
    let device = Control::open().unwrap().attach(&image, &Config::default()).unwrap();
    let path = device.path();
    let other = File::open(&path).unwrap();
    assert_eq!(device.detach(&image).unwrap(), Detach::Deferred);
    node.store.expand(&id, LARGER).unwrap();
    assert_eq!(node.store.live_volume(&id).unwrap(), LiveVolume { size: LARGER, attached: false });
    let sizes: Vec<_> = loopdev::list().unwrap().into_iter().map(|device| device.status.size).collect();
    assert_eq!(sizes, [LARGER], "a publish may revoke the detach");
    // A pod has requested the detach of its own device.
    let target = node.disk.path().join("target");
    File::create(&target).unwrap();
    mount(Some(&path), &target, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
    assert!(node.store.live_volume(&id).unwrap().attached);
    unmount(&target).unwrap();
    drop((image, other));
    assert!(loopdev::list().unwrap().is_empty());
}

/// Regression: the reservation fell to that of the record, although the image had the size of the call before.
#[test]
fn a_failed_expansion_keeps_the_reservation_of_an_image_without_its_record() {
    let (node, id, record) = Node::with_volume(&disk("pvc-1", Allocation::Thick));
    let obstacle = node.path("records", &id).with_file_name(".pvc-1.new");
    fs::create_dir(&obstacle).unwrap();
    let refused = node.store.expand(&id, LARGER).unwrap_err();
    assert!(matches!(refused, Error::Act { step: Step::RaiseRecord(LARGER), .. }), "{refused:?}");
    fs::remove_dir(obstacle).unwrap();
    let kept = |node: &Node| {
        let image = fs::metadata(node.image(&id)).unwrap();
        (image.len(), node.store.space().unwrap().reserved, node.limits(record.project))
    };
    let (size, reserved, limits) = kept(&node);
    assert!(size == LARGER.get() && reserved > LARGER && limits.bytes > Some(LARGER), "{reserved} {limits:?}");
    let hog = node.hog(Bytes::new(60 << 20));
    let refused = node.store.expand(&id, Bytes::new(200 << 20)).unwrap_err();
    assert!(matches!(refused, Error::Full { .. }), "{refused:?}");
    assert_eq!(kept(&node), (size, reserved, limits));
    fs::remove_file(hog).unwrap();
    // A start gives the record the size of the image.
    assert_eq!(kept(&node.restarted()), (size, reserved, limits));
}

/// The power failed within the allocation of the new part: XFS had logged the blocks, but not yet the size.
#[test]
fn an_image_that_has_its_new_blocks_and_not_its_new_size_grows_within_its_limits() {
    let (node, id, record) = Node::with_volume(&disk("pvc-1", Allocation::Thick));
    let image = File::options().write(true).open(node.image(&id)).unwrap();
    image.write_all_at(b"end", SIZE.get() - 3).unwrap();
    // An expansion raises the limits first, and the next start sets the recorded limits again.
    fsquota::set_limits(&image, record.project, Limits::for_size(Bytes::GIB)).unwrap();
    let (end, more) = (SIZE.get().cast_signed(), LARGER.saturating_sub(SIZE).get().cast_signed());
    fallocate(&image, FallocateFlags::FALLOC_FL_KEEP_SIZE, end, more).unwrap();
    let stat = image.metadata().unwrap();
    assert_eq!((stat.len(), stat.blocks() * 512), (SIZE.get(), LARGER.get()));
    drop(image);
    let node = node.restarted();
    assert!(node.limits(record.project).bytes < Some(LARGER));
    let Ensured::Created(grown) = node.store.expand(&id, LARGER).unwrap() else { panic!("unchanged") };
    let stat = fs::metadata(node.image(&id)).unwrap();
    assert_eq!((grown.size, stat.len(), stat.blocks() * 512), (LARGER, LARGER.get(), LARGER.get()));
    let image = fs::read(node.image(&id)).unwrap();
    let (former, added) = image.split_at(SIZE.get() as usize);
    assert!(former.ends_with(b"end") && only_byte(added) == Some(0));
}

/// The process died after it had extended the image, and before it wrote the record.
#[test]
fn a_grown_image_is_never_cut_and_its_record_follows() {
    for restart in [true, false] {
        let (node, id, record) = Node::with_volume(&disk("pvc-1", Allocation::Thin));
        let image = File::options().write(true).open(node.image(&id)).unwrap();
        image.set_len(LARGER.get()).unwrap();
        drop(image);
        let node = if restart { node.restarted() } else { node };
        let grown = node.store.expand(&id, Bytes::new(20 << 20)).unwrap();
        // A start updates the record. Without a start, this call does.
        assert_eq!(matches!(grown, Ensured::Unchanged(_)), restart, "{grown:?}");
        let grown = grown.into_inner();
        assert_eq!((grown.size, fs::metadata(node.image(&id)).unwrap().len()), (LARGER, LARGER.get()));
        assert!(node.limits(record.project).bytes > Some(LARGER));
        assert_eq!(node.store.space().unwrap().reserved, grown.reserved());
        let node = node.restarted();
        assert_eq!(node.store.records().unwrap().readable[&id], grown);
    }
}
