//! Backing files that the kernel reads and writes directly, and others. Runs as root in a machine of its own.

mod image;

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use image::{Image, MIB, Page, bytes, ext4, open_direct, sysfs, temporary};
use ktest_support::{Mount, Tmpfs, XfsDisk};
use loopdev::{BlockSize, Config, Control, Device};
use nix::errno::Errno;
use nix::libc::O_DIRECT;
use nix::mount::{MsFlags, mount};

/// A null_blk disk in memory with logical blocks of 4096 bytes, configured through configfs.
struct LargeBlocks(&'static str);

impl LargeBlocks {
    fn new(name: &'static str) -> Self {
        let configfs = Path::new("/sys/kernel/config");
        if !configfs.join("nullb").exists() {
            // Another test may have mounted it first.
            let mounted = mount(Some("configfs"), configfs, Some("configfs"), MsFlags::empty(), None::<&str>);
            assert!(matches!(mounted, Ok(()) | Err(Errno::EBUSY)), "{mounted:?}");
        }
        let disk = Self(name);
        fs::create_dir(disk.settings()).unwrap();
        for (name, value) in [("blocksize", "4096"), ("size", "64"), ("memory_backed", "1"), ("power", "1")] {
            fs::write(disk.settings().join(name), value).unwrap();
        }
        assert_eq!(fs::read_to_string(format!("/sys/block/{name}/queue/logical_block_size")).unwrap(), "4096\n");
        disk
    }

    fn settings(&self) -> PathBuf {
        Path::new("/sys/kernel/config/nullb").join(self.0)
    }

    fn path(&self) -> PathBuf {
        Path::new("/dev").join(self.0)
    }
}

impl Drop for LargeBlocks {
    fn drop(&mut self) {
        fs::remove_dir(self.settings()).unwrap();
    }
}

fn direct() -> Config {
    Config { direct_io: true, ..temporary() }
}

fn blocks(size: u32) -> Option<BlockSize> {
    BlockSize::new(size).ok()
}

/// The reported value, which has to match the actual behaviour of the kernel.
fn is_direct(device: &Device) -> bool {
    let on = device.config().unwrap().direct_io;
    assert_eq!(device.status().unwrap().config.direct_io, on);
    assert_eq!(sysfs(device, "loop/dio"), u8::from(on).to_string());
    on
}

/// Writes a page through the device, and reads it from the file and from the device.
fn carries_data(device: &Device, image: &File, offset: u64) {
    let disk = open_direct(&device.path());
    let written = Page(std::array::from_fn(|index| u8::try_from(index % 251).unwrap()));
    disk.write_all_at(&written.0, 8192).unwrap();
    disk.sync_all().unwrap();
    let mut found = Page([0; 4096]);
    image.read_exact_at(&mut found.0, offset + 8192).unwrap();
    assert!(found.0 == written.0, "in the file");
    found.0.fill(0);
    disk.read_exact_at(&mut found.0, 8192).unwrap();
    assert!(found.0 == written.0, "read back");
}

#[test]
fn direct_io_is_on_if_it_was_asked_for_and_only_then() {
    let disk = XfsDisk::without_quota();
    let image = Image::within(disk.path(), MIB);
    let device = image.attach(&direct());
    assert!(is_direct(&device));
    carries_data(&device, &image.file, 0);
    assert!(!is_direct(&image.attach(&temporary())));
}

#[test]
fn a_descriptor_with_o_direct_turns_it_on_by_itself() {
    let disk = XfsDisk::without_quota();
    let image = Image::within(disk.path(), MIB);
    let direct = File::options().read(true).write(true).custom_flags(O_DIRECT).open(&image.path).unwrap();
    let device = Control::open().unwrap().attach(direct, &temporary()).unwrap();
    assert!(is_direct(&device));
}

#[test]
fn a_file_of_a_tmpfs_takes_direct_io() {
    // Since Linux 6.6, tmpfs supports direct I/O.
    let tmp = Tmpfs::mount();
    assert!(is_direct(&Image::within(tmp.path(), MIB).attach(&direct())));
}

#[test]
fn a_file_system_without_direct_io_is_reported() {
    let ramfs = Mount::new("ramfs", Path::new("ramfs"), "");
    let image = Image::within(ramfs.path(), MIB);
    let device = image.attach(&direct());
    assert!(!is_direct(&device));
    carries_data(&device, &image.file, 0);
}

#[test]
fn an_offset_within_a_block_is_reported() {
    let disk = XfsDisk::without_quota();
    let image = Image::within(disk.path(), MIB);
    for (offset, expected) in [(512, true), (4096, true), (1, false), (777, false)] {
        let device = image.attach(&Config { offset: bytes(offset), ..direct() });
        assert_eq!(is_direct(&device), expected, "{offset}");
        carries_data(&device, &image.file, offset);
    }
}

/// Block size, offset, and whether direct I/O is on. `None`: the kernel chooses the block size of the disk below, since
/// Linux 6.15 and in 6.12.y.
const ON_LARGE_BLOCKS: [(Option<u32>, u64, bool); 6] = [
    (None, 0, true),
    (Some(512), 0, false),
    (Some(2048), 0, false),
    (Some(4096), 0, true),
    (Some(4096), 512, false),
    (Some(4096), 8192, true),
];

fn reports_what_large_blocks_allow(below: &File) {
    for (block_size, offset, expected) in ON_LARGE_BLOCKS {
        let config = Config { block_size: block_size.and_then(blocks), offset: bytes(offset), ..direct() };
        let device = Control::open().unwrap().attach(below, &config).unwrap();
        assert_eq!(is_direct(&device), expected, "{config:?}");
        assert_eq!(device.config().unwrap().block_size, blocks(block_size.unwrap_or(4096)));
        carries_data(&device, below, offset);
    }
}

#[test]
fn blocks_smaller_than_those_of_the_disk_are_reported() {
    let disk = LargeBlocks::new("nullb4096fs");
    let mounted = ext4(&disk.path());
    reports_what_large_blocks_allow(&Image::within(mounted.path(), MIB).file);
}

#[test]
fn blocks_smaller_than_those_of_the_device_are_reported() {
    let disk = LargeBlocks::new("nullb4096raw");
    reports_what_large_blocks_allow(&File::options().read(true).write(true).open(disk.path()).unwrap());
}

#[test]
fn large_blocks_are_what_a_file_system_on_the_device_gets() {
    let image = Image::new(32 * MIB);
    let device = image.attach(&Config { block_size: blocks(4096), ..temporary() });
    // A block of 1024 bytes cannot be read from such a disk.
    let small =
        Command::new("mke2fs").args(["-q", "-F", "-t", "ext4", "-b", "1024"]).arg(device.path()).output().unwrap();
    assert!(!small.status.success(), "mke2fs made blocks smaller than those of the disk");
    let mounted = ext4(&device.path());
    fs::write(mounted.path().join("file"), "large").unwrap();
    assert_eq!(fs::read(mounted.path().join("file")).unwrap(), b"large");
}
