//! A system partition on a disk, intact and with a flipped bit. Requires root and a scratch disk.

use std::fs::File;
use std::num::NonZeroU32;
use std::os::unix::fs::FileExt;
use std::process::Command;

use gpt::{Guid, Partition, Table, guid, protective_mbr};
use initramfs::search::{SearchError, VERIFIED, find, verified};
use initramfs::system::System;
use ktest_support::{Disk, run};
use verity::{BLOCK, Tree};

const SECTOR: u32 = 512;
const START: u64 = 1 << 20;
const BLOCKS: usize = 300;
const ID: Guid = guid!("00112233-4455-6677-8899-aabbccddeeff");
const LINUX: Guid = guid!("0fc63daf-8483-4772-8e79-3d69d8477de4");

/// A disk with a system partition, like a disk image.
struct Installed {
    disk: Disk,
    wanted: System,
}

impl Installed {
    fn new() -> Self {
        let disk = Disk::take();
        let data: Vec<u8> = (0..BLOCKS).flat_map(|number| [number.to_le_bytes(); BLOCK / 8].concat()).collect();
        let tree = Tree::of(&data[..]).unwrap();
        let device = File::options().write(true).open(disk.path()).unwrap();
        device.write_all_at(&data, START).unwrap();
        device.write_all_at(tree.bytes(), START + data.len() as u64).unwrap();
        let mut table = Table::new(ID, SECTOR).unwrap();
        let (first, last) = (START / u64::from(SECTOR), (8 << 20) / u64::from(SECTOR) - 1);
        let number = NonZeroU32::MIN;
        table.add(&Partition { number, kind: LINUX, id: ID, first, last, name: "SYSTEM-A".into() }).unwrap();
        device.write_all_at(&protective_mbr(), 0).unwrap();
        for write in table.writes((16 << 20) / u64::from(SECTOR)).unwrap() {
            device.write_all_at(&write.bytes, write.at).unwrap();
        }
        device.sync_all().unwrap();
        drop(device);
        run(Command::new("blockdev").args(["--rereadpt", disk.path().to_str().unwrap()]));
        Self { disk, wanted: format!("{ID}:{}", tree.root()).parse().unwrap() }
    }

    /// Verifies and opens the partition like the initramfs, and removes the device again.
    fn opens(&self) -> Result<(), SearchError> {
        let System::Partition { root, .. } = self.wanted else { panic!("{} is not a partition", self.wanted) };
        let device = verified(&find(&self.wanted, || {})?, &root)?;
        let mut block = [0; BLOCK];
        File::open(device).unwrap().read_exact_at(&mut block, BLOCK as u64).unwrap();
        assert_eq!(block[..8], 1_usize.to_le_bytes());
        run(Command::new("dmsetup").args(["remove", "--noudevsync", VERIFIED]));
        Ok(())
    }

    fn flip(&self, byte: u64) {
        let device = File::options().read(true).write(true).open(self.disk.path()).unwrap();
        let mut found = [0];
        device.read_exact_at(&mut found, START + byte).unwrap();
        device.write_all_at(&[found[0] ^ 0x10], START + byte).unwrap();
        device.sync_all().unwrap();
    }
}

/// EROFS does not use the bytes before its superblock at offset 1024. Later blocks are verified by the kernel
/// (`//pkg/verity:device_ktest`), which panics (`//test/e2e:firmware`).
#[test]
fn a_damaged_first_block_is_reported_with_the_remedy() {
    let installed = Installed::new();
    installed.opens().unwrap();
    for byte in [7, 1024 + 40, BLOCK as u64 - 1] {
        installed.flip(byte);
        let error = installed.opens().unwrap_err();
        assert!(matches!(error, SearchError::Damaged { .. }), "byte {byte}: {error:?}");
        let text = error.to_string();
        for part in ["partition SYSTEM-A", "is damaged, and was not started; write the image to the disk again"] {
            assert!(text.contains(part), "{part:?} is not in {text:?}");
        }
        installed.flip(byte);
        installed.opens().unwrap();
    }
}
