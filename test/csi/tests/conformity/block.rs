//! Block volumes: the device at the target, and the devices behind it.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::thread;
use std::time::{Duration, Instant};

use conformity::{Kind, SIZE, Volume, hold, hold_in_turn, read_only};
use loopdev::{Backing, Config, Control, Detach, Device};
use units::Bytes;

/// Deadline of a detach. It covers a list of all devices in another run.
const DETACH_LIMIT: Duration = Duration::from_secs(10);

fn backing(volume: &Volume) -> Backing {
    Backing::of(File::open(volume.image()).expect("the image")).expect("a file")
}

/// Waits until no device is attached to a volume's image. A concurrent run that lists all devices may have a device
/// open when it is detached. The kernel then detaches the device when it is closed (loop(4), `LOOP_CLR_FD`).
fn assert_detached(volume: &Volume) {
    let start = Instant::now();
    while !volume.devices().is_empty() {
        assert!(start.elapsed() < DETACH_LIMIT, "{:?} of {volume:?}", volume.devices());
        thread::yield_now();
    }
}

/// Specification: NodePublishVolumeRequest; the device is at the target. The device has the bytes of the image, past
/// the page cache, and the size of the volume.
#[test]
fn the_device_is_the_volumes_image() {
    hold(async |case| {
        let (volume, target) = case.published(Kind::Block).await;
        let [device] = volume.devices()[..] else { panic!("devices of {volume:?}: {:?}", volume.devices()) };
        assert_eq!(device.status.size, SIZE);
        assert!(device.status.config.direct_io, "{device:?}");
        assert!(!device.status.config.partscan && device.status.config.offset == Bytes::ZERO, "{device:?}");

        let block = [0xa5; 4096];
        let last = SIZE.get() - 4096;
        let file = File::options().write(true).open(&target).expect("open");
        file.write_all_at(&block, last).and_then(|()| file.sync_all()).expect("write");
        assert!(file.write_all_at(&block, SIZE.get()).is_err(), "there is no more");
        drop(file);
        let mut found = [0; 4096];
        File::open(volume.image()).and_then(|image| image.read_exact_at(&mut found, last)).expect("read");
        assert_eq!(found, block);
        case.withdraw(&volume, &target).await;
        assert_eq!(volume.devices(), []);
    });
}

/// All writable targets share one device, and all read-only targets share another. The last unpublish detaches it.
#[test]
fn targets_share_a_device() {
    hold(async |case| {
        let volume = case.volume(Kind::Block);
        let targets = ["a", "b", "c", "d"].map(|pod| case.target(&volume, pod));
        for (number, target) in targets.iter().enumerate() {
            let message = case.publishing(&volume, target);
            case.publish(if number < 2 { message } else { read_only(message) }).await.expect("publish");
        }
        let mut sides: Vec<_> = volume.devices().iter().map(|device| device.status.config.read_only).collect();
        sides.sort_unstable();
        assert_eq!(sides, [false, true]);
        for (target, left) in targets.iter().zip([2, 1, 1, 0]) {
            case.withdraw(&volume, target).await;
            assert_eq!(volume.devices().len(), left, "{}", target.display());
        }
    });
}

/// The unpublish for one pod does not affect the device of another pod.
#[test]
fn one_target_goes_and_the_other_still_does_io() {
    hold(async |case| {
        let volume = case.volume(Kind::Block);
        let goes = case.publish_for(&volume, "goes").await;
        let stays = case.publish_for(&volume, "stays").await;
        let device = File::options().read(true).write(true).open(&stays).expect("open");
        case.withdraw(&volume, &goes).await;
        let (written, mut read) = ([7; 4096], [0; 4096]);
        device.write_all_at(&written, 8192).and_then(|()| device.sync_all()).expect("write");
        device.read_exact_at(&mut read, 8192).expect("read");
        assert_eq!(read, written);
        drop(device);
        case.assert_published(&volume, &stays, false);
        case.withdraw(&volume, &stays).await;
    });
}

/// Any process that can open the device may detach it (loop(4), `LOOP_CLR_FD`). The plugin has the device open, so that
/// it stays attached.
#[test]
fn a_device_that_another_process_detaches_stays() {
    hold(async |case| {
        let (volume, target) = case.published(Kind::Block).await;
        for found in volume.devices() {
            let device = Device::open(found.number.path()).expect("the device");
            assert_eq!(device.detach_from(backing(&volume)).expect("detach"), Detach::Deferred);
        }
        case.assert_published(&volume, &target, false);
        case.withdraw(&volume, &target).await;
        assert_detached(&volume);
    });
}

/// A plugin that was killed after the attach leaves a device without a target. The next plugin cannot detach the device
/// while a process has it open.
#[test]
fn a_device_of_an_earlier_plugin_is_used_and_detached() {
    hold_in_turn(async |case| {
        let volume = case.volume(Kind::Block);
        let image = File::options().read(true).write(true).open(volume.image()).expect("the image");
        let config = Config { direct_io: true, ..Config::default() };
        let left = Control::open().expect("control").attach(&image, &config).expect("attach");
        drop(image);
        case.node().restart().await;
        let target = case.publish_for(&volume, "pod").await;
        case.assert_published(&volume, &target, false);
        let [device] = volume.devices()[..] else { panic!("devices of {volume:?}: {:?}", volume.devices()) };
        assert_eq!(device.number, left.number());
        drop(left);
        case.withdraw(&volume, &target).await;
        assert_eq!(volume.devices(), []);
    });
}

/// The plugin created the file at the target and was killed, or the machine restarted.
#[test]
fn a_file_that_an_earlier_call_left_is_used() {
    hold(async |case| {
        let (volume, target) = case.place(Kind::Block);
        File::create_new(&target).expect("a file");
        case.publish(case.publishing(&volume, &target)).await.expect("publish");
        case.assert_published(&volume, &target, false);
        case.withdraw(&volume, &target).await;
    });
}

/// The plugin detaches only devices that are attached to the volume's image.
#[test]
fn a_device_of_another_file_stays() {
    hold(async |case| {
        let (volume, target) = case.published(Kind::Block).await;
        let other = case.pod("pod").join("other");
        let file = File::options().read(true).write(true).create_new(true).open(&other).expect("a file");
        file.set_len(1 << 20).expect("a size");
        let device = Control::open().expect("control").attach(&file, &Config::default()).expect("attach");
        case.withdraw(&volume, &target).await;
        assert_eq!(device.backing().expect("it is attached"), Backing::of(&file).expect("a file"));
        let _ = device.detach(&file).expect("detach");
        fs::remove_file(other).expect("remove");
    });
}
