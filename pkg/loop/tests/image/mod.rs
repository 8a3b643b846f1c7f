//! Backing files, and functions that read the state of devices.

// Each test program uses a part of this module.
#![allow(dead_code)]

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ktest_support::{Mount, eventually_is, run};
use loopdev::{Attached, Backing, Config, Control, Device, DeviceNumber};
use nix::libc::O_DIRECT;
use units::Bytes;

pub const MIB: u64 = 1 << 20;

/// A sparse file, open for reading and writing. Deleted on drop.
pub struct Image {
    pub file: File,
    pub path: PathBuf,
}

impl Image {
    /// Creates the file in the guest's tmpfs.
    pub fn new(size: u64) -> Self {
        Self::within(&std::env::temp_dir(), size)
    }

    pub fn within(dir: &Path, size: u64) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let path = dir.join(format!("image-{}", COUNT.fetch_add(1, Ordering::Relaxed)));
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        file.set_len(size).unwrap();
        Self { file, path }
    }

    pub fn backing(&self) -> Backing {
        Backing::of(&self.file).unwrap()
    }

    pub fn attach(&self, config: &Config) -> Device {
        Control::open().unwrap().attach(&self.file, config).unwrap()
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        // The test may have deleted the file.
        let _ = fs::remove_file(&self.path);
    }
}

/// Runs one test at a time: a list opens all devices, which would defer another test's detach, and the counted devices
/// must not change.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Like [`alone`], with an image of this size.
pub fn alone_with(size: u64) -> (MutexGuard<'static, ()>, Image) {
    (alone(), Image::new(size))
}

/// The kernel detaches the device when the test drops it, also if the test fails.
pub fn temporary() -> Config {
    Config { autoclear: true, ..Config::default() }
}

/// Devices that have this file as backing file.
pub fn attached(backing: Backing) -> Vec<Attached> {
    loopdev::list().unwrap().into_iter().filter(|device| device.status.backing == backing).collect()
}

/// Opens the device once more, so that it has another user than its [`Device`].
pub fn open(device: &Device) -> File {
    File::options().read(true).write(true).open(device.path()).unwrap()
}

/// Formats a device with this command, and mounts it.
pub fn formatted(device: &Path, kind: &str, command: &[&str]) -> Mount {
    run(Command::new(command[0]).args(&command[1..]).arg(device));
    Mount::new(kind, device, "")
}

pub fn ext4(device: &Path) -> Mount {
    formatted(device, "ext4", &["mke2fs", "-q", "-t", "ext4"])
}

/// Opens a file for direct I/O, whose reads and writes have to be whole blocks.
pub fn open_direct(path: &Path) -> File {
    File::options().read(true).write(true).custom_flags(O_DIRECT).open(path).unwrap()
}

/// Memory for direct I/O.
#[repr(align(4096))]
pub struct Page(pub [u8; 4096]);

/// Reads an attribute of the device in sysfs.
pub fn sysfs(device: &Device, attribute: &str) -> String {
    let path = format!("/sys/block/{}/{attribute}", device.number());
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}")).trim().to_owned()
}

/// The device number of a node.
pub fn node(path: &Path) -> DeviceNumber {
    let rdev = fs::metadata(path).unwrap().rdev();
    let [major, minor] =
        [nix::sys::stat::major(rdev), nix::sys::stat::minor(rdev)].map(|part| part.try_into().unwrap());
    DeviceNumber { major, minor }
}

pub fn bytes(size: u64) -> Bytes {
    Bytes::new(size)
}

/// Open files of this process, and the number of attached devices.
pub fn held() -> (Vec<PathBuf>, usize) {
    let open = fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path());
    // The descriptor of the listed directory is closed by now.
    let mut open: Vec<_> = open.filter_map(|link| fs::read_link(link).ok()).collect();
    open.sort();
    (open, loopdev::list().unwrap().len())
}

/// Waits until the kernel has released this file.
pub fn detached(backing: Backing) {
    eventually_is(&Vec::new(), || attached(backing));
}
