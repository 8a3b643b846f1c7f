//! Devices in use: detached, resized, listed. Runs as root in a machine of its own.
#![deny(unsafe_code)]

mod image;
#[path = "detach/sys.rs"]
#[expect(unsafe_code, reason = "XFS_IOC_FSGROWFSDATA has no wrapper in nix")]
mod sys;

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;

use image::{Image, MIB, alone, alone_with, attached, bytes, detached, ext4, formatted, open, sysfs, temporary};
use ktest_support::{Mount, Tmpfs, run};
use loopdev::{BackingError, Config, Control, Detach, DetachError, Device, ResizeError, Status, StatusError};
use nix::errno::Errno;
use nix::sys::statvfs::statvfs;

/// Linux 6.10 and newer drop the device's page cache when it is detached, with "lost async page write" in the log. The
/// number can be used again at once.
#[test]
fn what_was_written_to_a_device_is_in_its_file_after_a_detach() {
    let (_alone, image) = alone_with(MIB);
    for round in 1_u8..20 {
        let device = image.attach(&Config::default());
        // `device` stays open, so that closing this descriptor writes nothing.
        open(&device).write_all_at(&[round; 512], 0).unwrap();
        assert_eq!(device.detach(&image.file).unwrap(), Detach::Detached);
        assert_eq!(attached(image.backing()), []);
        let mut found = [0; 512];
        image.file.read_exact_at(&mut found, 0).unwrap();
        assert_eq!(found, [round; 512]);
    }
}

#[test]
fn a_failed_write_is_reported_once_then_the_device_detaches() {
    let _alone = alone();
    let small = Mount::new("tmpfs", Path::new("tmpfs"), "size=1m");
    let image = Image::within(small.path(), 8 * MIB);
    let device = image.attach(&Config::default());
    open(&device).write_all_at(&[1; 4 << 20], 0).unwrap();
    let failed = device.detach(&image.file);
    assert!(matches!(&failed, Err(DetachError::Unwritten { source: Errno::EIO | Errno::ENOSPC, .. })), "{failed:?}");
    let [seen] = attached(image.backing())[..] else { panic!("it is still attached") };
    assert_eq!(Device::open(seen.number.path()).unwrap().detach(&image.file).unwrap(), Detach::Detached);
}

#[test]
fn the_device_of_another_file_is_left_alone() {
    let _alone = alone();
    let [mine, theirs] = [Image::new(MIB), Image::new(MIB)];
    let device = theirs.attach(&Config::default());
    match Device::open(device.path()).unwrap().detach(&mine.file) {
        Err(DetachError::OtherBacking { number, attached, named }) => {
            assert_eq!((number, attached, named), (device.number(), theirs.backing(), mine.backing()));
        }
        other => panic!("it is another file's device: {other:?}"),
    }
    assert!(!device.config().unwrap().autoclear, "not even marked");
    assert_eq!(device.detach(&theirs.file).unwrap(), Detach::Detached);
}

#[test]
fn the_same_inode_of_another_file_system_is_another_file() {
    let _alone = alone();
    let [here, there] = [Tmpfs::mount(), Tmpfs::mount()];
    let [mine, theirs] = [Image::within(here.path(), MIB), Image::within(there.path(), MIB)];
    let inode = |image: &Image| image.file.metadata().unwrap().ino();
    assert_eq!(inode(&mine), inode(&theirs), "as tmpfs numbers its files");
    let device = theirs.attach(&temporary());
    let refused = Device::open(device.path()).unwrap().detach(&mine.file);
    assert!(matches!(refused, Err(DetachError::OtherBacking { .. })), "{refused:?}");
}

#[test]
fn an_unsuitable_descriptor_detaches_nothing() {
    let (_alone, image) = alone_with(MIB);
    let device = image.attach(&temporary());
    let refused = Device::open(device.path()).unwrap().detach(File::open("/").unwrap());
    assert!(matches!(refused, Err(DetachError::Backing(BackingError::NotAFile))), "{refused:?}");
    assert_eq!(attached(image.backing()).len(), 1);
}

#[test]
fn a_stale_node_does_not_detach_the_next_file() {
    let _alone = alone();
    let [old, new] = [Image::new(MIB), Image::new(MIB)];
    let device = old.attach(&Config::default());
    let stale = device.path();
    assert_eq!(device.detach(&old.file).unwrap(), Detach::Detached);
    let next = new.attach(&temporary());
    assert_eq!(next.path(), stale, "the first free number");
    let refused = Device::open(&stale).unwrap().detach(&old.file);
    assert!(matches!(refused, Err(DetachError::OtherBacking { .. })), "{refused:?}");
    assert_eq!(next.backing().unwrap(), new.backing());
}

#[test]
fn a_device_without_a_backing_file_says_so() {
    let (_alone, image) = alone_with(MIB);
    let device = image.attach(&Config::default());
    let number = device.number();
    assert_eq!(device.detach(&image.file).unwrap(), Detach::Detached);
    let found = Device::open(number.path()).unwrap();
    let is_free = |error: StatusError| matches!(error, StatusError::NotAttached { number: found } if found == number);
    assert!(found.status().is_err_and(is_free));
    assert!(found.backing().is_err_and(is_free));
    assert!(found.config().is_err_and(is_free));
    assert!(matches!(found.refresh_size(), Err(ResizeError::Detached { number: found }) if found == number));
    assert!(matches!(found.detach(&image.file), Err(DetachError::NotAttached { number: found }) if found == number));
}

#[test]
fn a_busy_device_is_detached_by_its_last_user() {
    let (_alone, image) = alone_with(MIB);
    let device = image.attach(&Config::default());
    let user = open(&device);
    assert_eq!(device.detach(&image.file).unwrap(), Detach::Deferred);
    user.write_all_at(b"still in use", 0).unwrap();
    let [seen] = attached(image.backing())[..] else { panic!("it is one device") };
    assert!(seen.status.config.autoclear, "the kernel notes it there");
    drop(user);
    detached(image.backing());
}

#[test]
fn a_mounted_device_is_detached_when_it_is_unmounted() {
    let (_alone, image) = alone_with(16 * MIB);
    let device = image.attach(&Config::default());
    let mounted = ext4(&device.path());
    assert_eq!(device.detach(&image.file).unwrap(), Detach::Deferred);
    fs::write(mounted.path().join("file"), "still mounted").unwrap();
    drop(mounted);
    detached(image.backing());
}

#[test]
fn an_open_device_keeps_its_file() {
    let _alone = alone();
    let [image, other] = [Image::new(MIB), Image::new(MIB)];
    let held = image.attach(&Config::default());
    for _ in 0..3 {
        assert_eq!(Device::open(held.path()).unwrap().detach(&image.file).unwrap(), Detach::Deferred);
        run(Command::new("losetup").arg("--detach").arg(held.path()));
        assert_ne!(other.attach(&temporary()).number(), held.number());
        assert_eq!(held.backing().unwrap(), image.backing());
    }
    assert_eq!(held.detach(&image.file).unwrap(), Detach::Detached);
    detached(image.backing());
}

#[test]
fn a_detach_by_another_process_is_revoked() {
    let (_alone, image) = alone_with(4 * MIB);
    let config = Config { offset: bytes(MIB), size_limit: Some(bytes(2 * MIB)), ..Config::default() };
    let device = image.attach(&config);
    assert!(!device.is_autoclear().unwrap());
    let user = open(&device);
    assert_eq!(Device::open(device.path()).unwrap().detach(&image.file).unwrap(), Detach::Deferred);
    assert!(device.is_autoclear().unwrap());
    let pending = device.status().unwrap();
    assert!(device.clear_autoclear().unwrap());
    assert!(!device.clear_autoclear().unwrap(), "nothing is pending");
    let revoked = Status { config: Config { autoclear: false, ..pending.config }, ..pending };
    assert_eq!(device.status().unwrap(), revoked, "nothing else has changed");

    let path = device.path();
    drop((device, user));
    assert_eq!(attached(image.backing()).len(), 1);
    assert_eq!(Device::open(path).unwrap().detach(&image.file).unwrap(), Detach::Detached);
}

#[test]
fn autoclear_detaches_with_the_last_user() {
    let (_alone, image) = alone_with(MIB);
    let device = image.attach(&temporary());
    let user = open(&device);
    drop(device);
    assert_eq!(attached(image.backing()).len(), 1);
    drop(user);
    detached(image.backing());
}

#[test]
fn a_device_that_is_open_grows_and_shrinks_with_its_file() {
    let (_alone, image) = alone_with(MIB);
    let device = image.attach(&temporary());
    let user = open(&device);
    for size in [MIB, 3 * MIB, 3 * MIB + 700, 2 * MIB, 0, MIB] {
        image.file.set_len(size).unwrap();
        let expected = bytes(size / 512 * 512);
        assert_eq!(device.refresh_size().unwrap(), expected);
        assert_eq!(device.refresh_size().unwrap(), expected, "idempotent");
        assert_eq!(device.status().unwrap().size, expected);
        assert_eq!(sysfs(&device, "size"), (size / 512).to_string());
    }
    image.file.set_len(2 * MIB).unwrap();
    assert_eq!(device.status().unwrap().size, bytes(MIB), "the kernel does not look by itself");
    assert!(user.write_at(b"beyond", MIB).is_err());
    device.refresh_size().unwrap();
    user.write_all_at(b"within", MIB).unwrap();
}

#[test]
fn offset_and_size_limit_count_when_a_file_grows() {
    let (_alone, image) = alone_with(2 * MIB);
    let [offset, limit] = [bytes(MIB), bytes(3 * MIB)];
    let device = image.attach(&Config { offset, size_limit: Some(limit), ..temporary() });
    assert_eq!(device.status().unwrap().size, bytes(MIB));
    for (size, expected) in [(3 * MIB, 2 * MIB), (10 * MIB, 3 * MIB), (MIB, 0)] {
        image.file.set_len(size).unwrap();
        assert_eq!(device.refresh_size().unwrap(), bytes(expected));
    }
}

#[test]
fn a_read_only_device_grows_too() {
    let (_alone, image) = alone_with(MIB);
    let device = image.attach(&Config { read_only: true, ..temporary() });
    image.file.set_len(2 * MIB).unwrap();
    assert_eq!(device.refresh_size().unwrap(), bytes(2 * MIB));
    assert!(device.config().unwrap().read_only);
}

#[test]
fn a_mounted_ext4_of_small_blocks_survives_a_new_size() {
    let _alone = alone();
    // The kernel once changed the block size below the file system.
    let image = Image::new(16 * MIB);
    let device = image.attach(&temporary());
    let mounted = formatted(&device.path(), "ext4", &["mke2fs", "-q", "-t", "ext4", "-b", "1024"]);
    fs::write(mounted.path().join("before"), "a").unwrap();
    assert_eq!(device.refresh_size().unwrap(), bytes(16 * MIB));
    image.file.set_len(32 * MIB).unwrap();
    assert_eq!(device.refresh_size().unwrap(), bytes(32 * MIB));
    fs::write(mounted.path().join("after"), "b").unwrap();
    assert_eq!(fs::read_dir(mounted.path()).unwrap().count(), 3, "with lost+found");
    assert_eq!(fs::read(mounted.path().join("before")).unwrap(), b"a");
}

#[test]
fn a_mounted_xfs_grows_into_the_new_size() {
    let _alone = alone();
    const BEFORE: u64 = 320 * MIB;
    const AFTER: u64 = 512 * MIB;
    let image = Image::new(BEFORE);
    let device = image.attach(&temporary());
    let mounted = formatted(&device.path(), "xfs", &["mkfs.xfs", "-q", "-K"]);
    fs::write(mounted.path().join("file"), "kept").unwrap();
    let size = || statvfs(mounted.path()).unwrap();
    let before = size();

    image.file.set_len(AFTER).unwrap();
    assert_eq!(device.refresh_size().unwrap(), bytes(AFTER));
    let root = File::open(mounted.path()).unwrap();
    sys::grow(&root, AFTER / before.block_size()).unwrap();
    let more = (size().blocks() - before.blocks()) * before.fragment_size();
    assert!(more > (AFTER - BEFORE) * 9 / 10, "{more} bytes more");
    assert_eq!(fs::read(mounted.path().join("file")).unwrap(), b"kept");
}

#[test]
fn the_list_shows_each_attached_device_and_no_other() {
    let _alone = alone();
    let images: Vec<_> = (1..=5).map(|mib| Image::new(mib * MIB)).collect();
    let detached = Image::new(MIB);
    let devices: Vec<_> = images.iter().map(|image| image.attach(&temporary())).collect();
    assert_eq!(detached.attach(&Config::default()).detach(&detached.file).unwrap(), Detach::Detached);
    let list = loopdev::list().unwrap();
    assert!(list.is_sorted_by_key(|device| device.number));
    for (device, image) in devices.iter().zip(&images) {
        let [found] = attached(image.backing())[..] else { panic!("it is one device") };
        assert_eq!((found.number, found.dev), (device.number(), device.dev()));
        assert_eq!(found.status, device.status().unwrap());
        assert!(list.contains(&found));
    }
    assert!(!list.iter().any(|device| device.status.backing == detached.backing()));
}

#[test]
fn what_the_list_shows_can_be_detached() {
    let (_alone, image) = alone_with(MIB);
    let twice = [image.attach(&Config::default()), image.attach(&Config::default())];
    drop(twice);
    let orphans = attached(image.backing());
    assert_eq!(orphans.len(), 2, "a file can be attached twice");
    for orphan in orphans {
        let device = Device::open(orphan.number.path()).unwrap();
        assert_eq!(device.detach_from(orphan.status.backing).unwrap(), Detach::Detached);
    }
    assert_eq!(attached(image.backing()), []);
}

#[test]
fn the_list_holds_while_devices_come_and_go() {
    let (_alone, image) = alone_with(MIB);
    let kept = image.attach(&temporary());
    std::thread::scope(|scope| {
        let coming = scope.spawn(|| {
            let other = Image::new(MIB);
            for _ in 0..100 {
                drop(Control::open().unwrap().attach(&other.file, &temporary()).unwrap());
            }
        });
        while !coming.is_finished() {
            let [found] = attached(image.backing())[..] else { panic!("it is there all the time") };
            assert_eq!(found.number, kept.number());
        }
    });
}
