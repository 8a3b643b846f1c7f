//! The boot disk: the first boot uses the space after the image, and a later boot uses the space of an enlarged disk.
//! The first partition is the root of all processes that boot in these tests. It stays mounted meanwhile, so that the
//! kernel cannot read the table again. Needs root and one scratch disk.

use std::fs::{self, File};
use std::num::NonZeroU32;
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use gpt::{Guid, Partition, Table, guid, protective_mbr};
use ktest_support::process::Child;
use ktest_support::{Disk, run, unmount};
use localstorage::{DATA_PARTITION, DataDisk, LABEL, PartitionTable, Root, TableState};
use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sys::statvfs::statvfs;
use nix::unistd::chroot;
use tempfile::TempDir;
use units::Bytes;

const MIB: u64 = 1 << 20;
const SECTOR: u32 = 512;
const SECTORS_OF_MIB: u64 = MIB / SECTOR as u64;

/// The image in MiB: a table, a system from 1 MiB on, and a MiB with the backup table.
const SYSTEM: [u64; 2] = [1, 33];
const IMAGE: u64 = 34;
/// Size of the disk in MiB before it was enlarged.
const SHORTER: u64 = 640;

const LINUX: Guid = guid!("0fc63daf-8483-4772-8e79-3d69d8477de4");
const ID: Guid = guid!("00112233-4455-6677-8899-aabbccddeeff");

/// Directories of the test machine that its processes need.
const BOUND: [&str; 5] = ["dev", "proc", "sys", "tmp", "usr"];

struct Machine {
    disk: Disk,
    root: TempDir,
}

impl Machine {
    fn with_image() -> Self {
        let machine = Self { disk: Disk::take(), root: tempfile::tempdir().unwrap() };
        machine.install(&machine.table(), IMAGE);
        machine
    }

    /// A machine whose node has run with the smaller disk: its data exist.
    fn enlarged() -> Self {
        let machine = Self { disk: Disk::take(), root: tempfile::tempdir().unwrap() };
        let mut table = machine.table();
        table.add(&partition(2, DATA_PARTITION, [IMAGE, SHORTER - 1])).unwrap();
        machine.install(&table, SHORTER);
        let data = machine.partition(2);
        run(Command::new("mkfs.xfs").args(["-q", "-f", "-K", "-L", LABEL, data.to_str().unwrap()]));
        let place = machine.root.path();
        mount(Some(&data), place, Some("xfs"), MsFlags::empty(), None::<&str>).unwrap();
        fs::write(place.join("kept"), "kept").unwrap();
        unmount(place).unwrap();
        machine
    }

    fn table(&self) -> Table {
        let mut table = Table::new(ID, SECTOR).unwrap();
        table.add(&partition(1, LINUX, SYSTEM)).unwrap();
        table
    }

    /// Writes a table for a disk of `length` MiB, and an empty system.
    fn install(&self, table: &Table, length: u64) {
        let disk = File::options().write(true).open(self.disk.path()).unwrap();
        let zeros = vec![0; 2 * MIB as usize];
        for mib in [0, IMAGE, SHORTER - 2, self.length() - 2] {
            disk.write_all_at(&zeros, mib * MIB).unwrap();
        }
        disk.write_all_at(&protective_mbr(), 0).unwrap();
        for write in table.writes(length * SECTORS_OF_MIB).unwrap() {
            disk.write_all_at(&write.bytes, write.at).unwrap();
        }
        disk.sync_all().unwrap();
        drop(disk);
        self.read_table_again();
        let system = self.partition(1);
        run(Command::new("mke2fs").args(["-q", "-F", "-t", "ext4", "-O", "^has_journal", system.to_str().unwrap()]));
    }

    /// Writes the first `made` writes with which a boot changes the table. Then the power fails.
    fn begin_to_write(&self, made: usize, change: impl FnOnce(&mut Table, u64)) {
        let disk = File::options().read(true).write(true).open(self.disk.path()).unwrap();
        let mut head = vec![0; Table::length(SECTOR)];
        disk.read_exact_at(&mut head, 0).unwrap();
        let mut table = Table::parse(&head, SECTOR).unwrap();
        change(&mut table, self.length() - 1);
        for write in &table.writes(self.length() * SECTORS_OF_MIB).unwrap()[..made] {
            disk.write_all_at(&write.bytes, write.at).unwrap();
        }
        disk.sync_all().unwrap();
    }

    /// The kernel reads the table at its start, but not while a partition is mounted.
    fn read_table_again(&self) {
        run(Command::new("blockdev").args(["--rereadpt", self.disk.path().to_str().unwrap()]));
    }

    fn length(&self) -> u64 {
        self.number(&self.sysfs().join("size")) / SECTORS_OF_MIB
    }

    fn partition(&self, number: u32) -> PathBuf {
        format!("{}{number}", self.disk.path().display()).into()
    }

    fn sysfs(&self) -> PathBuf {
        Path::new("/sys/block").join(self.disk.path().file_name().unwrap())
    }

    fn number(&self, path: &Path) -> u64 {
        fs::read_to_string(path).unwrap().trim().parse().unwrap()
    }

    /// Start and length of the data partition in the kernel, in MiB.
    fn data(&self) -> [u64; 2] {
        let directory = self.sysfs().join(self.partition(2).file_name().unwrap());
        ["start", "size"].map(|attribute| self.number(&directory.join(attribute)) / SECTORS_OF_MIB)
    }

    /// Start and length of the space after the image, without the MiB of the backup table.
    fn all_of_it(&self) -> [u64; 2] {
        [IMAGE, self.length() - IMAGE - 1]
    }

    fn table_state(&self) -> TableState {
        let disk = File::open(self.disk.path()).unwrap();
        let size = Bytes::new(self.length() * MIB);
        let read = |buffer: &mut [u8], at| disk.read_exact_at(buffer, at);
        PartitionTable::read(size, SECTOR, read).unwrap().unwrap().state
    }

    /// Starts the machine: only the system is mounted.
    fn start(&self) -> Running<'_> {
        self.read_table_again();
        let root = self.root.path();
        mount(Some(&self.partition(1)), root, Some("ext4"), MsFlags::empty(), None::<&str>).unwrap();
        for name in BOUND {
            let target = root.join(name);
            fs::create_dir_all(&target).unwrap();
            mount(Some(&Path::new("/").join(name)), &target, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
        }
        fs::create_dir_all(root.join("data")).unwrap();
        if !root.join("lib64").exists() {
            symlink("usr/lib", root.join("lib64")).unwrap();
        }
        Running { machine: self }
    }
}

fn partition(number: u32, kind: Guid, [start, end]: [u64; 2]) -> Partition {
    let (first, last) = (start * SECTORS_OF_MIB, end * SECTORS_OF_MIB - 1);
    Partition { number: NonZeroU32::new(number).unwrap(), kind, id: ID, first, last, name: String::new() }
}

/// A running machine. The drop turns it off.
struct Running<'machine> {
    machine: &'machine Machine,
}

impl Running<'_> {
    fn root(&self) -> &Path {
        self.machine.root.path()
    }

    fn node_starts(&self) {
        // The node runs in a process of the machine, whose root is the system.
        Child::start(|| {
            chroot(self.root()).unwrap();
            std::env::set_current_dir("/").unwrap();
            DataDisk::find().unwrap().mount(Root::at(Path::new("/")).data).unwrap();
        })
        .wait();
    }

    fn kept(&self) -> PathBuf {
        self.root().join("data/kept")
    }

    /// Size of the data file system in bytes, without its log.
    fn capacity(&self) -> u64 {
        let seen = statvfs(&self.root().join("data")).unwrap();
        seen.blocks() * seen.fragment_size()
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let release = |path: &Path| match unmount(path) {
            // EINVAL: the path was not mounted.
            Ok(()) | Err(Errno::EINVAL) => {}
            Err(errno) => eprintln!("{}: {errno}", path.display()),
        };
        release(&self.root().join("data"));
        BOUND.iter().for_each(|name| release(&self.root().join(name)));
        release(self.root());
    }
}

#[test]
fn the_first_boot_uses_the_space_behind_the_image() {
    let machine = Machine::with_image();
    let running = machine.start();
    running.node_starts();
    assert_eq!(machine.data(), machine.all_of_it());
    fs::write(running.kept(), "kept").unwrap();
    drop(running);

    let running = machine.start();
    // The kernel has read the table on the disk.
    assert_eq!((machine.data(), machine.table_state()), (machine.all_of_it(), TableState::Whole));
    running.node_starts();
    assert_eq!(fs::read(running.kept()).unwrap(), b"kept");
}

#[test]
fn a_partition_grows_with_its_disk_under_a_mounted_system() {
    let machine = Machine::enlarged();
    let running = machine.start();
    let before = [IMAGE, SHORTER - 1 - IMAGE];
    assert_eq!(machine.data(), before);
    running.node_starts();
    let after = machine.all_of_it();
    assert_eq!(machine.data(), after);
    assert_eq!(fs::read(running.kept()).unwrap(), b"kept");
    let log = after[1] * MIB - running.capacity();
    assert!(log < 100 * MIB, "the file system has {} of {} MiB", running.capacity() / MIB, after[1]);
    drop(running);

    let running = machine.start();
    assert_eq!((machine.data(), machine.table_state()), (after, TableState::Whole));
    running.node_starts();
    assert_eq!(fs::read(running.kept()).unwrap(), b"kept");
}

/// Number of writes of a table: the backup, the entries, and the header that makes them valid.
const WRITES: usize = 3;

#[test]
fn wherever_the_power_ends_a_first_boot_the_next_one_finishes() {
    for made in 1..=WRITES {
        let machine = Machine::with_image();
        machine.begin_to_write(made, |table, end| {
            table.add(&partition(2, DATA_PARTITION, [IMAGE, end])).unwrap();
        });
        machine.start().node_starts();
        assert_eq!((machine.data(), machine.table_state()), (machine.all_of_it(), TableState::Whole), "{made}");
    }
}

#[test]
fn the_next_boot_finishes_a_growth_cut_anywhere() {
    for made in 1..=WRITES {
        let machine = Machine::enlarged();
        machine.begin_to_write(made, |table, end| {
            table.extend(NonZeroU32::new(2).unwrap(), end * SECTORS_OF_MIB - 1).unwrap();
        });
        let running = machine.start();
        running.node_starts();
        assert_eq!(fs::read(running.kept()).unwrap(), b"kept", "{made}");
        assert_eq!((machine.data(), machine.table_state()), (machine.all_of_it(), TableState::Whole), "{made}");
    }
}
