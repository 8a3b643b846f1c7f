//! Trees and devices with the kernel's dm-verity.

use ktest_support::Disk;
use nix::errno::Errno;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use verity::{BLOCK, OnCorruption, OpenError, Root, Tree, open};

/// A dm-verity device, removed on drop.
struct Opened {
    name: &'static str,
    node: PathBuf,
}

impl Opened {
    fn new(name: &'static str, disk: &Disk, root: &Root) -> Self {
        let node = open(name, disk.path(), root, OnCorruption::Fail).unwrap();
        Self { name, node }
    }

    fn read(&self, block: u64) -> io::Result<Vec<u8>> {
        let mut buffer = vec![0; BLOCK];
        File::open(&self.node)?.read_exact_at(&mut buffer, block * BLOCK as u64)?;
        Ok(buffer)
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        let removed = Command::new("dmsetup").args(["remove", "--noudevsync", self.name]).status();
        assert!(removed.is_ok_and(|status| status.success()) || std::thread::panicking());
    }
}

fn data(blocks: u64) -> Vec<u8> {
    (0..blocks).flat_map(|number| [number.to_le_bytes(); BLOCK / 8].concat()).collect()
}

/// Writes data and tree to a disk.
fn written(disk: &Disk, blocks: u64) -> Root {
    let data = data(blocks);
    let tree = Tree::of(&data[..]).unwrap();
    let device = File::options().write(true).open(disk.path()).unwrap();
    device.write_all_at(&data, 0).unwrap();
    device.write_all_at(tree.bytes(), data.len() as u64).unwrap();
    device.sync_all().unwrap();
    tree.root()
}

fn flip(disk: &Disk, byte: u64) {
    let device = File::options().read(true).write(true).open(disk.path()).unwrap();
    let mut found = [0];
    device.read_exact_at(&mut found, byte).unwrap();
    device.write_all_at(&[found[0] ^ 0x10], byte).unwrap();
    device.sync_all().unwrap();
}

#[test]
fn the_kernel_reads_verified_data() {
    let disk = Disk::take();
    for blocks in [1, 2, 128, 129, 300] {
        let root = written(&disk, blocks);
        let opened = Opened::new("whole", &disk, &root);
        let size = std::fs::read(&opened.node).unwrap();
        assert!(size == data(blocks), "{blocks} blocks");
    }
}

#[test]
fn only_the_block_with_a_flipped_bit_is_unreadable() {
    let disk = Disk::take();
    let root = written(&disk, 300);
    flip(&disk, 200 * BLOCK as u64 + 17);
    let opened = Opened::new("data", &disk, &root);
    assert_eq!(opened.read(200).unwrap_err().raw_os_error(), Some(Errno::EIO as i32));
    assert_eq!(opened.read(199).unwrap(), [199_u64.to_le_bytes(); BLOCK / 8].concat());
}

#[test]
fn a_flipped_bit_of_the_tree_is_detected() {
    let disk = Disk::take();
    let root = written(&disk, 300);
    // The top is block 300; the digests of blocks 0 to 127 follow.
    flip(&disk, 301 * BLOCK as u64 + 5);
    let opened = Opened::new("tree", &disk, &root);
    assert_eq!(opened.read(0).unwrap_err().raw_os_error(), Some(Errno::EIO as i32));
    assert!(opened.read(128).is_ok());
}

#[test]
fn no_block_is_readable_with_another_root() {
    let disk = Disk::take();
    let root = written(&disk, 300);
    let other = Tree::of(&data(299)[..]).unwrap().root();
    let opened = Opened::new("other", &disk, &Root { blocks: root.blocks, ..other });
    assert_eq!(opened.read(0).unwrap_err().raw_os_error(), Some(Errno::EIO as i32));
}

#[test]
fn the_device_is_read_only() {
    let disk = Disk::take();
    let root = written(&disk, 2);
    let opened = Opened::new("read-only", &disk, &root);
    let failed = File::options().write(true).open(&opened.node).unwrap().write_all_at(&[0; BLOCK], 0).unwrap_err();
    assert_eq!(failed.raw_os_error(), Some(Errno::EPERM as i32));
}

#[test]
fn a_device_that_is_too_small_is_rejected_and_removed() {
    let disk = Disk::take();
    let root = written(&disk, 2);
    let large: Root = format!("1000000:{}", root.digest).parse().unwrap();
    for _ in 0..2 {
        let failed = open("small", disk.path(), &large, OnCorruption::Fail);
        assert!(matches!(failed, Err(OpenError::DeviceMapper { step: "load the table of", source: Errno::E2BIG, .. })));
    }
    assert!(!Path::new("/dev/mapper/small").exists());
}
