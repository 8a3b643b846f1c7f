//! XFS file systems with particular mkfs and mount options.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use ktest_support::{Disk, run, unmount};
use nix::mount::{MsFlags, mount};

/// A mounted XFS, unmounted on drop. Close all its files before.
pub struct Formatted {
    device: PathBuf,
    target: PathBuf,
    // Dropped after unmounting.
    _disk: Option<Disk>,
}

impl Formatted {
    /// Formats a scratch disk with these options of mkfs.xfs, and mounts it.
    pub fn new(make: &[&str], options: &str) -> Self {
        let disk = Disk::take();
        Self::on(disk.path().to_owned(), Some(disk), make, options)
    }

    /// Formats a separate RAM disk, and mounts it.
    pub fn in_memory(options: &str) -> Self {
        fs::write("/sys/block/zram0/reset", "1").unwrap();
        fs::write("/sys/block/zram0/disksize", "512M").unwrap();
        Self::on(PathBuf::from("/dev/zram0"), None, &[], options)
    }

    fn on(device: PathBuf, disk: Option<Disk>, make: &[&str], options: &str) -> Self {
        run(Command::new("mkfs.xfs").args(["-q", "-f", "-K", "-l", "size=64m"]).args(make).arg(&device));
        let name = device.file_name().unwrap().to_str().unwrap();
        let target = std::env::temp_dir().join(format!("formatted-{name}"));
        fs::create_dir_all(&target).unwrap();
        let formatted = Self { device, target, _disk: disk };
        formatted.mount(options);
        formatted
    }

    pub fn path(&self) -> &Path {
        &self.target
    }

    pub fn open(&self) -> File {
        File::open(&self.target).unwrap()
    }

    pub fn device(&self) -> &Path {
        &self.device
    }

    /// Unmounts the file system and mounts it again.
    pub fn remount(&self, options: &str) {
        unmount(&self.target).unwrap();
        self.mount(options);
    }

    /// Remounts the file system read-only or writable while it is in use.
    pub fn change(&self, flags: MsFlags) {
        mount(None::<&str>, &self.target, None::<&str>, MsFlags::MS_REMOUNT | flags, None::<&str>).unwrap();
    }

    fn mount(&self, options: &str) {
        // mount(2) takes `ro` as a flag, not as an option.
        let (flags, options) = match options.strip_suffix(",ro") {
            Some(options) => (MsFlags::MS_RDONLY, options),
            None => (MsFlags::empty(), options),
        };
        mount(Some(&self.device), &self.target, Some("xfs"), flags, Some(options)).unwrap();
    }
}

impl Drop for Formatted {
    fn drop(&mut self) {
        let unmounted = unmount(&self.target);
        if !std::thread::panicking() {
            unmounted.unwrap();
        }
    }
}
