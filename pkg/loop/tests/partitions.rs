//! Partitions, and the parameters `max_part` and `max_loop`. The tests load the driver again with these parameters, and
//! so run one by one. Runs as root in a machine of its own.

mod image;

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, TryRecvError};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use image::{Image, MIB, attached, detached, held, node, sysfs, temporary};
use ktest_support::{Tmpfs, eventually};
use loopdev::{Config, Control, Detach, Device, DeviceError, DeviceNumber, Numbers, OpenError, Removal};
use nix::errno::Errno;
use nix::kmod::{DeleteModuleFlags, ModuleInitFlags, delete_module, finit_module};
use nix::sys::stat::{Mode, SFlag, makedev, mknod};

/// The driver, loaded with parameters, for one test at a time.
struct Driver {
    _alone: MutexGuard<'static, ()>,
}

impl Driver {
    fn load(parameters: &std::ffi::CStr) -> Self {
        let driver = Self::unload();
        let module = File::open("/modules/loop.ko").unwrap();
        finit_module(&module, parameters, ModuleInitFlags::empty()).unwrap();
        driver
    }

    fn unload() -> Self {
        static ALONE: Mutex<()> = Mutex::new(());
        let driver = Self { _alone: ALONE.lock().unwrap_or_else(PoisonError::into_inner) };
        eventually("the driver to be unused", || match delete_module(c"loop", DeleteModuleFlags::O_NONBLOCK) {
            Ok(()) | Err(Errno::ENOENT) => true,
            Err(Errno::EWOULDBLOCK | Errno::EBUSY) => false,
            Err(other) => panic!("cannot unload the driver: {other}"),
        });
        driver
    }
}

/// Creates two partitions of 1 MiB.
fn partition_with_sfdisk(disk: &Path) {
    let sfdisk = Command::new("sfdisk").arg("--quiet").arg(disk).stdin(Stdio::piped()).spawn();
    let mut sfdisk = sfdisk.unwrap();
    sfdisk.stdin.take().unwrap().write_all(b"label: gpt\nsize=1MiB\nsize=1MiB\n").unwrap();
    assert!(sfdisk.wait().unwrap().success());
}

fn partitioned() -> Image {
    let image = Image::new(8 * MIB);
    partition_with_sfdisk(&image.path);
    image
}

fn partition(device: &Device, number: u32) -> PathBuf {
    PathBuf::from(format!("{}p{number}", device.path().display()))
}

fn is_not_a_loop_device(path: &Path) {
    let opened = Device::open(path);
    assert!(matches!(&opened, Err(DeviceError::NotLoopDevice { path: found }) if found == path), "{opened:?}");
}

#[test]
fn partitions_appear_if_they_are_asked_for_and_only_then() {
    let _driver = Driver::load(c"");
    let image = partitioned();
    for partscan in [true, false, true] {
        let device = image.attach(&Config { partscan, ..temporary() });
        assert_eq!(device.config().unwrap().partscan, partscan);
        for number in [1, 2] {
            assert_eq!(partition(&device, number).exists(), partscan);
        }
        assert!(!partition(&device, 3).exists());
    }
}

#[test]
fn a_partition_is_a_part_of_the_file() {
    let _driver = Driver::load(c"");
    let image = partitioned();
    let device = image.attach(&Config { partscan: true, ..temporary() });
    let start: u64 = sysfs(&device, &format!("{}p2/start", device.number())).parse().unwrap();
    let second = File::options().write(true).open(partition(&device, 2)).unwrap();
    second.write_all_at(b"in the second", 0).unwrap();
    second.sync_all().unwrap();
    let mut found = [0; 13];
    image.file.read_exact_at(&mut found, start * 512).unwrap();
    assert_eq!(&found, b"in the second");
}

/// Waits until no partition of a former file is left: the kernel detaches the file first, and then reads the table
/// again.
fn gone(partition: &Path) {
    eventually("the partition of a former file to be gone", || matches!(partition.try_exists(), Ok(false)));
}

#[test]
fn a_partition_is_not_a_loop_device() {
    let _driver = Driver::load(c"");
    let image = partitioned();
    let device = image.attach(&Config { partscan: true, ..temporary() });
    let path = partition(&device, 1);
    assert_eq!(node(&path).major, 259, "of the block layer, not of the driver");
    is_not_a_loop_device(&path);
}

#[test]
fn a_partition_in_use_keeps_the_device_attached() {
    let _driver = Driver::load(c"");
    let image = partitioned();
    let device = image.attach(&Config { partscan: true, ..Config::default() });
    let path = partition(&device, 1);
    let user = File::open(&path).unwrap();
    assert_eq!(device.detach(&image.file).unwrap(), Detach::Deferred);
    assert_eq!(attached(image.backing()).len(), 1);
    drop(user);
    detached(image.backing());
    gone(&path);
}

#[test]
fn a_device_without_partscan_can_be_partitioned() {
    let _driver = Driver::load(c"");
    let image = Image::new(8 * MIB);
    let device = image.attach(&temporary());
    // The kernel does not read the table again for sfdisk, but sfdisk has written it to the file.
    partition_with_sfdisk(&device.path());
    assert!(!partition(&device, 1).exists(), "they were not requested");
    assert_eq!(device.detach(&image.file).unwrap(), Detach::Detached);
    let device = image.attach(&Config { partscan: true, ..temporary() });
    assert!(partition(&device, 2).exists());
}

/// While a partition is open, the kernel does not read the table again. A partition may be missing after an attach, or
/// be left behind, empty, by a detach (blktests loop/010), until the next file is attached.
#[test]
fn opening_partitions_during_a_detach_does_not_stop_others() {
    let _driver = Driver::load(c"");
    let image = partitioned();
    let attach = || image.attach(&Config { partscan: true, ..temporary() });
    thread::scope(|scope| {
        let (going_on, stopped) = mpsc::channel::<()>();
        scope.spawn(move || {
            // The loop ends when the other end of the channel is dropped.
            while stopped.try_recv() == Err(TryRecvError::Empty) {
                let _ = File::open("/dev/loop0p1");
                thread::yield_now();
            }
        });
        let _going_on = going_on;
        for _ in 0..30 {
            // The detach is deferred if the other thread has a partition open.
            let _ = attach().detach(&image.file).unwrap();
            detached(image.backing());
        }
    });
    let device = attach();
    let path = partition(&device, 1);
    eventually("the partition", || path.exists());
    assert_eq!(device.detach(&image.file).unwrap(), Detach::Detached);
    gone(&path);
}

#[test]
fn with_max_part_numbers_are_the_kernels() {
    let _driver = Driver::load(c"max_part=15");
    let images = [partitioned(), partitioned(), partitioned()];
    let devices: Vec<_> = images.iter().map(|image| image.attach(&temporary())).collect();
    for (device, image) in devices.iter().zip(&images) {
        let expected = DeviceNumber { major: 7, minor: 16 * device.number().get() };
        assert_eq!((device.dev(), node(&device.path())), (expected, expected));
        assert_eq!(sysfs(device, "dev"), expected.to_string());
        assert_eq!(Device::open(device.path()).unwrap().number(), device.number());
        let [seen] = attached(image.backing())[..] else { panic!("it is one device") };
        assert_eq!((seen.number, seen.dev), (device.number(), expected));
    }
    assert!(devices.iter().any(|device| device.number().get() > 0));
}

#[test]
fn with_max_part_partitions_always_appear_and_are_read_back() {
    let _driver = Driver::load(c"max_part=15");
    let image = partitioned();
    let device = image.attach(&Config { partscan: false, ..temporary() });
    assert!(device.config().unwrap().partscan, "the driver turns it on");
    let path = partition(&device, 2);
    let expected = DeviceNumber { major: 7, minor: device.dev().minor + 2 };
    assert_eq!(node(&path), expected, "of the driver, too");
    // Ioctls of a partition act on the whole device, which must not be detached through the partition.
    is_not_a_loop_device(&path);
}

#[test]
fn without_the_driver_there_is_no_control() {
    let driver = Driver::unload();
    assert_eq!(Control::open().map(drop), Err(OpenError::NoDriver));
    assert_eq!(loopdev::list().unwrap(), []);
    drop(driver);
    // The driver stays loaded until the next test unloads it.
    let _driver = Driver::load(c"");
    assert!(Control::open().is_ok());
}

#[test]
fn a_node_without_a_device_is_distinguished() {
    // Opening a node creates its device, but only for numbers below this limit.
    let _driver = Driver::load(c"max_loop=2");
    let tmp = Tmpfs::mount();
    let path = tmp.path().join("node");
    mknod(&path, SFlag::S_IFBLK, Mode::S_IRUSR | Mode::S_IWUSR, makedev(7, 2)).unwrap();
    let before = held();
    match Device::open(&path) {
        Err(DeviceError::Gone { path: found }) => assert_eq!(found, path),
        other => panic!("there is no such device: {other:?}"),
    }
    assert_eq!(held(), before);
}

/// A container keeps its node of a device that was removed.
#[test]
fn with_max_loop_a_node_of_a_removed_device_creates_none() {
    let tmp = Tmpfs::mount();
    for (parameters, recreated) in [(c"max_loop=8", false), (c"", true)] {
        let _driver = Driver::load(parameters);
        let image = Image::new(MIB);
        let control = Control::open().unwrap();
        let device = control.attach_next(&Numbers::after_existing().unwrap(), &image.file, &Config::default()).unwrap();
        let (number, dev) = (device.number(), device.dev());
        let path = tmp.path().join(format!("node-{recreated}"));
        mknod(&path, SFlag::S_IFBLK, Mode::S_IRUSR, makedev(dev.major.into(), dev.minor.into())).unwrap();
        assert_eq!(device.detach(&image.file).unwrap(), Detach::Detached);
        assert_eq!(control.remove(number).unwrap(), Removal::Removed);

        assert_eq!(File::open(&path).is_ok(), recreated, "{parameters:?}");
        assert_eq!(Path::new("/sys/block").join(number.to_string()).exists(), recreated, "{parameters:?}");
    }
}
