//! The node's last step of a shutdown, on a disk with volumes that the kubelet did not unpublish.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use ktest_support::{Disk, Tmpfs, run};
use loopdev::{Backing, Config, Control, Device};
use nix::mount::{MsFlags, mount};
use node_core::mounts;
use tempfile::TempDir;
use units::Bytes;

const SIZE: Bytes = Bytes::new(16 << 20);

struct Data {
    disk: Disk,
    place: TempDir,
}

impl Data {
    fn new() -> Self {
        let data = Self { disk: Disk::take(), place: tempfile::tempdir().unwrap() };
        run(Command::new("mkfs.xfs").args(["-q", "-f", "-K"]).arg(data.disk.path()));
        data.mount();
        data
    }

    fn mount(&self) {
        mount(Some(self.disk.path()), self.path(), Some("xfs"), MsFlags::empty(), None::<&str>).unwrap();
    }

    fn path(&self) -> &Path {
        self.place.path()
    }

    /// Publishes a volume in block mode: an image, its loop device, and the device at the kubelet's target path.
    fn publish(&self, name: &str) -> (PathBuf, Backing) {
        let (image, target) = (self.path().join(name), self.path().join(format!("{name}.target")));
        let file = File::create_new(&image).unwrap();
        file.set_len(SIZE.get()).unwrap();
        File::create_new(&target).unwrap();
        let file = File::options().read(true).write(true).open(&image).unwrap();
        let device = Control::open().unwrap().attach(&file, &Config::default()).unwrap();
        let path = device.path();
        bind(&path, &target);
        (path, Backing::of(&file).unwrap())
    }

    fn points(&self) -> Vec<PathBuf> {
        points().into_iter().filter(|point| point.starts_with(self.path())).collect()
    }
}

fn bind(from: &Path, to: &Path) {
    mount(Some(from), to, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
}

fn points() -> Vec<PathBuf> {
    mount::table().unwrap().into_iter().map(|entry| entry.point).collect()
}

#[test]
fn a_disk_is_unmounted_although_volumes_are_published() {
    let data = Data::new();
    let (device, backing) = data.publish("a");
    data.publish("b");
    fs::create_dir(data.path().join("pod")).unwrap();
    bind(data.path(), &data.path().join("pod"));
    // The data is only in the device's page cache: no pod has synced it.
    File::options().write(true).open(&device).unwrap().write_all(b"written last").unwrap();

    mounts::release(&[data.path()]);

    assert_eq!(data.points(), Vec::<PathBuf>::new());
    let left = loopdev::list().unwrap().into_iter().filter(|device| device.status.backing == backing).count();
    assert_eq!(left, 0);
    data.mount();
    let mut read = [0; 12];
    File::open(data.path().join("a")).unwrap().read_exact_at(&mut read, 0).unwrap();
    assert_eq!(&read, b"written last");
    mounts::release(&[data.path()]);
    assert_eq!(data.points(), Vec::<PathBuf>::new());
}

#[test]
fn what_stands_elsewhere_is_left_alone() {
    let (data, other) = (Data::new(), Tmpfs::mount());
    let image = other.path().join("image");
    File::create_new(&image).unwrap().set_len(SIZE.get()).unwrap();
    let file = File::options().read(true).write(true).open(&image).unwrap();
    let device = Control::open().unwrap().attach(&file, &Config::default()).unwrap();

    mounts::release(&[data.path()]);

    assert_eq!(data.points(), Vec::<PathBuf>::new());
    assert!(points().iter().any(|point| point == other.path()));
    let device = Device::open(device.path()).unwrap();
    assert_eq!(device.backing().unwrap(), Backing::of(&file).unwrap());
    let _detached = device.detach(&file).unwrap();
}
