//! Many devices at once, competition for one device, and cleanup after failures. Each test counts the devices of the
//! whole machine, so that the tests run one by one. Runs as root in a machine of its own.
#![deny(unsafe_code)]

mod image;
#[expect(unsafe_code, reason = "seccomp filters and LOOP_CTL_REMOVE have no wrapper in nix")]
mod syscall;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use image::{Image, MIB, alone, alone_with, bytes, held, node, open, sysfs, temporary};
use ktest_support::eventually_is;
use loopdev::{
    AttachError, Backing, BackingError, Config, Control, Detach, DetachError, Device, DeviceError, DeviceNumber,
    Number, Numbers, Removal,
};
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::libc::O_PATH;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use syscall::{Call, without};

/// The node of the device that the kernel returns as free, as long as nothing is attached to it.
fn free(control: &Control, image: &Image) -> PathBuf {
    let device = control.attach(&image.file, &Config::default()).unwrap();
    let path = device.path();
    assert_eq!(device.detach(&image.file).unwrap(), Detach::Detached);
    path
}

/// Checks that each file is attached to a device of its own.
fn assert_distinct(devices: &[(Backing, Device)]) {
    let numbers: BTreeSet<_> = devices.iter().map(|(_, device)| device.number()).collect();
    assert_eq!(numbers.len(), devices.len());
    for (backing, device) in devices {
        assert_eq!(device.backing().unwrap(), *backing, "{}", device.number());
    }
}

#[test]
fn thirty_two_at_once_get_a_device_each() {
    let _alone = alone();
    let before = held();
    let images: Vec<_> = (0..32).map(|_| Image::new(MIB)).collect();
    for _ in 0..3 {
        let start = Barrier::new(images.len());
        let attach = |image: &Image| {
            let control = Control::open().unwrap();
            start.wait();
            let device = control.attach(&image.file, &Config::default()).unwrap();
            // The detach is deferred if another thread has the device open for a moment.
            let _ = device.detach(&image.file).unwrap();
            (image.backing(), control.attach(&image.file, &Config::default()).unwrap())
        };
        let devices: Vec<_> = thread::scope(|scope| {
            let threads: Vec<_> = images.iter().map(|image| scope.spawn(|| attach(image))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_distinct(&devices);
        eventually_is(&32, || held().1 - before.1);
        for ((_, device), image) in devices.into_iter().zip(&images) {
            assert_eq!(device.detach(&image.file).unwrap(), Detach::Detached);
        }
    }
    drop(images);
    assert_eq!(held(), before);
}

#[test]
fn other_processes_at_once_do_not_get_the_same_device() {
    let _alone = alone();
    let before = held();
    let [ours, theirs] = [(); 2].map(|()| (0..12).map(|_| Image::new(MIB)).collect::<Vec<_>>());
    let foreign: Vec<_> = theirs
        .iter()
        .map(|image| {
            let mut losetup = Command::new("losetup");
            losetup.args(["--find", "--show"]).arg(&image.path).stdout(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    let control = Control::open().unwrap();
    let mut devices: Vec<_> = thread::scope(|scope| {
        let attach = |image: &Image| (image.backing(), control.attach(&image.file, &Config::default()).unwrap());
        let threads: Vec<_> = ours.iter().map(|image| scope.spawn(move || attach(image))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for (process, image) in foreign.into_iter().zip(&theirs) {
        let output = process.wait_with_output().unwrap();
        assert!(output.status.success());
        let path = String::from_utf8(output.stdout).unwrap();
        devices.push((image.backing(), Device::open(path.trim()).unwrap()));
    }
    assert_distinct(&devices);
    for (backing, device) in devices {
        assert_eq!(device.detach_from(backing).unwrap(), Detach::Detached);
    }
    drop((control, ours, theirs));
    assert_eq!(held(), before);
}

#[test]
fn there_can_be_more_than_256() {
    let _alone = alone();
    let before = held();
    let image = Image::new(MIB);
    let control = Control::open().unwrap();
    let devices: Vec<_> = (0..300)
        .map(|index| {
            // The offsets distinguish the devices.
            let config = Config { offset: bytes(index * 512), ..temporary() };
            control.attach(&image.file, &config).unwrap()
        })
        .collect();
    assert!(devices.iter().any(|device| device.number().get() >= 299));
    for device in &devices {
        assert_eq!(device.dev(), node(&device.path()), "{}", device.number());
        assert_eq!(device.dev().to_string(), sysfs(device, "dev"), "{}", device.number());
        assert_eq!(Device::open(device.path()).unwrap().number(), device.number());
    }
    let list = loopdev::list().unwrap();
    assert_eq!(list.len(), before.1 + 300);
    let offsets: BTreeSet<_> = list.iter().map(|device| device.status.config.offset).collect();
    assert_eq!(offsets, (0..300).map(|index| bytes(index * 512)).collect());
    drop((devices, image, control));
    eventually_is(&before, held);
    assert!(Path::new("/sys/block/loop299").exists(), "the kernel keeps the devices themselves");
    assert_eq!(loopdev::list().unwrap().len(), before.1);
}

#[test]
fn what_is_refused_leaves_nothing_behind() {
    let (_alone, image) = alone_with(MIB);
    let control = Control::open().unwrap();
    let reading = File::open(&image.path).unwrap();
    let path = File::options().read(true).custom_flags(O_PATH).open(&image.path).unwrap();
    let directory = File::open("/tmp").unwrap();
    let (pipe, _other_end) = io::pipe().unwrap();
    // A device in use, so that the test detects a wrong detach.
    let other = Image::new(MIB);
    let device = other.attach(&temporary());
    let before = held();
    let no_size = Config { size_limit: Some(bytes(0)), ..temporary() };
    let far = Config { offset: bytes(u64::MAX), ..temporary() };
    for _ in 0..3 {
        assert!(matches!(control.attach(&image.file, &no_size), Err(AttachError::Config(_))));
        assert!(matches!(control.attach(&image.file, &far), Err(AttachError::Config(_))));
        for (file, expected) in [(&reading, BackingError::NotWritable), (&path, BackingError::PathOnly)] {
            let refused = control.attach(file, &temporary());
            assert!(matches!(&refused, Err(AttachError::Backing(error)) if *error == expected), "{refused:?}");
        }
        let read_only = Config { read_only: true, ..temporary() };
        for refused in [control.attach(&directory, &read_only), control.attach(&pipe, &read_only)] {
            assert!(matches!(&refused, Err(AttachError::Backing(BackingError::NotAFile))), "{refused:?}");
        }
        assert!(matches!(Device::open("/dev/zero"), Err(DeviceError::NotLoopDevice { .. })));
        assert!(matches!(Device::open("/dev/nothing"), Err(DeviceError::NotFound { .. })));
        let refused = Device::open(device.path()).unwrap().detach(&image.file);
        assert!(matches!(&refused, Err(DetachError::OtherBacking { .. })), "{refused:?}");
        assert_eq!(held(), before);
    }
}

/// The soft limit of descriptors, restored on drop.
struct Descriptors(u64, u64);

impl Descriptors {
    fn at_most(limit: u64) -> Self {
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        setrlimit(Resource::RLIMIT_NOFILE, limit, hard).unwrap();
        Self(soft, hard)
    }
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        setrlimit(Resource::RLIMIT_NOFILE, self.0, self.1).unwrap();
    }
}

/// Each step that needs a descriptor fails once.
#[test]
fn an_attach_that_runs_out_of_descriptors_leaves_nothing_behind() {
    let (_alone, image) = alone_with(MIB);
    let control = Control::open().unwrap();
    let before = held();
    let next = u64::try_from(before.0.len()).unwrap();
    let mut failures = 0;
    let device = (0..8)
        .find_map(|more| {
            let limit = Descriptors::at_most(next - 1 + more);
            let attached = control.attach(&image.file, &Config::default());
            drop(limit);
            match attached {
                Ok(device) => Some(device),
                Err(AttachError::Device(DeviceError::Open { source: Errno::EMFILE, .. })) => {
                    failures += 1;
                    assert_eq!(held(), before);
                    None
                }
                Err(other) => panic!("with {more} descriptors: {other:?}"),
            }
        })
        .expect("enough descriptors in the end");
    assert!(failures >= 2, "one for each of the two that it opens");
    assert_eq!(device.detach(&image.file).unwrap(), Detach::Detached);
    assert_eq!(held(), before);
}

/// Each call of an attach that can fail does so once.
#[test]
fn an_attach_whose_calls_fail_leaves_nothing_behind() {
    const CONFIGURE: Call = Call::ioctl(0x4C0A);
    let (_alone, image) = alone_with(MIB);
    let control = Control::open().unwrap();
    let path = free(&control, &image);
    let before = held();
    // Without autoclear, so that the test detects a device that stays attached.
    let attach = |call, errno| {
        let attached = without(call, errno, || control.attach(&image.file, &Config::default()));
        assert_eq!(held(), before, "{call:?}");
        attached.expect_err("one of its calls failed")
    };
    let error = attach(Call::ioctl(0x4C82), Errno::EIO);
    assert!(matches!(error, AttachError::NoFree(Errno::EIO)), "LOOP_CTL_GET_FREE: {error:?}");
    let exclusive = Call::open(OFlag::O_RDWR | OFlag::O_EXCL | OFlag::O_CLOEXEC);
    match attach(exclusive, Errno::EACCES) {
        AttachError::Device(DeviceError::Open { path: found, source: Errno::EACCES }) if found == path => {}
        other => panic!("the device's node: {other:?}"),
    }
    match attach(CONFIGURE, Errno::EIO) {
        AttachError::Configure { number, backing, source: Errno::EIO } => {
            assert_eq!((number.path(), backing), (path.clone(), image.backing()));
        }
        other => panic!("LOOP_CONFIGURE: {other:?}"),
    }
    // A kernel without LOOP_CONFIGURE returns one of these.
    for unknown in [Errno::EINVAL, Errno::ENOTTY] {
        let error = attach(CONFIGURE, unknown);
        assert!(matches!(error, AttachError::KernelTooOld), "LOOP_CONFIGURE is {unknown}: {error:?}");
    }
    assert_eq!(control.attach(&image.file, &temporary()).unwrap().path(), path, "nothing is in its way");
}

#[test]
fn an_open_whose_calls_fail_leaves_nothing_behind() {
    type Expected = fn(&DeviceError) -> bool;
    let (_alone, image) = alone_with(MIB);
    let control = Control::open().unwrap();
    let device = control.attach(&image.file, &temporary()).unwrap();
    let path = device.path();
    let before = held();
    let again = Call::open(OFlag::O_RDONLY | OFlag::O_CLOEXEC);
    let expected: [(Call, Errno, Expected); _] = [
        (again, Errno::ENXIO, |error| matches!(error, DeviceError::Gone { .. })),
        (again, Errno::ENODEV, |error| matches!(error, DeviceError::Gone { .. })),
        (again, Errno::ENOENT, |error| matches!(error, DeviceError::NoProc { .. })),
        (again, Errno::EBUSY, |error| matches!(error, DeviceError::Open { source: Errno::EBUSY, .. })),
        (Call::READLINK, Errno::ENOENT, |error| matches!(error, DeviceError::Sysfs { .. })),
    ];
    for (call, errno, is_it) in expected {
        let refused = without(call, errno, || Device::open(&path)).expect_err("one of its calls failed");
        assert!(is_it(&refused), "{call:?} is {errno}: {refused:?}");
        assert_eq!(held(), before);
        // An attach to another device opens that device with the same calls.
        let attached = without(call, errno, || control.attach(&image.file, &Config::default()));
        let is_refused = matches!(&attached, Err(AttachError::Device(refused)) if is_it(refused));
        assert!(is_refused, "{call:?} is {errno}: {attached:?}");
        assert_eq!(held(), before);
    }
}

/// A node of `/dev` that is missing or replaced, restored on drop.
struct Replaced {
    path: PathBuf,
    kept: PathBuf,
}

impl Replaced {
    fn by_nothing(path: &Path) -> Self {
        let kept = path.with_extension("kept");
        fs::rename(path, &kept).unwrap();
        Self { path: path.into(), kept }
    }

    fn by(path: &Path, kind: SFlag, dev: DeviceNumber) -> Self {
        let replaced = Self::by_nothing(path);
        mknod(path, kind, Mode::S_IRUSR | Mode::S_IWUSR, makedev(dev.major.into(), dev.minor.into())).unwrap();
        replaced
    }
}

impl Drop for Replaced {
    fn drop(&mut self) {
        fs::rename(&self.kept, &self.path).unwrap();
    }
}

#[test]
fn a_node_of_another_device_is_rejected() {
    let _alone = alone();
    let [image, other] = [(); 2].map(|()| Image::new(MIB));
    let control = Control::open().unwrap();
    // The worst case: a node of a device that has another backing file.
    let occupied = control.attach(&other.file, &temporary()).unwrap();
    let path = free(&control, &image);
    let before = held();
    let replaced = Replaced::by(&path, SFlag::S_IFBLK, occupied.dev());
    match control.attach(&image.file, &Config::default()) {
        Err(AttachError::WrongNode { number, found }) => {
            assert_eq!((number.path(), found), (path.clone(), occupied.number()));
        }
        other => panic!("it is the node of {}: {other:?}", occupied.number()),
    }
    assert_eq!(held(), before);
    drop(replaced);
    let replaced = Replaced::by(&path, SFlag::S_IFCHR, node(Path::new("/dev/null")));
    match control.attach(&image.file, &Config::default()) {
        Err(AttachError::Device(DeviceError::NotLoopDevice { path: found })) => assert_eq!(found, path),
        other => panic!("it is a character device: {other:?}"),
    }
    assert_eq!(held(), before);
    drop(replaced);
    assert_eq!(occupied.backing().unwrap(), other.backing());
    assert_eq!(control.attach(&image.file, &temporary()).unwrap().path(), path);
}

/// Time limit of attaches that fail.
const LIMIT: Duration = Duration::from_millis(200);

#[test]
fn the_wait_for_a_missing_node_is_limited() {
    let (_alone, image) = alone_with(MIB);
    let control = Control::open().unwrap().with_limit(LIMIT);
    let path = free(&control, &image);
    let before = held();
    let replaced = Replaced::by_nothing(&path);
    match control.attach(&image.file, &Config::default()) {
        Err(AttachError::NoNode { number }) => assert_eq!(number.path(), path),
        other => panic!("it has no node: {other:?}"),
    }
    assert_eq!(held(), before);
    drop(replaced);
    assert_eq!(control.attach(&image.file, &temporary()).unwrap().path(), path);
}

#[test]
fn the_wait_for_an_exclusively_open_device_is_limited() {
    let (_alone, image) = alone_with(MIB);
    let control = Control::open().unwrap().with_limit(LIMIT);
    let path = free(&control, &image);
    let before = held();
    // The kernel returns this number again and again, because nothing is attached to it.
    let exclusive = File::options().read(true).custom_flags(nix::libc::O_EXCL).open(&path).unwrap();
    match control.attach(&image.file, &Config::default()) {
        Err(AttachError::Contended { number, waited }) => {
            assert_eq!(number.path(), path);
            assert!(waited >= LIMIT, "{waited:?}");
        }
        other => panic!("nothing is free: {other:?}"),
    }
    drop(exclusive);
    assert_eq!(held(), before);
    assert_eq!(control.attach(&image.file, &temporary()).unwrap().path(), path);
}

static STOP: AtomicBool = AtomicBool::new(false);

/// Removes the device, if it is unused.
fn remove(control: &File, number: i32) {
    let removed = syscall::remove_device(control, number);
    assert!(matches!(removed, Ok(()) | Err(Errno::EBUSY | Errno::ENODEV)), "{removed:?}");
}

#[test]
fn a_number_that_was_removed_meanwhile_is_skipped() {
    let (_alone, image) = alone_with(MIB);
    let control = Control::open().unwrap();
    let before = held();
    thread::scope(|scope| {
        let removing = scope.spawn(|| {
            let control = File::options().read(true).write(true).open("/dev/loop-control").unwrap();
            while !STOP.load(Ordering::Relaxed) {
                for number in 0..4 {
                    remove(&control, number);
                }
            }
        });
        for _ in 0..100 {
            let device = control.attach(&image.file, &Config::default()).unwrap();
            let user = open(&device);
            drop(user);
            assert_eq!(device.detach(&image.file).unwrap(), Detach::Detached);
        }
        STOP.store(true, Ordering::Relaxed);
        removing.join().unwrap();
    });
    assert_eq!(held(), before);
}

/// Whether the kernel has the device.
fn exists(number: Number) -> bool {
    Path::new("/sys/block").join(number.to_string()).exists()
}

/// With the lowest free number, a process that had opened the free device read and wrote the file that was attached
/// next.
#[test]
fn a_descriptor_of_a_former_device_does_not_reach_the_next_file() {
    let _alone = alone();
    let [image, other] = [Image::new(MIB), Image::new(MIB)];
    other.file.write_all_at(b"other", 0).unwrap();
    let control = Control::open().unwrap();
    let numbers = Numbers::after_existing().unwrap();
    let former = control.attach_next(&numbers, &image.file, &Config::default()).unwrap();
    let (number, path) = (former.number(), former.path());
    assert!(number.get() >= Numbers::FIRST);
    assert_eq!(former.detach(&image.file).unwrap(), Detach::Detached);
    let stale = File::options().read(true).write(true).open(&path).unwrap();

    let next = control.attach_next(&numbers, &other.file, &temporary()).unwrap();
    assert!(next.number() > number);
    let mut found = [0; 5];
    stale.read_exact_at(&mut found, 0).expect_err("nothing is attached");
    assert_eq!(control.remove(number).unwrap(), Removal::InUse, "it is open");
    assert_eq!(control.remove(next.number()).unwrap(), Removal::InUse, "it is attached");
    drop(stale);
    for _ in 0..2 {
        assert_eq!(control.remove(number).unwrap(), Removal::Removed);
        assert!(!exists(number));
    }
    assert_eq!(next.backing().unwrap(), other.backing());

    // Control: the kernel's own choice is the device that was opened before.
    let free = control.attach(&image.file, &Config::default()).unwrap();
    let path = free.path();
    assert_eq!(free.detach(&image.file).unwrap(), Detach::Detached);
    let stale = File::open(&path).unwrap();
    let again = control.attach(&other.file, &temporary()).unwrap();
    assert_eq!(again.path(), path);
    stale.read_exact_at(&mut found, 0).unwrap();
    assert_eq!(&found, b"other");
}

#[test]
fn numbers_go_on_above_the_highest_device() {
    let _alone = alone();
    let control = Control::open().unwrap();
    let numbers = Numbers::after_existing().unwrap();
    let first = control.create_next(&numbers).unwrap();
    let mark = control.create_next(&numbers).unwrap();
    assert!(numbers.is_latest(mark) && !numbers.is_latest(first));
    assert_eq!(control.remove(first).unwrap(), Removal::Removed);
    let next = control.create_next(&Numbers::after_existing().unwrap()).unwrap();
    assert_eq!(next.get(), mark.get() + 1);
    // A number whose device another process has created is skipped.
    let after = control.create_next(&numbers).unwrap();
    assert_eq!(after.get(), next.get() + 1);
    for number in [mark, next, after] {
        assert_eq!(control.remove(number).unwrap(), Removal::Removed);
    }
}

#[test]
fn a_next_device_that_cannot_be_attached_is_removed() {
    let (_alone, image) = alone_with(MIB);
    let control = Control::open().unwrap();
    let numbers = Numbers::after_existing().unwrap();
    let before = held();
    let attach = || control.attach_next(&numbers, &image.file, &Config::default());
    for (call, errno) in [(Call::ioctl(0x4C0A), Errno::EIO), (Call::READLINK, Errno::EACCES)] {
        without(call, errno, attach).expect_err("one of its calls failed");
        assert_eq!(held(), before, "{call:?}");
    }
    let attached = without(Call::ioctl(0x4C80), Errno::EPERM, attach);
    assert!(matches!(attached, Err(AttachError::Create { source: Errno::EPERM, .. })), "LOOP_CTL_ADD: {attached:?}");
    let next = control.create_next(&numbers).unwrap();
    // Three numbers were taken; the devices of two were removed.
    for number in next.get() - 3..next.get() {
        assert!(!exists(format!("loop{number}").parse().unwrap()), "loop{number}");
    }
    assert_eq!(control.remove(next).unwrap(), Removal::Removed);
}
